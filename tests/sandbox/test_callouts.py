"""Programs that call out: they pause, go on with the answer, can be parked, and can be stopped from another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from defserve.sandbox import monty
from defserve.sandbox.callouts import ProgramCallAnswer, ProgramCallBudget, ProgramPause, SandboxProgram
from defserve.sandbox.job import Outcome, SandboxLimits
from defserve.sandbox.workers import SandboxPool

pytestmark = pytest.mark.skipif(
    not monty.is_installed(), reason="pydantic-monty is not installed in the tested version"
)


@pytest.fixture(scope="module")
def workers() -> Iterator[SandboxPool]:
    found = SandboxPool(2)
    yield found
    found.close()


def program(workers: SandboxPool, source: str, seconds: float = 2.0) -> SandboxProgram:
    return SandboxProgram(
        workers, source, SandboxLimits(seconds=seconds), {"f", "g"}.__contains__, ProgramCallBudget(50, 1_000_000)
    )


def paused(step: ProgramPause | Outcome) -> ProgramPause:
    assert isinstance(step, ProgramPause), step
    return step


def ended(step: ProgramPause | Outcome) -> Outcome:
    assert isinstance(step, Outcome), step
    return step


def test_a_call_pauses_the_program_and_its_answer_goes_on(workers: SandboxPool):
    running = program(workers, "x = f(1, b=2)\nprint(x)\nx + 1")
    first = paused(running.start())
    (call,) = first.calls
    assert (call.name, call.args, call.kwargs, call.line, call.deferred) == ("f", (1,), {"b": 2}, 1, False)
    assert first.needs == call.id
    outcome = ended(running.resume({call.id: ProgramCallAnswer(41)}))
    assert (outcome.value, outcome.stdout, outcome.engine) == (42, "41\n", "monty")


def test_an_error_is_an_exception_in_the_program(workers: SandboxPool):
    running = program(workers, "try:\n    f()\nexcept PermissionError as error:\n    x = str(error)\nx")
    first = paused(running.start())
    assert (
        ended(running.resume({first.calls[0].id: ProgramCallAnswer(error="PermissionError", message="no")})).value
        == "no"
    )


def test_calls_that_are_awaited_together_are_answered_in_any_order(workers: SandboxPool):
    running = program(workers, "import asyncio\nawait asyncio.gather(f(1), f(2), g(3))")
    first = paused(running.start())
    one, two, three = (call.id for call in first.calls)
    assert first.needs is None and all(call.deferred for call in first.calls)
    assert paused(running.resume({three: ProgramCallAnswer("c")})).calls == ()
    assert ended(running.resume({one: ProgramCallAnswer("a"), two: ProgramCallAnswer("b")})).value == ["a", "b", "c"]


@pytest.mark.parametrize("source", ["x = [1, 2]\ny = f()\nx + [y]", "x = [1, 2]\ny = await f()\nx + [y]"])
def test_a_parked_program_needs_no_worker_and_goes_on_in_another(workers: SandboxPool, source: str):
    running = program(workers, source)
    (call,) = paused(running.start()).calls
    assert running.release_process() > 0
    assert running.release_process() > 0  # nothing more happens
    for _ in range(2):  # both workers are free
        other = program(workers, "1 + 1")
        assert ended(other.start()).value == 2
    assert ended(running.resume({call.id: ProgramCallAnswer(3)})).value == [1, 2, 3]


def test_what_it_computes_counts_across_parking(workers: SandboxPool):
    loop = "i = 0\nwhile i < 100000: i += 1\n"
    running = program(workers, f"{loop}f()\nwhile True: pass", seconds=0.5)
    (call,) = paused(running.start()).calls
    running.release_process()
    assert ended(running.resume({call.id: ProgramCallAnswer(None)})).status == "timeout"


@pytest.mark.slow
def test_a_program_can_be_stopped_while_it_computes(workers: SandboxPool):
    running = program(workers, "f()\nwhile True: pass", seconds=2.0)
    (call,) = paused(running.start()).calls
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(ended(running.resume({call.id: ProgramCallAnswer(None)}))))
    thread.start()
    running.stop()
    thread.join(10)
    running.close()
    assert outcomes[0].status in ("killed", "timeout")
    assert ended(program(workers, "2 + 2").start()).value == 4


def test_a_program_that_was_stopped_before_it_began_does_not_run(workers: SandboxPool):
    running = program(workers, "f()")
    running.stop()
    assert isinstance(running.start(), Outcome)
    running.close()


@pytest.mark.parametrize("source", ["open('/etc/passwd')", "import os\nos.listdir('/')", "import subprocess", "x = h"])
def test_the_host_is_reached_by_no_other_way(workers: SandboxPool, source: str):
    assert ended(program(workers, source).start()).status == "error"


@pytest.mark.parametrize("source", ["h()", "__import__('os')", "compile('1', '', 'exec')"])
def test_a_function_that_nobody_knows_is_a_call_too_and_who_answers_refuses_it(workers: SandboxPool, source: str):
    running = program(workers, source)
    (call,) = paused(running.start()).calls
    assert call.name in source
    refused = ProgramCallAnswer(error="NameError", message="there is none")
    assert "NameError: there is none" in (ended(running.resume({call.id: refused})).error or "")


def test_values_cross_as_copies(workers: SandboxPool):
    running = program(workers, "x = f()\nx.append(4)\ng(x)\nx")
    given = [1, 2, 3]
    (call,) = paused(running.start()).calls
    (second,) = paused(running.resume({call.id: ProgramCallAnswer(given)})).calls
    assert (given, second.args) == ([1, 2, 3], ([1, 2, 3, 4],))
    assert ended(running.resume({second.id: ProgramCallAnswer(None)})).value == [1, 2, 3, 4]


# -- what calls may take --------------------------------------------------------------------------------


DOUBLED = "x = ['a']\nfor _ in range(40): x = [x, x]\n"
TOO_LARGE = [
    "text = 'a' * 300_000\nwaiting = []\nfor _ in range(9): waiting.append(call_tool('f', {'a': text}))\n1",
    "import asyncio\ntext = 'a' * 300_000\nawait asyncio.gather(*[f(text) for _ in range(9)])",
    "f('a' * 1_200_000)",
    "f(**{'a' * 600_000: 'b' * 600_000})",
    "f(['a' * 300_000] * 9)",
    f"{DOUBLED}f(x)",
    f"{DOUBLED}f(b=x)",
    f"{DOUBLED}f({{1: x}})",
    f"{DOUBLED}class A: pass\na = A()\na.x = x\nf(a)",
    f"{DOUBLED}await f(x)",
]


@pytest.mark.parametrize("source", TOO_LARGE)
def test_a_program_whose_calls_hold_more_than_they_may_ends(workers: SandboxPool, source: str):
    outcome = ended(program(workers, source, seconds=60).start())  # not the time ends it, however busy the machine
    assert outcome.status == "error"
    assert "take more than 1000000 bytes" in (outcome.error or "")


def test_calls_that_nothing_waits_for_are_counted_when_they_are_made(workers: SandboxPool):
    running = program(workers, "waiting = []\nfor _ in range(60): waiting.append(call_tool('f'))\n1")
    assert "more than 50 tools" in (ended(running.start()).error or "")
    assert running.unmade == ()


def test_a_call_that_was_answered_makes_room_for_the_next(workers: SandboxPool):
    running = program(workers, "for _ in range(4): f('a' * 900_000)\n'done'")
    step = running.start()
    for _ in range(4):
        (call,) = paused(step).calls
        step = running.resume({call.id: ProgramCallAnswer(None)})
    assert ended(step).value == "done"
