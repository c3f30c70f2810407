"""What runs Monty is a process apart: no value of a program can hold the server, and no end of it leaves anything."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from defserve.errors import Refused
from defserve.sandbox import SandboxLimits, frames, monty, workers
from defserve.sandbox.callouts import ProgramCallAnswer, ProgramCallBudget, ProgramPause, SandboxProgram
from defserve.sandbox.job import Outcome
from tests.rows import for_each_row
from tests.sandbox.hostile_values import CALLS, RUNS, RecordingWorkers, is_left
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not monty.is_installed(), reason=f"pydantic-monty=={monty.MONTY_VERSION} is not installed"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]

ROOT = Path(__file__).parents[2]


# -- values that take for ever ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile() -> dict[str, Any]:
    """How the hostile programs ended. In a process of its own: without its protection it would hang for ever."""
    command = [sys.executable, "-m", "tests.sandbox.hostile_values"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


NAMES = [*(f"sandbox: {name}" for name in RUNS), *(f"code mode: {name}" for name in (*RUNS, *CALLS))]


@pytest.mark.slow
@for_each_row("name", NAMES)
def test_a_value_that_takes_for_ever_runs_out_of_time_and_the_event_loop_goes_on(hostile: dict[str, Any], name: str):
    status, ticks = hostile[name]
    assert status == "timeout"
    assert ticks >= 10


@pytest.mark.slow
def test_after_such_a_value_the_next_program_runs(hostile: dict[str, Any]):
    assert hostile["code mode: next"] == {"result": 2}
    assert hostile["next"] == 2


@pytest.mark.slow
def test_who_stops_or_cancels_such_a_program_does_not_wait_for_its_value(hostile: dict[str, Any]):
    assert hostile["cancelled"] == [True, True]
    assert hostile["stopped"] == ["killed"]
    assert hostile["stopped: printed"] == "before\n"


@pytest.mark.slow
def test_a_program_that_was_killed_leaves_no_process_behind(hostile: dict[str, Any]):
    assert hostile["stopped: left"] == [False]


@pytest.mark.slow
def test_monty_is_never_imported_in_the_server(hostile: dict[str, Any]):
    assert hostile["imported"] is False


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_no_process_that_computes_for_ever():
    command = [sys.executable, "-c", ABANDON]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        group = int(server.stdout.readline())
        time.sleep(0.5)
        assert is_left(group)
        server.kill()
    wait_until(lambda: not is_left(group))


ABANDON = """
from tests.sandbox.hostile_values import RUNS, ProgramCallBudget, RecordingWorkers, SandboxLimits, SandboxProgram
workers = RecordingWorkers(1)
workers.open()
print(workers.taken[0].pid, flush=True)
SandboxProgram(workers, RUNS["last value"], SandboxLimits(seconds=2), bool, ProgramCallBudget(1, 1)).start()
"""


# -- processes that die -----------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[RecordingWorkers]:
    found = RecordingWorkers(1)
    yield found
    found.close()
    wait_until(lambda: not any(is_left(worker.pid) for worker in found.taken))


def program(pool: workers.SandboxPool, source: str, is_known: Callable[[str], bool] = bool) -> SandboxProgram:
    return SandboxProgram(pool, source, SandboxLimits(seconds=2.0), is_known, ProgramCallBudget(50, 1_000_000))


def paused(step: ProgramPause | Outcome) -> ProgramPause:
    assert isinstance(step, ProgramPause), step
    return step


def ended(step: ProgramPause | Outcome) -> Outcome:
    assert isinstance(step, Outcome), step
    return step


def monty_of(worker: workers.MontyWorker) -> int:
    """The process of Monty's own below ours."""
    tasks = Path(f"/proc/{worker.pid}/task").iterdir()
    return int(" ".join(task.joinpath("children").read_text() for task in tasks).split()[0])


def ours(worker: workers.MontyWorker) -> int:
    return worker.pid


@pytest.mark.parametrize("find", [ours, monty_of])
def test_a_process_that_dies_while_its_program_waits_ends_it_and_the_next_runs(
    pool: RecordingWorkers, find: Callable[[workers.MontyWorker], int]
):
    running = program(pool, "print('before')\nf()\n1")
    (call,) = paused(running.start()).calls
    os.kill(find(pool.taken[0]), signal.SIGKILL)
    outcome = ended(running.resume({call.id: ProgramCallAnswer(1)}))
    assert (outcome.status, outcome.error) == ("killed", "the interpreter of the program was killed")
    assert outcome.stdout == "before\n"
    assert ended(running.resume({})) == outcome
    assert ended(program(pool, "1 + 1").start()).value == 2


def test_a_process_that_dies_while_its_program_runs_ends_it(pool: RecordingWorkers):
    running = program(pool, "print('before')\nwhile True: pass")

    def kill() -> None:
        while not running.printed:
            time.sleep(0.01)
        os.kill(pool.taken[0].pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert ended(running.start()).status == "killed"
    thread.join()
    assert ended(program(pool, "1 + 1").start()).value == 2


def test_a_process_that_dies_while_it_is_idle_is_replaced(pool: RecordingWorkers):
    assert ended(program(pool, "1").start()).value == 1
    os.kill(pool.taken[0].pid, signal.SIGKILL)
    os.waitid(os.P_PID, pool.taken[0].pid, os.WEXITED | os.WNOWAIT)
    assert ended(program(pool, "2").start()).value == 2
    assert len({worker.pid for worker in pool.taken}) == 2


def test_a_process_that_dies_when_its_program_is_parked_ends_it(pool: RecordingWorkers):
    running = program(pool, "f()")
    (call,) = paused(running.start()).calls
    os.kill(pool.taken[0].pid, signal.SIGKILL)
    assert running.release_process() == 0
    assert ended(running.resume({call.id: ProgramCallAnswer(1)})).status == "killed"


def test_programs_use_the_same_process_one_after_the_other(pool: RecordingWorkers):
    sources = ("x = 1\nx", "1 / 0", "x", "print('a' * 2_000_000)", "while True: pass", "f()", "2")
    for source in sources:
        running = program(pool, source)
        running.start()
        running.close()
    assert len({worker.pid for worker in pool.taken}) == 1


def test_a_parked_program_goes_on_in_another_process(pool: RecordingWorkers):
    running = program(pool, "x = [1]\nprint('a')\nx.append(f(1))\nx.append(await f(2))\nprint('b')\nx")
    (call,) = paused(running.start()).calls
    assert running.release_process() > 0
    pool.close()
    second = paused(running.resume({call.id: ProgramCallAnswer(2)}))
    assert running.release_process() > 0
    pool.close()
    outcome = ended(running.resume({second.calls[0].id: ProgramCallAnswer({"three": 3})}))
    assert (outcome.value, outcome.stdout) == ([1, 2, {"three": 3}], "a\nb\n")
    assert len({worker.pid for worker in pool.taken}) == 3


def test_a_parked_program_has_what_is_left_of_its_budgets(pool: RecordingWorkers):
    running = program(pool, "y = call_tool('f', {'a': 'a' * 600_000})\nf(1)\nf('a' * 600_000)")
    step = paused(running.start())
    running.release_process()
    outcome = ended(running.resume({step.calls[-1].id: ProgramCallAnswer(1)}))
    assert "take more than 1000000 bytes" in (outcome.error or "")


@pytest.mark.parametrize("answer", [10**5000, {1, 2}], ids=["digits", "set"])
def test_an_answer_that_is_not_json_is_an_exception_in_the_program(pool: RecordingWorkers, answer: Any):
    running = program(pool, "try:\n    f()\nexcept RuntimeError as error:\n    x = str(error)\nx")
    (call,) = paused(running.start()).calls
    assert "the result has no JSON form" in ended(running.resume({call.id: ProgramCallAnswer(answer)})).value


def test_an_answer_that_is_no_text_ends_the_program(pool: RecordingWorkers):
    running = program(pool, "f()")
    (call,) = paused(running.start()).calls
    outcome = ended(running.resume({call.id: ProgramCallAnswer("\ud800")}))
    assert outcome.status == "error" and "UnicodeEncodeError" in (outcome.error or "")


def test_who_closes_the_processes_does_not_wait_for_one_that_starts():
    pool, refused = workers.SandboxPool(1), list[Refused]()

    def start() -> None:
        with pytest.raises(Refused) as raised:
            pool.open()
        refused.append(raised.value)

    thread = threading.Thread(target=start)
    thread.start()
    while not refused:
        pool.close()
        time.sleep(0.001)
    thread.join()


# -- names ------------------------------------------------------------------------------------------------


def test_names_of_the_source_are_asked_for_at_once_and_others_when_they_are_read(pool: RecordingWorkers):
    asked: list[str] = []

    def is_known(name: str) -> bool:
        asked.append(name)
        return name in ("f", "g") and (name != "g" or asked.count("g") > 1)

    running = program(pool, "a = ｆ\nb = f\nc = g\na(1)", is_known)
    (call,) = paused(running.start()).calls
    assert call.name == "f"
    assert asked.count("f") == 1 and asked.count("g") == 2
    running.close()


def test_a_name_that_nobody_knows_is_not_defined(pool: RecordingWorkers):
    outcome = ended(program(pool, "a = h", lambda name: False).start())
    assert "NameError: name 'h' is not defined" in (outcome.error or "")


# -- starting, and frames ---------------------------------------------------------------------------------


def test_an_interpreter_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch):
    _, paths = workers.locate_parts()
    monkeypatch.setattr(workers, "locate_parts", lambda: ("/nowhere/monty", paths))
    with pytest.raises(Refused, match="the interpreter did not start"):
        workers.SandboxPool(1).open()


def test_a_process_that_the_system_refuses_is_refused_and_takes_no_slot(monkeypatch: pytest.MonkeyPatch):
    pool = workers.SandboxPool(1)
    refusing = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with monkeypatch.context() as patch:
        patch.setattr(workers.subprocess, "Popen", Mock(side_effect=refusing))
        with pytest.raises(Refused, match="did not start .Too many open files"):
            pool.acquire_worker()
    pool.open()
    pool.close()


def test_the_process_knows_nothing_of_the_servers_environment(pool: RecordingWorkers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_SECRET", "of the server")
    pool.open()
    for pid in (pool.taken[0].pid, monty_of(pool.taken[0])):
        assert b"A_SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_frame_is_read_as_it_was_written():
    file = io.BytesIO()
    frames.send_frame(file, frames.CALL, frames.join_parts({"id": 1}, b"rest\nof it"))
    file.seek(0)
    kind, data = frames.receive_frame(file, {frames.CALL: 100})
    assert (kind, frames.split_parts(data)) == (frames.CALL, ({"id": 1}, b"rest\nof it"))
    with pytest.raises(EOFError):
        frames.receive_frame(file)


@for_each_row("most", [{}, {frames.CALL: 9}, {frames.NAME: 100}])
def test_a_frame_that_is_too_large_or_out_of_turn_is_not_read(most: dict[bytes, int]):
    file = io.BytesIO()
    frames.send_frame(file, frames.CALL, b"0123456789")
    file.seek(0)
    with pytest.raises(frames.FrameError):
        frames.receive_frame(file, most)
    assert file.tell() == frames.HEADER.size


def test_a_frame_that_ends_too_early_is_the_end():
    file = io.BytesIO(frames.HEADER.pack(frames.CALL, 10) + b"short")
    with pytest.raises(EOFError):
        frames.receive_frame(file, {frames.CALL: 10})
    with pytest.raises(frames.FrameError):
        frames.split_parts(b"no JSON\n")
