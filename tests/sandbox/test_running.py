"""Judge first, then run: what goes in, what comes out, and what is refused where nothing can contain it."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.to_thread
import pytest

from defserve.errors import Refused, UsageError
from defserve.sandbox import SandboxLimits, confinement, engines, monty, probe, run, run_async, running
from defserve.sandbox.job import Outcome, RunStopper, make_sandbox_job
from tests.effort import thinned
from tests.sandbox.conftest import children

LEVELS = ("standard", "strict", "readonly", "unrestricted")
contained = pytest.mark.skipif(bool(probe().missing), reason=f"this kernel lacks {', '.join(probe().missing)}")


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> Outcome:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(running, "run_in_jail", started)
    monkeypatch.setattr(monty, "run_in_monty", started)


@contained
@pytest.mark.parametrize(
    ("level", "engine"),
    # The three ways to run a program: as it is in the jail, in Monty, and by RestrictedPython in the jail.
    [("standard", "as installed"), ("strict", "as installed"), ("readonly", "jail")],
)
class TestValues:
    @pytest.fixture(autouse=True)
    def select_trees(self, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if engine == "jail":
            monkeypatch.setattr(monty, "is_installed", lambda: False)

    @pytest.mark.parametrize(
        ("source", "value"),
        thinned(
            [
                pytest.param("1 + 2", 3),
                pytest.param("result = [1, 2]", [1, 2]),
                pytest.param("result = 1\nprint('after')", 1),
                pytest.param("def f():\n    result = 1\n    return 2\nf()", 2),
                pytest.param("x = 5", None),
                pytest.param("", None),
                pytest.param("# nothing", None),
                pytest.param("{'a': [True, None, 1.5, 'é']}", {"a": [True, None, 1.5, "é"]}),
                pytest.param("(1, (2, 3))", [1, [2, 3]]),
                pytest.param("\ufeffresult = 'bom'", "bom"),
                pytest.param("import math\nmath.floor(2.5)", 2),
                pytest.param(
                    "def squares(n):\n    for i in range(n):\n        yield i * i\nlist(squares(4))", [0, 1, 4, 9]
                ),
            ],
            3,
        ),
    )
    def test_the_value_is_result_or_else_the_last_expression(self, source: str, value: object, level: Any) -> None:
        outcome = run(source, level=level)
        assert (outcome.status, outcome.value) == ("ok", value), outcome
        assert outcome and not outcome.is_repr

    def test_inputs_are_copies(self, level: Any) -> None:
        rows: list[Any] = [1, {"a": 2}]
        outcome = run("mine = [*rows, 3]\nmine", level=level, inputs={"rows": rows, "n": 1})
        assert outcome.value == [1, {"a": 2}, 3] and rows == [1, {"a": 2}]

    def test_what_is_no_json_comes_as_its_repr(self, level: Any) -> None:
        outcome = run("b'a'", level=level)
        assert (outcome.value, outcome.is_repr) == ("b'a'", True)
        assert run("float('nan')", level=level).is_repr
        assert len(run("b'x' * 5000", level=level).value) == 1_000

    def test_a_function_is_no_text_of_the_program(self, level: Any) -> None:
        assert run("result = lambda: 1", level=level).is_repr
        assert not run("result = '<function>'", level=level).is_repr

    def test_a_set_comes_as_an_array(self, level: Any) -> None:
        outcome = run("{'found': {3, 1, 2}, 'mixed': {1}}", level=level)
        assert (outcome.value, outcome.is_repr) == ({"found": [1, 2, 3], "mixed": [1]}, False)

    def test_what_is_printed_is_kept_in_order(self, level: Any) -> None:
        assert run("print('a', 1)\nprint('é')", level=level).stdout == "a 1\né\n"

    def test_an_error_names_its_lines(self, level: Any) -> None:
        outcome = run("def f(x):\n    return 1 / x\n\nf(0)", level=level)
        assert outcome.status == "error" and not outcome
        assert (outcome.error or "").splitlines() == [
            "Traceback (most recent call last):",
            "  line 4",
            "  line 2, in f",
            "ZeroDivisionError: division by zero",
        ]

    def test_a_value_nested_without_measure_is_an_outcome(self, level: Any) -> None:
        outcome = run("v = 1\nfor i in range(5000):\n    v = [v]\nv", level=level)
        assert outcome.status in ("ok", "error")

    def test_time_is_limited(self, level: Any) -> None:
        outcome = run("while True:\n    pass", level=level, limits=SandboxLimits(seconds=0.3))
        assert outcome.status == "timeout" and 290 <= outcome.duration_ms < 10_000

    def test_memory_is_limited(self, level: Any) -> None:
        source = "kept = []\nwhile True:\n    kept.append('x' * 1_000_000 + str(len(kept)))"
        assert run(source, level=level, limits=SandboxLimits(memory_bytes=100 * 2**20)).status == "memory"

    def test_output_is_limited(self, level: Any) -> None:
        limits = SandboxLimits(output_bytes=5_000)
        outcome = run("while True:\n    print('é' * 100)", level=level, limits=limits)
        assert outcome.status == "output" and 4_990 <= len(outcome.stdout.encode()) <= 5_002
        assert run("'x' * 6000", level=level, limits=limits).status == "output"


@pytest.mark.usefixtures("nothing_runs")
class TestRefusedCode:
    @pytest.mark.parametrize("level", ["standard", "strict", "readonly"])
    def test_does_not_run(self, level: Any) -> None:
        outcome = run("import subprocess", level=level)
        assert (outcome.status, outcome.engine, outcome.layers) == ("rejected", None, ())
        assert outcome.error == "\n".join(map(str, outcome.violations)) != ""
        assert outcome.violations[0].message == "Blocked import: 'subprocess'"
        assert outcome.hints

    @pytest.mark.parametrize("source", [b"\xff", b"# coding: utf-7\n+AGk-", "x = '\ud800'", "a\0b"])
    @pytest.mark.parametrize("level", LEVELS)
    def test_bytes_that_are_no_clean_text_do_not_run(self, source: str | bytes, level: Any) -> None:
        assert run(source, level=level).status == "rejected"

    @pytest.mark.parametrize("inputs", [{"x": {1}}, {"x": float("nan")}, {"x": object()}])
    def test_inputs_that_are_no_json_are_a_usage_error(self, inputs: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="not JSON"):
            run("1", inputs=inputs)

    @pytest.mark.parametrize("name", ["__builtins__", "_getattr_", "a b", "", "class", "a.b"])
    def test_inputs_that_could_replace_the_guards_are_a_usage_error(self, name: str) -> None:
        with pytest.raises(UsageError, match="name of an input"):
            run("1", inputs={name: 1})

    def test_an_unknown_level_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="there is no level"):
            run("1", level="lenient")  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("limits", [{"seconds": 0}, {"memory_bytes": -1}, {"output_bytes": 0}, {"cpu_seconds": 0}])
    def test_limits_of_nothing_are_a_usage_error(self, limits: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="positive"):
            SandboxLimits(**limits)


class TestMissingLayers:
    @pytest.mark.usefixtures("without_layers", "without_monty", "nothing_runs")
    @pytest.mark.parametrize("level", LEVELS)
    def test_without_containment_nothing_runs(self, level: Any) -> None:
        with pytest.raises(Refused, match="landlock, seccomp") as refusal:
            run("1", level=level)
        data = refusal.value.data
        assert data["reason"] == "no_containment" and data["missing"] == ["landlock", "seccomp"]
        assert ("pydantic-monty" in data["fix"]) == (level in ("strict", "readonly"))

    @pytest.mark.usefixtures("without_monty", "nothing_runs")
    @pytest.mark.parametrize(
        "present",
        [
            confinement.Layers(True, 7, False),
            confinement.Layers(True, 0, True),
            confinement.Layers(False, 7, True),
            confinement.Layers(),
        ],
    )
    def test_one_missing_layer_is_enough(self, present: confinement.Layers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(confinement, "probe", lambda: present)
        with pytest.raises(Refused):
            run("1", level="strict")

    @pytest.mark.usefixtures("without_layers", "without_monty")
    def test_a_caller_may_take_the_risk_and_is_told_what_holds(self) -> None:
        outcome = run("1 + 1", unsafe_without_jail=True)
        assert (outcome.value, outcome.layers) == (2, ("rlimits",))

    @pytest.mark.usefixtures("without_monty", "nothing_runs")
    def test_without_even_limits_there_is_no_risk_to_take(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(confinement, "probe", confinement.Layers)
        with pytest.raises(Refused):
            run("1", unsafe_without_jail=True)

    @pytest.mark.usefixtures("without_layers", "without_monty")
    def test_there_are_no_engines_to_name(self) -> None:
        assert engines() == ()

    @pytest.mark.usefixtures("without_layers", "nothing_runs")
    def test_refused_code_is_told_so_even_there(self) -> None:
        assert run("import os", level="strict").status == "rejected"


@contained
class TestAsync:
    def test_the_loop_stays_free(self) -> None:
        async def main() -> tuple[Outcome, int]:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await anyio.sleep(0.01)
                    turns += 1

            async with anyio.create_task_group() as group:
                group.start_soon(count)
                outcome = await run_async("import time\ntime.sleep(0.3)\n7", level="unrestricted")
                group.cancel_scope.cancel()
            return outcome, turns

        outcome, turns = anyio.run(main)
        assert outcome.value == 7 and turns > 2  # of some thirty; a loop that is held has one

    @pytest.mark.usefixtures("descriptors")
    @pytest.mark.parametrize("level", ["unrestricted", "strict"])
    def test_cancelled_the_process_is_gone(self, level: Any) -> None:
        async def main() -> None:
            with anyio.move_on_after(0.4) as scope:
                await run_async("while True:\n    pass", level=level, limits=SandboxLimits(seconds=30))
            assert scope.cancelled_caught

        began, others = time.monotonic(), children()
        anyio.run(main)
        assert time.monotonic() - began < 20
        assert children() <= others

    def test_cancelled_while_it_waits_for_a_thread_it_never_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran: list[object] = []
        monkeypatch.setattr(running, "run_in_jail", lambda *job: ran.append(job))

        async def main() -> None:
            anyio.to_thread.current_default_thread_limiter().total_tokens = 1
            release = threading.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, release.wait)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(cancelled, release)

        async def cancelled(release: threading.Event) -> None:
            threading.Timer(0.2, release.set).start()
            with anyio.move_on_after(0.05):
                await run_async("1", level="unrestricted")

        anyio.run(main)
        assert ran == []

    def test_refusals_come_through(self) -> None:
        async def main() -> Outcome:
            return await run_async("import os")

        assert anyio.run(main).status == "rejected"


@contained
def test_what_a_dataclass_makes_has_what_it_needs() -> None:
    source = (
        "from dataclasses import dataclass\n@dataclass(frozen=True, order=True)\nclass P:\n    x: int\n"
        "done = ''\ntry:\n    P(1).x = 2\nexcept Exception as e:\n    done = 'refused'\n"
        "result = [done, P(1) < P(2), P(1) == P(1), P(1) == 1, repr(P(1)), hash(P(1)) == hash(P(1))]"
    )
    outcome = run(source, level="strict")
    assert outcome.value == ["refused", True, True, False, "P(x=1)", True], outcome.error


@pytest.mark.parametrize("name", ["os.pipe", "subprocess.Popen"])
def test_a_process_that_the_system_cannot_start_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, function = name.partition(".")
    refusing = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    job = make_sandbox_job("1", "unrestricted", None, None)
    with monkeypatch.context() as patch, pytest.raises(Refused, match="did not start .Too many open files"):
        patch.setattr(getattr(running, module), function, Mock(side_effect=refusing))
        running.run_in_jail(job, probe(), RunStopper())
