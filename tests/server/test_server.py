from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from defserve import Server, ToolError, UsageError
from tests.raw import ERAS, STATELESS, VERSIONS, Json, Raw, raw, text_of
from tests.rows import for_each_row
from tests.server.stocked import stocked

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)


# -- registries stay open


def hello() -> str:
    return "hello"


def replaced(server: Server) -> None:
    server.remove_tool("first")
    server.add_tool(hello)


CHANGES: dict[str, tuple[Callable[[Server], None], str]] = {
    "a tool added": (lambda server: server.add_tool(hello), "tools"),
    "a tool removed": (lambda server: server.remove_tool("first"), "tools"),
    "a tool replaced": (lambda server: server.add_tool(hello, name="first", description="New.", replace=True), "tools"),
    "a prompt added": (lambda server: server.add_prompt(hello), "prompts"),
    "a prompt removed": (lambda server: server.remove_prompt("first"), "prompts"),
    "a resource added": (lambda server: server.add_resource(hello, "x://hello"), "resources"),
    "a resource removed": (lambda server: server.remove_resource("x://first"), "resources"),
    "a template removed": (lambda server: server.remove_resource("x://t/{name}"), "resources"),
    "several at once": (replaced, "tools"),
}


async def listing(peer: Raw) -> list[Json]:
    methods = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    return [(await peer.ask(method))["result"] for method in methods]


@pytest.mark.slow
@pytest.mark.req("MCP-5.1l")
@for_each_row("version", VERSIONS)
@for_each_row("from_thread", [False, True])
@for_each_row("case", CHANGES)
async def test_a_change_is_told_once_and_seen_in_the_next_list(version: str, from_thread: bool, case: str):
    change, kind = CHANGES[case]
    server = stocked()
    async with raw(server, version) as peer:
        if version == STATELESS:
            wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
            await peer.begin("subscriptions/listen", {"notifications": wanted})
        before = await listing(peer)
        await peer.news()
        if from_thread:
            thread = threading.Thread(target=change, args=(server,))
            thread.start()
            await asyncio.to_thread(thread.join)
        else:
            change(server)
        told = [message["method"] for message in await peer.news()]
        assert set(told) == {f"notifications/{kind}/list_changed"}
        assert len(told) == 1 or from_thread
        assert await listing(peer) != before


@eras
async def test_a_removed_tool_is_unknown_and_an_added_one_works(version: str):
    server = stocked()
    async with raw(server, version) as peer:
        server.add_tool(hello)
        server.remove_tool("first")
        assert text_of(await peer.call("hello")) == "hello"
        assert (await peer.ask("tools/call", {"name": "first"}))["error"]["code"] == -32602


async def test_a_session_is_told_of_nothing_before_it_says_that_it_is_ready():
    server = stocked()
    async with raw(server, "2025-11-25", opened=False) as peer:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        await peer.ask("initialize", params)
        server.add_tool(hello)
        assert await peer.news() == []
        await peer.tell("notifications/initialized")
        server.remove_tool("hello")
        assert len(await peer.news()) == 1


def test_registries_can_be_changed_after_a_server_was_served():
    server = stocked()

    async def names() -> list[str]:
        async with raw(server) as peer:
            return [tool["name"] for tool in (await peer.ask("tools/list"))["result"]["tools"]]

    assert "hello" not in asyncio.run(names())
    server.add_tool(hello)
    assert "hello" in asyncio.run(names())


def test_removing_what_is_not_there_names_what_is():
    with pytest.raises(UsageError, match=r"there is no tool 'frist'; did you mean 'first'\?"):
        stocked().remove_tool("frist")


# -- middleware


def wrapped() -> tuple[Server, list[str]]:
    server, journal = Server("s", "1"), list[str]()

    @server.tool
    def double(n: int) -> int:
        journal.append("double")
        return 2 * n

    @server.around("tools/call")
    async def outer(call: Any, params: Any, next: Any) -> Any:
        journal.append("outer in")
        result = await next(call, params)
        journal.append("outer out")
        return result

    @server.around("tools/call")
    async def inner(call: Any, params: Any, next: Any) -> Any:
        journal.append("inner in")
        n = params["arguments"]["n"]
        if n == 0:
            return {"content": [{"type": "text", "text": "short"}]}
        if n < 0:
            raise ToolError("no negatives; take an absolute value")
        result = await next(call, {**params, "arguments": {"n": n + 1}})
        journal.append("inner out")
        return {**result, "seen": True}

    return server, journal


AROUND: dict[str, tuple[int, list[str], str, bool]] = {
    "through": (1, ["outer in", "inner in", "double", "inner out", "outer out"], "4", False),
    "short-circuit": (0, ["outer in", "inner in", "outer out"], "short", False),
    "an error": (-1, ["outer in", "inner in"], "no negatives; take an absolute value", True),
}


@eras
@for_each_row("case", AROUND)
async def test_the_first_middleware_is_the_outermost(version: str, case: str):
    n, expected, text, failed = AROUND[case]
    server, journal = wrapped()
    async with raw(server, version) as peer:
        result = await peer.call("double", {"n": n})
        assert (text_of(result), result.get("isError", False), journal) == (text, failed, expected)
        assert result.get("seen", False) is (case == "through")


@eras
@for_each_row("method", ["tools/list", "prompts/list", "resources/list"])
async def test_any_method_can_be_wrapped(version: str, method: str):
    server = stocked()

    @server.around(method)
    async def add(call: Any, params: Any, next: Any) -> Any:
        return {**await next(call, params), "wrapped": call.method}

    async with raw(server, version) as peer:
        assert (await peer.ask(method))["result"]["wrapped"] == method


def test_wrapping_a_method_nobody_serves_is_refused_and_stays_refused():
    server = Server("s", "1")

    @server.around("tools/cal")
    async def wrapper(call: Any, params: Any, next: Any) -> Any: ...

    for _ in range(2):
        with pytest.raises(UsageError, match=r"around\('tools/cal'\) wraps a method that this server does not have"):
            _ = server.composition


def test_wrapping_after_serving_began_is_refused():
    server = Server("s", "1")
    _ = server.composition
    with pytest.raises(UsageError, match=r"around\('tools/call'\) comes after the server has started"):
        server.around("tools/call")(passing)


async def passing(call: Any, params: Any, next: Any) -> Any:
    return await next(call, params)


def test_a_wrapper_that_is_not_async_is_refused():
    with pytest.raises(UsageError, match=r"around\('tools/call'\): 'hello' is not async"):
        Server("s", "1").around("tools/call")(hello)  # type: ignore[type-var]


# -- started by hand


@pytest.mark.parametrize("person", [True, False])
def test_a_person_who_starts_it_at_a_terminal_is_told_what_it_waits_for(
    person: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("defserve.serve.stdio.StdioService.run", lambda self: 0)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: person))
    Server("calculator", "1").run()
    out, err = capsys.readouterr()
    assert out == ""
    assert ("calculator is waiting for a client" in err) is person


# -- one of each registration form


async def test_decorators_work_bare_and_called_and_give_the_function_back():
    server = Server("s", "1")

    @server.tool
    def bare(n: int) -> int:
        return n + 1

    @server.tool(name="called")
    def with_options(n: int) -> int:
        return n + 2

    @server.prompt
    def ask() -> str:
        return "?"

    @server.resource("x://r")
    def r() -> str:
        return "r"

    assert (bare(1), with_options(1), ask(), r()) == (2, 3, "?", "r")
    async with raw(server) as peer:
        assert [text_of(await peer.call(name, {"n": 1})) for name in ("bare", "called")] == ["2", "3"]


@pytest.mark.slow
def test_a_script_that_cannot_be_served_ends_with_two_lines(tmp_path: Path) -> None:
    script = 'from defserve import Server\n\nServer("a").run(on="http://0.0.0.0:0/mcp")\n'
    (tmp_path / "script.py").write_text(script)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    first, second = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert first.startswith("error: script.py:3: serving on 0.0.0.0 without knowing") and second.startswith("  fix: ")


def test_an_error_of_run_can_still_be_caught_and_other_errors_keep_their_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(UsageError) as caught:
        Server("a").run(on="http://0.0.0.0:0/mcp")
    sys.excepthook(UsageError, caught.value, caught.tb)
    assert "Traceback" not in capsys.readouterr().err
    sys.excepthook(ValueError, ValueError("other"), caught.tb)
    assert "Traceback" in capsys.readouterr().err
