from __future__ import annotations

import asyncio
import errno
import sys
from pathlib import Path

import anyio
import pytest

from defserve.client import Answers, Client
from defserve.client.links import child_process
from defserve.client.links.stdio import ProcessLink
from defserve.errors import PeerError, PeerGone, PeerTimeout
from tests.effort import slow
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

OFFICIAL = Path(__file__).with_name("official_server.py")


async def python(code: str, **options: object) -> ProcessLink:
    return await ProcessLink.spawn(sys.executable, ["-c", code], **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("version", [None, slow("2024-11-05"), "2025-11-25", slow("2026-07-28")])
async def test_the_official_server_is_understood(version: str | None):
    steps: list[float] = []
    logs: list[object] = []
    link = await ProcessLink.spawn(sys.executable, [str(OFFICIAL)])
    answers = Answers(ask=lambda message, schema: {"name": "Ann"})
    async with Client(link, version=version, answers=answers, on_log=logs.append, timeout=20) as client:
        assert client.version == (version or "2026-07-28")
        assert (await client.call("add", a=1, b=2)) == {"result": 3}
        await client.call_raw("work", on_progress=lambda progress, total, message: steps.append(progress))
        assert steps == [0, 1, 2]
        assert [log["data"] for log in logs] == ["hello"]  # type: ignore[index]
        assert await client.call("greet") == {"result": "hello Ann"}
        assert await client.read_text("note://a") == "note a"
        assert (await client.prompt("hi", name="Bo"))["messages"][0]["content"]["text"] == "hi Bo"


async def test_a_process_that_has_no_descriptors_left_says_so(monkeypatch: pytest.MonkeyPatch):
    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("defserve.client.links.child_process.os.pipe", none_left)
    with pytest.raises(PeerGone, match="^cannot start 'server': Too many open files$"):
        await ProcessLink.spawn("server")


async def test_a_command_that_does_not_exist_is_named():
    with pytest.raises(PeerGone, match="cannot start 'no-such-command-here': No such file"):
        await ProcessLink.spawn("no-such-command-here")


@for_each_row(
    ("command", "folder", "advised"),
    [
        ("no-such-command-here", None, True),
        ("./no-such-command-here", None, False),
        ("python", "no/such/folder", False),
    ],
)
async def test_only_a_name_is_looked_for_on_the_path(command: str, folder: str | None, advised: bool):
    with pytest.raises(PeerGone) as caught:
        await ProcessLink.spawn(command, cwd=folder)
    assert ("put it on PATH" in str(caught.value)) is advised


async def test_a_command_line_and_a_script_are_told_from_a_program(tmp_path: Path):
    script = tmp_path / "notes.py"
    script.write_text("not executable")
    with pytest.raises(PeerGone, match="fix: give the program and its arguments one by one: 'python', 'notes.py'"):
        await ProcessLink.spawn("python notes.py")
    for named in ("notes.py", str(script)):
        with pytest.raises(PeerGone, match=f"fix: name the program that runs it: python {named}"):
            await ProcessLink.spawn(named)


async def test_a_server_that_dies_leaves_its_exit_code_and_last_words():
    link = await python("import sys; print('no database', file=sys.stderr); sys.exit(3)")
    with pytest.raises(PeerGone) as caught:
        async with Client(link, version="2025-11-25"):
            pass
    assert "exited with code 3" in str(caught.value)
    assert "no database" in str(caught.value)


@for_each_row(
    ("code", "said"),
    [("pass", True), ("import sys; print('made', file=sys.stderr)", True), ("print('{}')", False), ("exit(1)", False)],
)
async def test_a_file_that_forgets_to_serve_is_told_so(code: str, said: bool):
    link = await python(code)
    with pytest.raises(PeerGone) as caught:
        async with Client(link, version="2025-11-25"):
            pass
    assert ("it ended without serving; does the file end with server.main()?" in str(caught.value)) is said


async def test_only_the_last_words_are_kept():
    link = await python("import sys; [print('line', i, file=sys.stderr) for i in range(1000)]")
    with pytest.raises(PeerGone) as caught:
        while True:
            await link.receive()
    await link.aclose()
    assert "line 999" in str(caught.value)
    assert "line 979" not in str(caught.value)


async def test_stderr_is_passed_on_when_asked_for(capsys: pytest.CaptureFixture[str]):
    link = await python("import sys; print('hello there', file=sys.stderr)", echo=True)
    with pytest.raises(PeerGone):
        await link.receive()
    await link.aclose()
    assert "hello there" in capsys.readouterr().err


async def test_environment_and_folder_reach_the_process(tmp_path: Path):
    code = "import os, json; print(json.dumps([os.environ['GREETING'], os.getcwd(), 'PATH' in os.environ]))"
    link = await python(code, env={"GREETING": "hi"}, cwd=tmp_path)
    received = await link.receive()
    await link.aclose()
    assert received == f'["hi", "{tmp_path}", true]'.encode()


async def test_a_last_line_without_a_line_feed_is_received():
    link = await python("import sys; sys.stdout.write('{}')")
    assert await link.receive() == b"{}"
    await link.aclose()


async def test_a_server_that_ignores_its_closed_input_is_ended():
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('{}', flush=True)\n"
        "while True: time.sleep(1)"
    )
    link = await python(code, grace=0.05)
    assert await link.receive() == b"{}"
    await link.aclose()
    assert link.returncode == -9


async def test_a_server_that_ends_by_itself_is_not_killed():
    link = await python("import sys; sys.stdin.read()")
    await link.aclose()
    assert link.returncode == 0


async def test_a_server_that_talks_while_leaving_is_heard_out():
    link = await python("import sys; sys.stdin.read(); sys.stdout.write('x' * 1_000_000)")
    await link.aclose()
    assert link.returncode == 0


async def test_a_cancelled_client_still_sees_its_server_out():
    link = await python("import sys; sys.stdin.read()")
    with anyio.move_on_after(0.05):
        async with Client(link, version="2025-11-25"):
            pytest.fail("nobody answered")
    assert link.returncode == 0


async def test_closing_twice_is_harmless():
    link = await python("pass")
    await link.aclose()
    await link.aclose()
    assert link.returncode == 0


async def test_a_relative_program_is_another_target_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    targets: list[str] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        link = await ProcessLink.spawn(sys.executable, ["-c", "input()"])
        targets.append(link.target)
        await link.aclose()
    assert targets[0] != targets[1]


DEAF = """
import json, sys, time
said = json.loads(sys.stdin.readline())
agreed = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "deaf", "version": "1"}}
print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": agreed}), flush=True)
time.sleep(60)
"""


async def test_a_server_that_does_not_read_its_input_is_given_up_and_fills_no_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child_process, "MAX_UNREAD_INPUT_BYTES", 2_500_000)
    link = await ProcessLink.spawn(sys.executable, ["-c", DEAF], grace=0.1)
    async with Client(link, version="2025-11-25", timeout=0.2) as client, asyncio.timeout(20):
        with pytest.raises(PeerTimeout, match="did not take notifications/large within 0.2 s"):
            await client.notify("notifications/large", {"text": "x" * 1_000_000})
        with pytest.raises(PeerTimeout, match="no answer to tools/call"):
            await client.call("large", text="x" * 1_000_000)
        with pytest.raises(PeerTimeout):
            await client.call("large", text="x" * 1_000_000)
        for _ in range(3):
            with pytest.raises(PeerError, match="does not read its input: 2,...,... bytes wait for it"):
                await client.call("large", text="x" * 1_000_000)
