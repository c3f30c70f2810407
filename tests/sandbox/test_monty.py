"""Monty runs restricted code where it is installed; what fails in it is asked of the jail; its limits hold."""

from __future__ import annotations

import json
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.sandbox import Outcome, SandboxLimits, confinement, monty, run, running, values, workers
from defserve.sandbox.job import RunStopper, make_sandbox_job
from tests.effort import calls_of
from tests.rows import for_each_row

pytestmark = pytest.mark.skipif(
    not monty.is_installed(), reason=f"pydantic-monty=={monty.MONTY_VERSION} is not installed"
)

RESTRICTED = ("strict", "readonly")


def alone(source: str, **limits: float) -> Outcome:
    """The program in Monty, judged by no one."""
    return monty.run_in_monty(make_sandbox_job(source, "strict", {"x": [1]}, SandboxLimits(**limits)), RunStopper())  # pyright: ignore[reportArgumentType]


@for_each_row("level", RESTRICTED)
def test_restricted_code_runs_in_monty(level: Any) -> None:
    outcome = run("[n * n for n in range(3)]", level=level)
    assert (outcome.engine, outcome.layers, outcome.value) == ("monty", ("interpreter",), [0, 1, 4])


def test_first_runs_at_once_do_not_find_the_interpreters_paths_half_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told, calls = sysconfig.get_config_vars, iter(range(10_000))
    overtaken, complete = threading.Event(), threading.Event()

    def telling(*names: str) -> Any:
        if next(calls) == 0:
            overtaken.wait(0.05)
            complete.set()
        elif not complete.is_set():
            overtaken.set()
            raise AttributeError("userbase")
        return told(*names)

    monkeypatch.setattr(sysconfig, "get_config_vars", telling)
    workers.find_parts.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: workers.locate_parts(), range(4)))
    assert len(set(found)) == 1 and complete.is_set()


@pytest.mark.usefixtures("without_layers")
@pytest.mark.parametrize("level", RESTRICTED)
def test_monty_needs_no_kernel(level: Any) -> None:
    assert run("1 + 1", level=level).value == 2
    failed = run("1 / 0", level=level)
    assert (failed.engine, failed.status) == ("monty", "error")
    assert (failed.error or "").endswith("ZeroDivisionError: division by zero")


@pytest.mark.usefixtures("without_layers")
@pytest.mark.parametrize("level", ["standard", "unrestricted"])
def test_monty_is_not_for_code_that_wants_all_of_python(level: Any) -> None:
    from defserve.errors import Refused

    with pytest.raises(Refused):
        run("1", level=level)


def test_what_monty_lacks_runs_in_the_jail(jailed: object) -> None:
    outcome = run("import heapq\nheapq.nsmallest(1, [3, 2])", level="strict")
    assert (outcome.engine, outcome.value) == ("jail", [2])


def test_a_second_opinion_that_runs_out_of_time_does_not_replace_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "probe", lambda: confinement.Layers(True, 7, True))
    monkeypatch.setattr(running, "run_in_jail", lambda *_: Outcome("timeout", engine="jail"))
    outcome = run("1 / 0", level="strict")
    assert (outcome.engine, outcome.status) == ("monty", "error")


def test_modules_trusted_by_name_are_real_so_the_jail_runs_them(jailed: object) -> None:
    outcome = run("import os\nos.sep", level="strict", trust=["os"])
    assert outcome.engine == "jail"


@for_each_row(
    "source",
    [
        "open('/etc/passwd').read()",
        "import os\nos.listdir('/')",
        "import os\nos.environ['PATH']",
        "import os\nos.getenv('PATH') + 'x'",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "import subprocess",
        "import socket",
        "import ctypes",
        "().__class__.__bases__[0].__subclasses__()",
        "__import__('os').system('true')",
    ],
)
def test_monty_alone_keeps_a_program_from_the_host(source: str) -> None:
    assert alone(source).status == "error"


class TestLimits:
    """Once more on every new version: one let the memory limit be a no-op."""

    def test_time(self) -> None:
        outcome = alone("while True:\n    pass", seconds=0.5)
        assert outcome.status == "timeout" and 490 <= outcome.duration_ms < 10_000

    def test_processor_time(self) -> None:
        assert alone("while True:\n    pass", seconds=20, cpu_seconds=0.5).duration_ms < 15_000

    @pytest.mark.slow
    def test_time_cannot_be_caught(self) -> None:
        source = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
        assert alone(source, seconds=0.5).status == "timeout"

    def test_sleeping_does_not_outlast_time(self) -> None:
        assert alone("import time\nwhile True:\n    time.sleep(40)", seconds=0.5).duration_ms < 20_000

    def test_memory(self) -> None:
        grow = "kept = []\nwhile True:\n    kept.append('x' * 100_000 + str(len(kept)))"
        assert alone(grow, memory_bytes=2**25).status == "memory"
        assert alone("'x' * 10**12").status == "memory"
        assert alone("[0] * 10**10").status == "memory"
        assert alone("2 ** 10 ** 10").status == "memory"

    def test_recursion(self) -> None:
        outcome = alone("def f():\n    return f()\nf()")
        assert outcome.status == "error" and "RecursionError" in (outcome.error or "")

    def test_output(self) -> None:
        outcome = alone("while True:\n    print('x' * 100)", output_bytes=1_000)
        assert outcome.status == "output" and len(outcome.stdout) == 1_000 and outcome.duration_ms < 20_000

    def test_the_size_of_the_value(self) -> None:
        assert alone("'x' * 2_000", output_bytes=1_000).status == "output"

    def test_the_digits_of_an_integer(self) -> None:
        assert "the value has no text: ValueError: Exceeds the limit" in (alone("[10**5000]").error or "")

    def test_the_programs_own_timeout_error_is_an_error(self) -> None:
        assert alone("raise TimeoutError('mine')").status == "error"


def test_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.5.0")
    monty.is_installed.cache_clear()
    try:
        assert not monty.is_installed()
    finally:
        monkeypatch.undo()
        monty.is_installed.cache_clear()
    assert monty.is_installed()


@pytest.mark.usefixtures("descriptors")
def test_nothing_is_left_behind() -> None:
    for source in ("1", "1 / 0", "while True:\n    pass", "while True:\n    print('x' * 100)"):
        alone(source, seconds=0.3, output_bytes=10_000)


def test_a_package_that_is_not_there_is_explained(jailed: object) -> None:
    assert "none of the packages installed here" in (alone("import pydantic").error or "")
    assert "none of the packages installed here" in (run("import pydantic").error or "")
    assert "packages" not in (alone("1 / 0").error or "")


# -- values that are small in the program and large as a text ---------------------------------------------


DOUBLED = "x = ['a']\nfor _ in range(40): x = [x, x]\n"
SHARED = [
    f"{DOUBLED}x",
    f"{DOUBLED}(x, x)",
    f"{DOUBLED}{{'a': x}}",
    "x = 'a'\nfor _ in range(40): x = frozenset([x, (x,)])\nx",
    f"{DOUBLED}class A: pass\na = A()\na.x = x\n[a]",
    f"{DOUBLED}from collections import namedtuple\nnamedtuple('P', 'a b')(x, {{1}})",
    "['a' * 1_000_000] * 60_000",
    "[ValueError('a' * 1_000_000)] * 60_000",
    "from pathlib import Path\n[Path('a' * 1_000_000)] * 60_000",
    "[b'a' * 1_000_000] * 60_000",
    "[7 ** 4_000] * 60_000",
]


@for_each_row("source", SHARED)
def test_a_value_that_is_large_only_as_a_text_is_refused_before_it_is_written(source: str) -> None:
    assert alone(source, output_bytes=10_000).status == "output"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(_json)
def test_a_value_is_never_measured_as_larger_than_its_text(value: Any) -> None:
    assert values.measure_min_text_bytes(value, 10**9) <= len(
        json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    )


@given(_json, st.integers(0, 200))
def test_the_measure_stops_where_it_is_told_to(value: Any, most: int) -> None:
    whole = values.measure_min_text_bytes(value, 10**9)
    assert (values.measure_min_text_bytes(value, most) > most) is (whole > most)
    assert calls_of(lambda: values.measure_min_text_bytes([value] * 100_000, most)) < 100 + 20 * most
