"""`defserve call --task` and `defserve tasks`: a task that is started by one command and asked for by others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from defserve import Context, Server
from defserve.cli.commands.tasks import move_id_to_end
from tests.cli.running import Run
from tests.listening import listening
from tests.rows import for_each_row


@pytest.fixture
def url() -> Iterator[str]:
    """A server that runs, with tasks that end, ask and wait."""
    server = Server("library", "1")

    @server.tool(task="optional", poll=0.05)
    async def count(to: int) -> str:
        return f"counted to {to}"

    @server.tool(task="required", poll=0.05)
    async def lend(ctx: Context) -> str:
        return f"lent {await ctx.ask('Which book?', str)}"

    @server.tool(task="required", poll=0.05)
    def stay(ctx: Context) -> str:
        ctx.wait(asyncio.Event().wait())
        return "never"

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(listening(server)) as there:
        yield f"http://127.0.0.1:{there.address.port}/mcp"


def start(defserve: Run, *words: str) -> str:
    """The id that `defserve call --task` prints."""
    code, out, err = defserve("call", *words, "--task")
    assert code == 0 and f"runs as a task: defserve tasks result {words[0]} {out.strip()}" in err
    return out.strip()


def test_the_id_of_a_task_is_one_word_of_the_line_to_paste(defserve: Run, url: str, monkeypatch: pytest.MonkeyPatch):
    def make_id(length: int) -> str:
        return "x; id \x1b[2J"

    monkeypatch.setattr("defserve.protocols.mcp.tasks.records.secrets.token_urlsafe", make_id)
    _, _, err = defserve("call", url, "count", "to=3", "--task")
    assert err.strip() == f"count runs as a task: defserve tasks result {url} 'x; id \\x1b[2J'"


def test_a_task_is_started_and_its_result_is_fetched_later(defserve: Run, url: str):
    id = start(defserve, url, "count", "to=3")
    assert defserve("tasks", "result", url, id) == (0, "counted to 3\n", "")
    assert defserve("tasks", "get", url, id).out == "completed\n"
    assert json.loads(defserve("tasks", "get", url, id, "--json").out)["status"] == "completed"
    assert json.loads(defserve("tasks", "result", url, id, "--raw").out)["content"][0]["text"] == "counted to 3"


def test_the_question_of_a_task_is_shown_and_answered_by_who_fetches_the_result(defserve: Run, url: str):
    id = start(defserve, url, "lend")
    code, _, err = defserve("tasks", "result", url, id)
    assert code == 1 and "the task asks: Which book?\n  fix: run it at a terminal, where you can answer" in err
    assert defserve("tasks", "get", url, id).out == "input_required: Which book?\n"
    assert defserve("tasks", "result", url, id, "--answer", '"Emma"')[:2] == (0, "lent Emma\n")


def test_a_task_that_was_cancelled_has_no_result(defserve: Run, url: str):
    id = start(defserve, url, "stay")
    assert defserve("tasks", "cancel", url, id).out.startswith("cancelled")
    assert defserve("tasks", "result", url, id) == (5, "", "error: the task was cancelled\n")


def test_a_tool_that_is_no_task_gives_its_result_at_once(defserve: Run, url: str):
    code, out, err = defserve("call", url, "add", "a=1", "b=2", "--task")
    assert (code, out, err) == (0, "3\n", "note: add does not run as a task here; this is its result\n")


def test_an_id_that_nobody_knows_is_explained(defserve: Run, url: str):
    code, _, err = defserve("tasks", "get", url, "-nobody-gave-out-such-an-id")
    assert code == 1 and "knows no task '-nobody-gave-out-such-an-id' of yours\n  fix: use the id" in err


def test_a_task_needs_a_server_that_goes_on_running(defserve: Run, folder: Path):
    (folder / "server.py").write_text("from defserve import Server\nserver = Server('s')\n")
    for words in (("call", "server.py", "count", "--task"), ("tasks", "get", "server.py", "x")):
        code, _, err = defserve(*words)
        assert code == 1 and "a task ends with the process that runs it" in err and "http://127.0.0.1:8000/mcp" in err


@for_each_row(
    "words, moved",
    [
        ("get URL abc --json", "get URL abc --json"),
        ("get URL -0123456789abcdef0123 --json", "get URL --json -- -0123456789abcdef0123"),
        ("get URL --timeout 3 -- -0123456789abcdef0123", "get URL --timeout 3 -- -0123456789abcdef0123"),
        ("get URL -v abc", "get URL -v abc"),
    ],
)
def test_an_id_that_begins_with_a_dash_is_no_option(words: str, moved: str):
    assert move_id_to_end(words.split()) == moved.split()
