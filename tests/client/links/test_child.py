"""What a child process sees of us, and what we notice of it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from defserve.client import Client, ProcessLink
from defserve.client.conversation import ClientConversation
from defserve.client.link import ProgramMissing
from defserve.client.links import child_process as child_module
from defserve.client.links.child_process import bare_environment
from defserve.errors import PeerGone, PeerTimeout
from tests.waiting import is_running, until, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A server with mounted servers runs on uvloop."""
    if request.param:
        pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": request.param}


posix = pytest.mark.skipif(os.name != "posix", reason="processes of POSIX")


async def python(code: str, **options: Any) -> ProcessLink:
    return await ProcessLink.spawn(sys.executable, ["-c", textwrap.dedent(code)], **options)


# Its environment.


async def seen_by_child(**options: Any) -> dict[str, str]:
    link = await python("import os, json; print(json.dumps(dict(os.environ)))", **options)
    try:
        return json.loads(await link.receive() or b"")
    finally:
        await link.aclose()


async def test_a_bare_child_sees_what_it_is_given_and_little_else(monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "API_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "PYTHONPATH": "/secret", "LD_PRELOAD": "",
        "DEFSERVE_SECRET": "secret", "SSH_AUTH_SOCK": "/secret", "XPATH": "secret", "PATHS": "secret",
        "LC_TIME": "C", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "USER": "ann", "HOME": "/home/ann",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    seen = await seen_by_child(bare=True, env={"GIVEN": "yes", "LANG": "de_DE.UTF-8"})
    assert "secret" not in json.dumps(seen)
    assert seen["GIVEN"] == "yes"
    assert seen["LANG"] == "de_DE.UTF-8"
    assert seen["PATH"] == os.environ["PATH"]
    assert {"HOME", "USER", "TMPDIR", "LC_TIME"} <= set(seen)
    assert set(seen) <= {"PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "USER", "GIVEN"} | {
        name
        for name in seen
        if name.startswith(("LC_", "__"))  # macOS adds __CF_USER_TEXT_ENCODING
    }


async def test_a_bare_child_without_anything_given_is_bare_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_TOKEN", "secret")
    assert "API_TOKEN" not in await seen_by_child(bare=True)
    assert "API_TOKEN" in await seen_by_child()
    assert "API_TOKEN" in await seen_by_child(env={"A": "1"})


def test_on_windows_a_child_gets_what_programs_need_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(os, "environ", {"SYSTEMROOT": "C:\\Windows", "PATHEXT": ".EXE", "TOKEN": "secret", "HOME": "x"})
    assert bare_environment({"A": "1"}) == {"SYSTEMROOT": "C:\\Windows", "PATHEXT": ".EXE", "A": "1"}


async def test_the_path_of_a_bare_child_is_the_one_it_is_given(tmp_path: Path):
    program = tmp_path / "own-server"
    program.write_text("#!/bin/sh\necho '{}'\n")
    program.chmod(0o755)
    for ends_with_us in (False, True):
        link = await ProcessLink.spawn("own-server", bare=True, env={"PATH": str(tmp_path)}, ends_with_us=ends_with_us)
        assert await link.receive() == b"{}"
        await link.aclose()
        with pytest.raises(PeerGone, match="cannot start 'own-server': No such file"):
            await ProcessLink.spawn("own-server", bare=True, ends_with_us=ends_with_us)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvloop cuts such texts
@pytest.mark.parametrize("ends_with_us", [False, True])
async def test_what_no_process_can_be_given_is_told_as_a_start_that_is_impossible(
    ends_with_us: bool, anyio_backend: str
):
    wrong: list[dict[str, Any]] = [{"env": {"A": "x\0y"}}, {"env": {"A=B": "x"}}, {"args": ["\0"]}, {"cwd": "a\0b"}]
    for given in wrong:
        with pytest.raises(ProgramMissing, match="no process can be given its words or variables"):
            await ProcessLink.spawn(sys.executable, bare=True, ends_with_us=ends_with_us, **given)


async def test_a_folder_that_is_missing_is_named_instead_of_the_program(tmp_path: Path):
    for cwd in (tmp_path / "none", Path(__file__)):
        with pytest.raises(PeerGone, match=f"there is no folder '{cwd}'"):
            await ProcessLink.spawn(sys.executable, cwd=cwd)


# Its stderr.


async def test_stderr_is_told_line_by_line(capsys: pytest.CaptureFixture[str]):
    told: list[str] = []
    link = await python(
        """
        import sys
        for part in ("one\\ntw", "o\\n", "\\n", "x" * 100_000 + "\\n", "ü\\n", "end"):
            sys.stderr.buffer.write(part.encode()); sys.stderr.buffer.flush()
        """,
        on_stderr=told.append,
    )
    with pytest.raises(PeerGone, match="end"):
        await link.receive()
    assert told == ["one", "two", "ü", "end"]
    await link.aclose()
    assert capsys.readouterr().err == ""


async def test_a_handler_of_stderr_that_fails_harms_nothing():
    def fail(line: str) -> None:
        raise RuntimeError(line)

    link = await python("import sys; print('x', file=sys.stderr, flush=True); print('{}')", on_stderr=fail)
    assert await link.receive() == b"{}"
    await link.aclose()


async def test_of_too_many_lines_on_stderr_the_newest_are_told_and_the_rest_is_counted():
    told: list[str] = []
    code = "import sys; sys.stderr.write(''.join(f'{n}\\n' for n in range(60_000)))"
    link = await python(code, on_stderr=told.append)
    with pytest.raises(PeerGone, match="59999"):
        await link.receive()
    await link.aclose()
    lines = [line for line in told if line.isdigit()]
    left_out = [line for line in told if not line.isdigit()]
    assert all("lines were left out: it writes too many at once" in line for line in left_out)
    assert lines == sorted(lines, key=int)
    assert lines[-500:] == [str(n) for n in range(59_500, 60_000)]
    assert len(lines) + sum(int(line.split()[1].replace(",", "")) for line in left_out) == 60_000
    assert len(lines) < 20_000


async def test_a_burst_of_lines_on_stderr_is_told_whole():
    told: list[str] = []
    code = "import sys; sys.stderr.write(''.join(f'{n}\\n' for n in range(900))); sys.stderr.flush(); input()"
    link = await python(code, on_stderr=told.append)
    await until(lambda: len(told) == 900)
    assert told == [str(n) for n in range(900)]
    await link.aclose()


# Its output.


@asynccontextmanager
async def child_that_runs(code: str) -> AsyncGenerator[child_module.ChildProcess]:
    child = await child_module.ChildProcess.start(child_module.ChildProcessOptions(sys.executable, ("-c", code)))
    try:
        yield child
    finally:
        child.signal(signal.SIGTERM)
        await child.exited
        child.release()


@posix
@pytest.mark.parametrize("exits", [False, True])
async def test_a_child_that_says_much_leaves_turns_to_others_and_nothing_is_lost(
    exits: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(child_module, "LATE_OUTPUT_SECONDS", 0.01)
    taken: list[bytes] = []
    ended: list[bytes] = []
    turns: Counter[int] = Counter()
    turn = 0

    def take(line: bytes) -> None:
        taken.append(line)
        turns[turn] += 1
        time.sleep(0.0002)

    last = "print('{end}', end='')" if exits else "print('{end}', flush=True); input()"
    async with child_that_runs(f"[print('{{%d}}' % n) for n in range(3_000)]; {last}") as child:
        child.push(take, lambda: ended.append(taken[-1]))
        async with asyncio.timeout(60):
            while not ended if exits else len(taken) < 3_001:
                turn += 1
                await asyncio.sleep(0)
        assert taken == [*(b"{%d}" % n for n in range(3_000)), b"{end}"]
        assert ended == [b"{end}"] * exits
        assert max(turns.values()) < 100


@posix
async def test_blank_lines_leave_turns_to_others():
    taken: list[bytes] = []
    turn = 0
    code = "import os; [os.write(1, b'\\n' * 65_536) for _ in range(4)]; os.write(1, b'{}\\n'); input()"
    async with child_that_runs(code) as child:
        cut: list[int] = []
        feed = child._lines.feed
        child._lines = cast(
            "Any", SimpleNamespace(feed=lambda data: cut.append(turn) or feed(data), take_single_line=lambda data: None)
        )
        child.push(taken.append, lambda: None)
        async with asyncio.timeout(60):
            while not taken:
                turn += 1
                await asyncio.sleep(0)
    assert len(set(cut)) > 10


# Its exit.


async def test_an_exit_is_noticed_though_a_grandchild_holds_the_pipes(tmp_path: Path):
    link = await python(
        f"""
        import subprocess, sys
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(sleeper.pid))
        print("{{}}", flush=True)
        sys.exit(7)
        """
    )
    assert await link.receive() == b"{}"
    async with asyncio.timeout(20):
        with pytest.raises(PeerGone, match="exited with code 7"):
            await link.receive()
        assert await link.wait() == 7
    async with asyncio.timeout(20):
        await link.aclose()
    await until(lambda: not is_running(int((tmp_path / "pid").read_text())))


@posix
@pytest.mark.parametrize("is_deaf", [False, True])
async def test_what_a_child_leaves_behind_ends_with_it(tmp_path: Path, is_deaf: bool):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    left = deaf if is_deaf else "import time; print(1, flush=True); time.sleep(600)"
    link = await python(
        f"""
        import subprocess, sys
        sleeper = subprocess.Popen([sys.executable, "-c", {left!r}], stdout=subprocess.PIPE)
        sleeper.stdout.readline()
        open({str(tmp_path / "pid")!r}, "w").write(str(sleeper.pid))
        print("{{}}", flush=True)
        sys.stdin.read()
        """
    )
    assert await link.receive() == b"{}"
    sleeper = int((tmp_path / "pid").read_text())
    assert is_running(sleeper)
    await link.aclose()
    assert link.returncode == 0
    await until(lambda: not is_running(sleeper))


async def test_all_that_was_written_before_an_exit_is_received():
    link = await python("import sys; [print('{\"n\":%d}' % n) for n in range(20_000)]; sys.exit(0)")
    got = 0
    with pytest.raises(PeerGone, match="code 0"):
        while True:
            await link.receive()
            got += 1
    assert got == 20_000
    await link.aclose()


async def test_a_conversation_learns_of_an_exit_without_asking():
    server = """
        import json, sys
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["method"] == "initialize":
                about = {"serverInfo": {"name": "x", "version": "1"}, "capabilities": {}}
                result = {"protocolVersion": "2025-11-25", **about}
                print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
            elif asked["method"] == "notifications/initialized":
                sys.exit("the disk is full")
    """
    async with Client(await python(server), version="2025-11-25", timeout=30) as client:
        with pytest.raises(PeerGone, match="(?s)code 1.*the disk is full"):
            async with client.listen(tools=True) as news:
                await anext(news)
        with pytest.raises(PeerGone, match="the disk is full"):
            await client.ping()


async def test_a_child_that_nobody_listens_to_has_to_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child_module, "MAX_READY_BYTES", 10_000)
    link = await python("while True: print('x' * 1000)", grace=0.05)
    child = link._child
    await until(lambda: child._ready_size > 10_000)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert child._ready_size < 10_000 + 200_000
    for _ in range(2000):
        assert await link.receive() == b"x" * 1000
    await link.aclose()


async def test_a_child_that_reads_nothing_makes_us_wait_and_still_ends():
    link = await python("import time; time.sleep(600)", grace=0.05)
    async with asyncio.timeout(20):
        sending = asyncio.create_task(link.send(b"x" * 5_000_000))
        await until(lambda: link._child._writable is not None)
        assert not sending.done()
        await link.aclose()
        with pytest.raises(PeerGone):
            await sending


@posix
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_a_child_ends_with_us_even_if_we_are_killed(tmp_path: Path):
    """It ignores the end of its input and every signal that can be ignored."""
    code = textwrap.dedent(
        """
        import asyncio, sys
        from defserve.client import ProcessLink

        STUBBORN = ["import os, signal, time", "signal.signal(15, signal.SIG_IGN)", "print(os.getpid(), flush=True)"]

        async def main():
            code = ";".join([*STUBBORN, "time.sleep(600)"])
            link = await ProcessLink.spawn(sys.executable, ["-c", code], ends_with_us=True)
            print((await link.receive()).decode(), flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        # A zombie has ended; whoever reaps orphans may be slow.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_deadline_passes_though_the_child_reads_nothing():
    async def nothing(request: Any) -> Any:
        return {}

    link = await python("import time; time.sleep(600)", grace=0.05)
    conversation = ClientConversation(
        link, on_request=nothing, on_notification=lambda *_: None, on_gone=lambda gone: None
    )
    conversation.start()
    async with asyncio.timeout(20):
        with pytest.raises(PeerTimeout):
            await conversation.request("x/y", {"large": "x" * 5_000_000}, within=0.05, cancellable=False)
        await conversation.aclose()


@pytest.mark.slow
@posix
async def test_a_child_that_is_gone_at_once_is_started_and_said_to_be_gone():
    for _ in range(20):
        link = await ProcessLink.spawn("/bin/sh", ["-c", "echo '{}'; exit 3"])
        assert await link.receive() == b"{}"
        with pytest.raises(PeerGone, match="exited with code 3"):
            await link.receive()
        await link.aclose()


@posix
async def test_a_message_is_taken_in_the_turn_in_which_it_is_found():
    if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        pytest.skip("its turns are others")
    says = ("-c", "import os; os.write(1, b'{}\\n')")
    child = await child_module.ChildProcess.start(child_module.ChildProcessOptions(sys.executable, says))
    taken: list[bytes] = []
    child.push(taken.append, lambda: None)
    pipe = child._stdout.get_extra_info("pipe")  # pyright: ignore[reportPrivateUsage]
    while not select.select([pipe], [], [], 30)[0]:
        pass
    await asyncio.sleep(0)  # in this turn it is found
    await asyncio.sleep(0)
    assert taken == [b"{}"]
    await child.exited
    child.release()


@posix
async def test_a_child_leaves_no_descriptor_whether_it_starts_or_not():
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    link = await python("input()")  # what the loop itself keeps open for processes is open now
    await link.aclose()
    before = count()
    for _ in range(3):
        with pytest.raises(PeerGone):
            await ProcessLink.spawn("/no/such/program")
        link = await python("input()")
        await link.aclose()
    await until(lambda: count() <= before)
