"""A server file in a process of its own: it may crash, hang or flood, and the inspector goes on."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from defserve.cli.commands.inspect import make_inspector_target
from defserve.cli.target import ServerTarget
from defserve.client.links import child_process
from defserve.errors import DefserveError, PeerGone, UsageError
from defserve.inspector import target_process
from defserve.inspector.inspection import Inspection
from defserve.inspector.target_process import describe_exit_code
from defserve.inspector.waterfalls import NOT_MEASURED_NOTE
from tests.forking.spawning import quick_python
from tests.inspector.conftest import Run
from tests.waiting import until

pytestmark = pytest.mark.anyio

HEAD = """
import asyncio, os, sys, time
from defserve import Context, Server

server = Server("fragile", "1")


@server.tool
def add(a: int, b: int) -> int:
    return a + b
"""
FRAGILE = f"""{HEAD}

@server.tool
def leave(code: int) -> str:
    print("printed on the way")
    print("token=abcdefghijklmnopqrstuvwxyz0123456789 \\x1b[31mred", file=sys.stderr, flush=True)
    os._exit(code)


@server.tool
async def hang() -> str:
    print("hangs", flush=True)
    time.sleep(3600)


@server.tool
async def rest() -> str:
    await asyncio.sleep(3600)


@server.tool
def divide(a: int, b: int) -> float:
    return a / b


@server.tool
def loads(module: str) -> bool:
    return module in sys.modules


@server.tool
def flood() -> str:
    for number in range(20_000):
        print("noise", number)
    os.write(1, b"raw noise\\n" * 1_000)
    return sys.stdin.read() or "done"
"""


def inspect(path: Path, source: str = FRAGILE) -> Inspection:
    """An inspection of a file with this source."""
    path.write_text(source)
    options = Namespace(era=None, token=None, header=[], verbose=False)
    return Inspection(make_inspector_target(ServerTarget(code=str(path)), [str(path)], options))


@pytest.fixture
async def fragile(tmp_path: Path, forked: None) -> AsyncIterator[Inspection]:
    async with inspect(tmp_path / "fragile.py") as inspection:
        yield inspection


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every path is Unicode")
async def test_a_file_whose_name_is_not_utf8_is_inspected_too(tmp_path: Path, forked: None, do: Run):
    async with inspect(tmp_path / os.fsdecode(b"caf\xe9.py")) as inspection:
        assert (await do(inspection, "tools.list"))["tools"]


@asynccontextmanager
async def crashed(inspection: Inspection, do: Run, code: int = 3) -> AsyncGenerator[str]:
    """What a call is told whose server leaves. Then every conversation knows it."""
    with pytest.raises(PeerGone) as told:
        await do(inspection, "tools.call", tool="leave", arguments={"code": code})
    await until(lambda: all(each.state == "exited" for each in inspection.connections.values()))
    yield told.value.message


async def test_both_eras_talk_to_one_process(fragile: Inspection, do: Run):
    for era in ("stateless", "handshake"):
        done = await do(fragile, "tools.call", era=era, tool="add", arguments={"a": 1, "b": 2})
        assert done["result"]["content"][0]["text"] == "3"
    # It starts in half the time without what only the inspector needs.
    done = await do(fragile, "tools.call", tool="loads", arguments={"module": "defserve.inspector.inspection"})
    assert done["result"]["content"][0]["text"] == "false"
    async with crashed(fragile, do):
        assert {each.state for each in fragile.connections.values()} == {"exited"}


async def test_a_crash_ends_running_calls_and_says_how_with_the_last_lines(fragile: Inspection, do: Run):
    resting = asyncio.ensure_future(do(fragile, "tools.call", tool="rest", arguments={}))
    await until(lambda: any(entry.about == "rest" for entry in fragile.recorder.get_messages(0, 99)))
    async with crashed(fragile, do) as told:
        assert told == "fragile.py exited with 3"
    with pytest.raises(PeerGone, match="exited with 3"):
        await resting
    (connection,) = fragile.hello()["connections"]
    assert (connection["state"], connection["message"], "next" in connection) == ("exited", told, False)
    assert (connection["exit"]["code"], connection["exit"]["started"]) == (3, True)
    printed, warned = connection["exit"]["lines"][-2:]
    assert printed == "printed on the way"
    assert "abcdefghij" not in warned and "\x1b" not in warned and "red" in warned


async def test_it_is_started_again_by_hand_and_what_was_recorded_stays(fragile: Inspection, do: Run):
    async with crashed(fragile, do):
        with pytest.raises(PeerGone, match="exited with 3"):
            await do(fragile, "tools.call", tool="add", arguments={"a": 1, "b": 2})
    before = fragile.recorder.count
    await do(fragile, "connection.restart")
    assert (await do(fragile, "tools.call", tool="add", arguments={"a": 1, "b": 2}))["state"] == "done"
    assert fragile.recorder.count > before > 3


async def test_a_server_that_hangs_is_ended_and_started_again(fragile: Inspection, do: Run):
    await do(fragile, "tools.list")
    hanging = asyncio.ensure_future(do(fragile, "tools.call", tool="hang", arguments={}))
    await until(lambda: any(entry.about == "hang" for entry in fragile.recorder.get_messages(0, 99)))
    await do(fragile, "connection.restart")
    with pytest.raises(PeerGone, match=r"fragile\.py was ended"):
        await hanging
    assert (await do(fragile, "tools.call", tool="add", arguments={"a": 1, "b": 2}))["state"] == "done"


async def test_what_the_code_prints_is_no_message_and_it_has_nothing_to_read(fragile: Inspection, do: Run):
    done = await do(fragile, "tools.call", tool="flood", arguments={})
    assert done["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import os\nos._exit(4)\n", None),
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        (f"{HEAD}\nraise ValueError('not today')\n", "ValueError: not today"),
        ("x = 1\n", None),
    ],
)
async def test_a_server_that_does_not_start_says_why_once(
    tmp_path: Path, do: Run, source: str, line: str | None, monkeypatch: pytest.MonkeyPatch
):
    starts = list[str]()
    start = target_process.ProcessRun.start

    async def count(*given: Any) -> Any:
        starts.append(given[0])
        return await start(*given)

    monkeypatch.setattr(target_process.ProcessRun, "start", count)
    async with inspect(tmp_path / "bad.py", source) as inspection:
        with pytest.raises(PeerGone, match=r"bad\.py exited with [14]"):
            await do(inspection, "tools.list")
        (connection,) = inspection.hello()["connections"]
        assert connection["state"] == "exited" and connection["exit"]["started"] is False
        assert line is None or connection["exit"]["lines"][-1] == line
        # The author's file is named, and none of ours.
        assert "defserve/inspector" not in "\n".join(connection["exit"]["lines"])
        (tmp_path / "bad.py").write_text(FRAGILE)
        quick_python(monkeypatch)
        await do(inspection, "connection.restart")
        assert len((await do(inspection, "tools.list"))["tools"]) == 7
    assert len(starts) == 2


async def test_a_server_that_hangs_while_it_is_loaded_is_given_up(
    tmp_path: Path, do: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(target_process, "START_SECONDS", 0.5)
    async with inspect(tmp_path / "slow.py", "import time\ntime.sleep(3600)\n") as inspection:
        with pytest.raises(PeerGone, match="did not start within"):
            await do(inspection, "tools.list")


async def test_who_may_call_is_asked_where_the_server_is(fragile: Inspection, do: Run):
    await do(fragile, "tools.list")
    assert (await do(fragile, "security.overview"))["explains"]
    assert (await do(fragile, "security.why", caller="pipe", tool="add"))["would_run"]
    with pytest.raises(UsageError):
        await do(fragile, "security.why", caller="nobody", tool="add")
    async with crashed(fragile, do):
        with pytest.raises(PeerGone, match="does not run"):
            await do(fragile, "security.why", caller="pipe", tool="add")


@pytest.mark.usefixtures("forked")
async def test_its_audit_log_is_read_and_verified_where_it_is(tmp_path: Path, do: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEFSERVE_AUDIT_KEY", "a key that only the tests have")
    source = HEAD.replace('"1")', f'"1", audit={str(tmp_path / "a.jsonl")!r})')
    async with inspect(tmp_path / "audited.py", source) as inspection:
        await do(inspection, "tools.call", tool="add", arguments={"a": 1, "b": 2})
        found = await do(inspection, "security.audit")
        assert found["log"]["name"] == "a.jsonl" and found["log"]["lines"] and found["remote"] is False
        assert (await do(inspection, "security.verify"))["ok"]


@pytest.mark.usefixtures("forked")
async def test_its_checkpoints_are_read_where_they_are_kept(tmp_path: Path, do: Run):
    source = (Path(__file__).parents[2] / "examples" / "git_like.py").read_text()
    async with inspect(tmp_path / "git_like.py", source) as inspection:
        await do(inspection, "tools.list")
        find = inspection.target.stored
        assert find is not None and find("other") is None
        state = find("git.commit")
        assert state is not None
        assert state.facts == {"store": "memory", "keep": 1000, "undoes": True, "opaque": True}
        assert await state.list_owners("git.commit") == []
        assert (await do(inspection, "state.sets"))["sets"]


@pytest.mark.usefixtures("forked")
async def test_a_report_that_is_too_long_does_not_end_the_server(
    tmp_path: Path, do: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(child_process, "MAX_MESSAGE_BYTES", 100_000)
    source = (Path(__file__).parents[2] / "examples" / "notes.py").read_text()
    async with inspect(tmp_path / "notes.py", source) as inspection:
        process = inspection.target.process
        assert process is not None
        await do(inspection, "tools.list")
        with pytest.raises(UsageError, match="too long"):
            await process.ask("why", ["é" * 60_000, "add", []])
        assert (await do(inspection, "tools.list"))["tools"]


class BrokenLink:
    """The pipe to a process that has just ended: writing finds out before reading does."""

    returncode = 3

    def __init__(self) -> None:
        self.was_written = asyncio.Event()

    async def send(self, message: bytes) -> None:
        self.was_written.set()
        raise PeerGone("/usr/bin/python exited with code 3; its last words:\noops")

    async def receive(self) -> bytes | None:
        await self.was_written.wait()
        return None

    async def aclose(self) -> None:
        pass


async def test_a_call_that_finds_the_process_ended_says_it_in_the_same_words():
    run = target_process.ProcessRun("folder/fragile.py", lambda reason: None)
    run._link = BrokenLink()
    run._reading = asyncio.create_task(run._read())
    with pytest.raises(PeerGone, match=r"^fragile.py exited with 3$"):
        await run.ask("who", [])


def test_exit_codes_are_told_in_words():
    told = [describe_exit_code(code) for code in (0, 3, -11, -9, None)]
    assert told == [
        "exited with 0",
        "exited with 3",
        "was killed by SIGSEGV",
        "was killed by SIGKILL",
        "closed its output",
    ]
    assert describe_exit_code(-250) == "was killed by signal 250" or sys.platform == "win32"


SLOW = f"""{HEAD}
from typing import Annotated
from defserve import Depends


async def open_database():
    yield "db"


@server.tool
async def find(word: str, db: Annotated[str, Depends(open_database)]) -> str:
    return word


@server.tool
async def fail() -> str:
    raise ValueError("no")
"""


@pytest.mark.usefixtures("forked")
async def test_a_call_has_the_stages_that_its_process_measured_inside_of_the_round_trip(tmp_path: Path, do: Run):
    async with inspect(tmp_path / "slow.py", SLOW) as inspection:
        for era in ("stateless", "handshake"):
            done = await do(inspection, "tools.call", era=era, tool="find", arguments={"word": "a"})
            waterfall = done["waterfall"]
            titles = [stage["title"] for stage in waterfall["stages"]]
            assert (titles[0], titles[-1]) == ("to the server", "back from the server")
            inside = ("arguments", "set-up: open_database", "find", "tear-down: open_database", "packing the result")
            assert [title for title in titles if title in inside] == list(inside)
            assert waterfall["ms"] == pytest.approx(done["ms"], abs=0.1) and "note" not in waterfall


@pytest.mark.usefixtures("forked")
async def test_a_call_that_fails_shows_where(tmp_path: Path, do: Run):
    async with inspect(tmp_path / "slow.py", SLOW) as inspection:
        for tool, arguments, stage in (("fail", {}, "fail"), ("find", {"word": 1}, "arguments")):
            parts = list[Any]()
            done: Any = {}
            with suppress(DefserveError):
                done = await do(inspection, "tools.call", parts, tool=tool, arguments=arguments)
            waterfall = done.get("waterfall") or parts[-1]["waterfall"]
            assert [each["title"] for each in waterfall["stages"] if each.get("failed")] == [stage]


@pytest.mark.usefixtures("forked")
async def test_the_waterfall_stays_with_the_call_and_its_request(tmp_path: Path, do: Run):
    async with inspect(tmp_path / "slow.py", SLOW) as inspection:
        done = await do(inspection, "tools.call", tool="find", arguments={"word": "a"})
        again = await do(inspection, "tools.follow", call=1)
        request = inspection.recorder.find_request(done["request"])
        assert request is not None
        shown = inspection.recorder.describe_message(request.seq)
        assert shown is not None and shown["waterfall"] == again["waterfall"] == done["waterfall"]
        # Nothing of it went over the protocol.
        answer = inspection.recorder.get_body(request.of or 0) or b""
        assert b"packing the result" not in answer and b"waterfall" not in answer


@pytest.mark.usefixtures("forked")
async def test_a_process_that_reports_nonsense_as_stages_is_not_believed(tmp_path: Path, do: Run):
    source = f"""{HEAD}

@server.tool
def lie() -> str:
    from defserve.inspector import call_timer
    from defserve.inspector.waterfalls import Waterfall
    Waterfall.to_wire = lambda self: {{"ms": "x", "stages": [1] * 9}}
    return "done"
"""
    async with inspect(tmp_path / "liar.py", source) as inspection:
        done = await do(inspection, "tools.call", tool="lie", arguments={})
        assert done["state"] == "done" and done["waterfall"]["note"] == NOT_MEASURED_NOTE
