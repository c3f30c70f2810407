"""The process as its parent sees it: what is on which stream, how it ends and how fast."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.effort import thinned
from tests.serve.processes import FRAMEWORK, ServerProcess, write_script

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes and signals")

Start = Callable[..., ServerProcess]

PROMPTLY = 10.0
"""What must happen within a second has ten on a busy machine; what it must not wait for takes twenty or more."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def start(source: str, **options: Any) -> ServerProcess:
        started.append(ServerProcess(tmp_path, source, **options))
        return started[-1]

    yield start
    for process in started:
        process.__exit__(None, None, None)


SLEEPERS = """
server = Server("sleepers")

@server.tool
def sync_sleep(seconds: float = 30) -> str:
    tell("sleeping")
    time.sleep(seconds)
    return "slept"

@server.tool
async def async_sleep(seconds: float = 30) -> str:
    tell("sleeping")
    await asyncio.sleep(seconds)
    return "slept"

@server.tool
async def stubborn(seconds: float = 30) -> str:
    tell("sleeping")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(end - time.monotonic())
        except asyncio.CancelledError:
            pass
    return "slept"

@server.tool
async def borrowed_thread(seconds: float = 30) -> str:
    tell("sleeping")
    await asyncio.to_thread(time.sleep, seconds)
    return "slept"

@server.tool
async def anyio_thread(seconds: float = 30) -> str:
    import anyio.to_thread
    tell("sleeping")
    await anyio.to_thread.run_sync(time.sleep, seconds)
    return "slept"

@server.tool
def printing() -> str:
    tell("sleeping")
    while True:
        print("still here", file=sys.stderr)
"""

# -- stdout ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.req("MCP-3.1")
def test_stdout_carries_the_protocol_and_everything_else_goes_to_stderr(start: Start):
    source = """
    print("python before")
    server = Server("noisy")

    @server.tool
    def noise() -> str:
        print("python print")
        os.write(1, b"raw descriptor\\n")
        libc = ctypes.CDLL(None)
        libc.puts(b"c puts, buffered")
        subprocess.run(["sh", "-c", "echo child process; cat"], check=True)
        return "done"
    """
    server = start(source, fresh=True).open()
    server.call(1, "noise")
    assert server.text(1) == "done"
    server.end()
    assert server.rest(1) == []
    heard = b"\n".join(server.rest(2)).decode()
    for text in ("python before", "python print", "raw descriptor", "c puts, buffered", "child process"):
        assert text in heard
    assert server.exit_code() == 0


@pytest.mark.req("MCP-3.1")
def test_every_line_of_stdout_is_one_message_whatever_the_text(start: Start):
    server = start("""
    server = Server("lines")

    @server.tool
    def echo(text: str) -> str:
        return text
    """).open()
    text = "a\nb\r\n\u2028\x00é\t"
    server.call(1, "echo", text=text)
    assert server.text(1) == text


# -- the end of input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tool", ["sync_sleep", "async_sleep", "stubborn", "borrowed_thread", "anyio_thread", "printing"]
)
def test_the_end_of_input_ends_the_process_whatever_a_tool_does(tool: str, start: Start):
    server = start(SLEEPERS).open()
    server.call(1, tool)
    server.wait_for("sleeping")
    server.end()
    drained = threading.Thread(target=server.rest, args=(2,))
    drained.start()
    assert server.seconds_to_exit() < PROMPTLY
    drained.join()
    assert server.exit_code() == 0


@pytest.mark.parametrize("opened", [False, True])
def test_the_end_of_input_ends_an_idle_process(opened: bool, start: Start):
    server = start(SLEEPERS)
    if opened:
        server.open()
    server.end()
    assert (server.exit_code(), server.rest(1), server.rest(2)) == (0, [], [])


def test_what_was_asked_before_the_end_of_input_is_answered(start: Start):
    server = start(SLEEPERS).open()
    server.call(1, "async_sleep", seconds=0.05)
    server.end()
    assert server.text(1) == "slept"
    assert server.exit_code() == 0


def test_a_call_that_outlives_its_peer_is_told_that_the_server_ends(start: Start):
    server = start(SLEEPERS).open()
    server.call(1, "async_sleep")
    server.end()
    assert "shutting down" in server.text(1)
    assert server.exit_code() == 0


def test_a_large_answer_is_written_whole_to_a_peer_that_closed_its_end(start: Start):
    server = start("""
    server = Server("large")

    @server.tool(inline=True)
    def large() -> str:
        return "x" * 3_000_000
    """).open()
    server.call(1, "large")
    server.end()
    assert len(server.text(1)) == 3_000_000
    assert server.exit_code() == 0


def test_half_a_line_and_the_end_of_input_is_a_clean_exit(start: Start):
    server = start(SLEEPERS)
    server.write(b'{"jsonrpc":"2.0","id":1,"meth')
    server.end()
    assert [json.loads(line)["error"]["code"] for line in server.rest(1)] == [-32700]
    assert (server.exit_code(), server.rest(2)) == (0, [])


def test_a_last_line_without_its_line_feed_is_a_message(start: Start):
    server = start(SLEEPERS)
    server.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    server.end()
    assert [json.loads(line)["id"] for line in server.rest(1)] == [1]
    assert server.exit_code() == 0


# -- other standard inputs and outputs ---------------------------------------------------------------------


def test_a_file_can_be_standard_input(start: Start, tmp_path: Path):
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages = [{"id": "open", "method": "initialize", "params": about}]
    call = {"name": "sync_sleep", "arguments": {"seconds": 0}}
    messages += [{"id": id, "method": "tools/call", "params": call} for id in range(20)]
    # More than a pipe or a read would hold.
    messages += [{"id": f"p{id}", "method": "ping", "params": {"pad": "x" * 1000}} for id in range(500)]
    file = tmp_path / "requests"
    file.write_text("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
    with file.open() as stdin:
        server = start(SLEEPERS, stdin=stdin)
    answers = [json.loads(line) for line in server.rest(1)]
    assert {answer["id"] for answer in answers} == {message["id"] for message in messages}
    assert all("result" in answer for answer in answers) and server.exit_code() == 0


def test_nothing_as_standard_input_is_a_clean_exit(start: Start):
    server = start(SLEEPERS, stdin=subprocess.DEVNULL)
    assert (server.exit_code(), server.rest(1), server.rest(2)) == (0, [], [])


LIFESPAN = """
@asynccontextmanager
async def life(server):
    tell("begin")
    yield "value"
    tell("end")
server = Server("alive", lifespan=life)
"""


REDIRECTIONS = ["<&-", "<&- >&-", "<&- >&- 2>&-", "</dev/null >&-", "</dev/null 2>&-"]


@pytest.mark.slow
@pytest.mark.parametrize("redirection", thinned(REDIRECTIONS, 2))
@pytest.mark.parametrize("source", [SLEEPERS, LIFESPAN], ids=["plain", "lifespan"])
def test_streams_that_are_closed_from_the_start_are_at_their_end(redirection: str, source: str, tmp_path: Path):
    script = write_script(tmp_path, source)
    command = f'exec "{sys.executable}" "{script}" {redirection}'
    environment = {**os.environ, "PYTHONPATH": str(FRAMEWORK)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == (b"begin\nend\n" if source is LIFESPAN and "2>&-" not in redirection else b"")


@pytest.mark.parametrize("opened", [False, True])
def test_a_reader_that_closes_its_end_ends_the_process(opened: bool, start: Start):
    server = start(SLEEPERS)
    if opened:
        server.open()
        server.call(1, "async_sleep", seconds=0)
        assert server.text(1) == "slept"
    server.process.stdout.close()  # pyright: ignore
    server.ask(2, "ping")
    assert server.exit_code() == 0
    assert b"Traceback" not in b"".join(server.rest(2))


def test_a_peer_that_does_not_read_is_not_read_from_until_it_does(start: Start):
    server = start("""
    server = Server("large", limits=Limits(in_flight=1000))

    @server.tool(inline=True)
    def large(pad: str) -> str:
        return "x" * 100_000
    """).open()
    calls = 300
    params = {"name": "large", "arguments": {"pad": "p" * 4000}}
    messages = [{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params} for id in range(calls)]
    data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    assert server.process.stdin is not None
    os.set_blocking(server.process.stdin.fileno(), False)
    written = 0
    while select.select([], [server.process.stdin], [], 1.0)[1]:
        written += os.write(server.process.stdin.fileno(), data[written:])
        assert written < len(data), "it took all that was asked, and 30 MB of answers wait in its memory"
    os.set_blocking(server.process.stdin.fileno(), True)
    threading.Thread(target=server.write, args=(data[written:],), daemon=True).start()
    assert [server.read()["id"] for _ in range(calls)] == list(range(calls))
    server.ask("after", "ping")
    assert server.read()["id"] == "after"


# -- signals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", [None, "idle", "sync_sleep", "async_sleep"])
def test_one_interrupt_ends_it_quietly(tool: str | None, start: Start):
    server = start("tell('up')\n" + SLEEPERS)
    server.wait_for("up")
    if tool is not None:
        server.open()
        if tool == "idle":
            server.call(1, "async_sleep", seconds=0)
            assert server.text(1) == "slept"
        else:
            server.call(1, tool)
        server.wait_for("sleeping")
    else:
        server.ask(1, "ping")  # so that it serves already
        assert server.read()["id"] == 1
    server.signal(signal.SIGINT)
    assert server.seconds_to_exit() < PROMPTLY
    assert (server.exit_code(), server.rest(1), server.rest(2)) == (130, [], [])


def test_an_interrupt_before_the_first_message_ends_it_quietly(start: Start):
    server = start("""
    server = Server("quiet")
    import defserve.serve.stdio as serving
    read_now = serving.StdioTransport.read_now
    def read(self, patience):
        tell("reading")
        return read_now(self, patience)
    serving.StdioTransport.read_now = read
    """)
    server.wait_for("reading")
    server.signal(signal.SIGINT)
    assert (server.exit_code(), server.rest(1), server.rest(2)) == (130, [], [])


DRAINING = """
@asynccontextmanager
async def life(server):
    yield
    tell("cleaning up")
    await asyncio.sleep(CLEAN)
    tell("cleaned up")
server = Server("draining", lifespan=life, limits=Limits(drain=DRAIN))

@server.tool
def sync_sleep(seconds: float) -> str:
    tell("sleeping")
    time.sleep(seconds)
    return "slept"

@server.tool
async def async_sleep(seconds: float) -> str:
    tell("sleeping")
    await asyncio.sleep(seconds)
    return "slept"
"""


def draining(drain: float = 20, clean: float = 0) -> str:
    return DRAINING.replace("DRAIN", str(drain)).replace("CLEAN", str(clean))


@pytest.mark.parametrize("tool", ["sync_sleep", "async_sleep"])
def test_a_termination_lets_calls_finish_refuses_new_ones_and_cleans_up(tool: str, start: Start):
    server = start(draining()).open()
    server.call(1, tool, seconds=0.5)
    server.wait_for("sleeping")
    server.signal(signal.SIGTERM)
    refused: list[Any] = []
    while not refused:  # the signal takes its time to arrive
        server.ask("ping", "ping")
        server.call("new", "async_sleep", seconds=0.001)
        refused = [reply for reply in (server.read(), server.read()) if "shutting down" in json.dumps(reply)]
    assert refused[0]["id"] == "new" and refused[0]["result"]["isError"]
    lines = [json.loads(line) for line in server.rest(1)]
    assert [line["result"]["content"][0]["text"] for line in lines if line["id"] == 1] == ["slept"]
    server.wait_for("cleaned up")
    assert server.exit_code() == 0


def test_an_idle_process_ends_at_a_termination(start: Start):
    server = start(SLEEPERS).open()
    server.call(1, "async_sleep", seconds=0)
    assert server.text(1) == "slept"
    server.signal(signal.SIGTERM)
    assert server.seconds_to_exit() < PROMPTLY and server.exit_code() == 0


@pytest.mark.parametrize("tool", ["sync_sleep", "async_sleep"])
def test_a_drain_is_bounded_and_what_did_not_finish_is_told(tool: str, start: Start):
    server = start(draining(drain=0.3)).open()
    server.call(1, tool, seconds=30)
    server.wait_for("sleeping")
    server.signal(signal.SIGTERM)
    assert "shutting down" in server.text(1)
    server.wait_for("cleaned up")
    assert server.seconds_to_exit() < PROMPTLY and server.exit_code() == 0


def test_a_second_termination_ends_the_drain_at_once(start: Start):
    server = start(draining()).open()
    server.call(1, "async_sleep", seconds=30)
    server.wait_for("sleeping")
    server.signal(signal.SIGTERM)
    while True:
        server.call("new", "async_sleep", seconds=0.001)
        if "shutting down" in server.text("new"):
            break
    server.signal(signal.SIGTERM)
    assert server.seconds_to_exit() < PROMPTLY and server.exit_code() == 0
    server.wait_for("cleaned up")


def test_a_second_signal_cuts_a_hanging_clean_up_short(start: Start):
    server = start(draining(clean=30)).open()
    server.signal(signal.SIGTERM)
    server.wait_for("cleaning up")
    server.signal(signal.SIGTERM)
    assert server.seconds_to_exit() < PROMPTLY and server.exit_code() == 0


def test_a_clean_up_is_bounded(start: Start):
    server = start(draining(drain=0.3, clean=30)).open()
    server.end()
    assert server.seconds_to_exit() < PROMPTLY and server.exit_code() == 0


STUCK = """
@asynccontextmanager
async def life(server):
    if WHERE == "start":
        tell("stuck")
        time.sleep(30)
    yield
    while WHERE == "end":
        tell("stuck")
        try:
            await asyncio.sleep(30)
        except BaseException:
            pass
server = Server("stuck", lifespan=life, limits=Limits(drain=0.2))

@server.tool
async def block() -> None:
    tell("stuck")
    time.sleep(30)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.parametrize("where", ["start", "tool", "end"])
def test_a_signal_ends_a_process_whose_loop_is_stuck_in_its_code(
    where: str, number: signal.Signals, code: int, start: Start
):
    server = start(f"WHERE = {where!r}\n" + STUCK)
    if where != "start":
        server.open()
    if where == "tool":
        server.call(1, "block")
    if where != "end":
        server.wait_for("stuck")
    server.signal(number)
    assert server.seconds_to_exit() < 2 * PROMPTLY and server.exit_code() == code
    assert b"defserve: the event loop does not react; ended without it" in server.rest(2)


def test_a_clean_up_that_ignores_its_cancellation_does_not_keep_the_process(start: Start):
    server = start('WHERE = "end"\n' + STUCK).open()
    server.end()
    assert server.seconds_to_exit() < 2 * PROMPTLY and server.exit_code() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_during_start_up_ends_it(number: signal.Signals, code: int, start: Start):
    server = start("""
    @asynccontextmanager
    async def life(server):
        tell("starting")
        try:
            await asyncio.sleep(30)
            yield
        finally:
            tell("undone")
    server = Server("slow", lifespan=life)
    """)
    server.wait_for("starting")
    server.signal(number)
    assert server.exit_code() == code
    assert server.rest(2) == [b"undone"]


def test_a_start_up_that_hangs_does_not_outlive_its_peer(start: Start):
    server = start("""
    @asynccontextmanager
    async def life(server):
        tell("starting")
        await asyncio.sleep(30)
        yield
    server = Server("slow", lifespan=life, limits=Limits(drain=0.2))
    """)
    server.ask(1, "ping")
    server.wait_for("starting")
    server.end()
    assert server.seconds_to_exit() < PROMPTLY and server.exit_code() == 0


def test_what_a_peer_asked_before_it_left_is_answered_after_a_slow_start(start: Start):
    server = start("""
    @asynccontextmanager
    async def life(server):
        await asyncio.sleep(0.5)
        yield
    server = Server("slow", lifespan=life)
    """)
    server.ask(1, "ping")
    server.end()
    assert server.read()["id"] == 1
    assert server.exit_code() == 0


BREAKING = """
def reach(step):
    if step == STEP:
        raise ConnectionError("no database")
@asynccontextmanager
async def life(server):
    reach("start")
    yield
    reach("stop as it should")
server = Server("shop", lifespan=life)
"""


@pytest.mark.parametrize("step", ["start", "stop as it should"])
def test_a_lifespan_that_fails_is_told_with_the_author_s_line_and_without_a_traceback(
    step: str, start: Start, tmp_path: Path
):
    server = start(f"STEP = {step!r}\n" + BREAKING)
    server.end()
    first, *_, fix = server.rest(2)
    line = (tmp_path / "served.py").read_text().splitlines().index('        raise ConnectionError("no database")') + 1
    assert f"served.py:{line}: server 'shop' did not {step}: ConnectionError: no database".encode() in first
    assert fix.startswith(b"  fix: ") and server.exit_code() == 1


# -- before the event loop ---------------------------------------------------------------------------------

# Tells, at each write to the peer, whether asyncio, or what pydantic's encoder needs, has been imported. It imports
# nothing that would.
PLAIN = """
import os, sys
from defserve import Server

write = os.write
def watched(descriptor, data):
    if descriptor > 2:
        found = [name for name in ("asyncio", "logging", "pathlib", "uuid") if name in sys.modules]
        write(2, f"{found[0] if found else 'no asyncio'}\\n".encode())
    return write(descriptor, data)
os.write = watched

server = Server("plain")

@server.tool(inline=True)
def loaded() -> bool:
    return "asyncio" in sys.modules

@server.tool(inline=True)
def echo(text: str) -> str:
    return text
"""


@pytest.mark.slow
def test_the_first_answers_do_not_wait_for_the_import_of_asyncio(start: Start):
    server = start(PLAIN, opening="", fresh=True)
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    server.say(
        {"id": 1, "method": "initialize", "params": about},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    )
    assert [server.read()["id"] for _ in range(2)] == [1, 2]
    server.call(3, "loaded")
    assert server.text(3) == "true"
    server.end()
    told = server.rest(2)
    assert told[0] == b"no asyncio" and told[-1] == b"asyncio"


def test_a_lifespan_begins_before_the_first_answer(start: Start):
    server = start(LIFESPAN)
    server.wait_for("begin")
    server.open().end()
    server.wait_for("end")
    assert server.exit_code() == 0


def test_nothing_is_lost_or_reordered_where_the_loop_takes_over(start: Start):
    server = start(PLAIN, opening="", fresh=True)
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages: list[dict[str, Any]] = [{"id": 0, "method": "initialize", "params": about}]
    for id in range(1, 40):
        call = {"name": "echo", "arguments": {"text": str(id)}}
        messages.append(
            {"id": id, "method": "tools/list" if id % 3 else "tools/call", "params": {} if id % 3 else call}
        )
    data = b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)
    cut = data.index(b'"id": 3') + 3  # inside the first line that needs the loop
    server.write(data[:cut])
    assert [server.read()["id"] for _ in range(3)] == [0, 1, 2]
    server.write(data[cut : cut + 500])
    server.write(data[cut + 500 :])
    assert {server.read()["id"] for _ in range(37)} == set(range(3, 40))


def test_a_batch_that_needs_the_loop_waits_for_it_whole(start: Start):
    server = start(PLAIN, opening="", fresh=True)
    about = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}
    batch = json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, call]).encode()
    opening = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}).encode()
    server.write(
        opening + b"\n" + batch + b"\n" + json.dumps({"jsonrpc": "2.0", "id": 3, "method": "ping"}).encode() + b"\n"
    )
    assert server.read()["id"] == 0
    answers = [server.read(), server.read()]
    (together,) = [answer for answer in answers if isinstance(answer, list)]
    assert {answer["id"] for answer in together} == {1, 2}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full, as Linux has it")
def test_output_that_cannot_be_written_is_told_and_is_a_failure(tmp_path: Path):
    script = write_script(tmp_path, 'server = Server("full")')
    env = {**os.environ, "PYTHONPATH": str(FRAMEWORK)}
    with open("/dev/full", "wb") as full:
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
        done = subprocess.run([sys.executable, script], input=ping, stdout=full, stderr=subprocess.PIPE, env=env)
    told = "defserve: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr.decode()) == (1, told)
