"""How much work something is, in calls or processor time; how hard Hypothesis tries; which rows are for later."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

EXAMPLES = 25
"""What a property test tries by default; `make fuzz` tries 20,000."""


def cpu_within(seconds: float, work: Callable[[], object]) -> bool:
    """Whether this thread can do it in so much processor time; in one of three tries, as the collector may join in.

    After the first try nobody traces what it does: measuring the coverage takes several times as long as the work.
    """
    if _cpu_seconds(work) < seconds:
        return True
    tracing = sys.gettrace()
    sys.settrace(None)
    try:
        return any(_cpu_seconds(work) < seconds for _ in range(2))
    finally:
        sys.settrace(tracing)


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def calls_of(work: Callable[[], object]) -> int:
    """How many calls and returns it takes, of Python and C functions: the same on every run, however busy the machine.

    What happens inside one C function (a regular expression, the parser) counts as one.
    """
    count, before = 0, sys.getprofile()

    def seen(*_: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def examples(few: int) -> int:
    """How many examples a costly property test tries: `few`, and in `make fuzz` as many times more as all others."""
    wanted = settings.default
    assert wanted is not None
    return max(1, few * wanted.max_examples // EXAMPLES)


def thinned(rows: Iterable[Any], every: int) -> list[Any]:
    """Rows for `parametrize`: of so many one is run by default, the others by `make test-slow`."""
    return [row if place % every == 0 else slow(row) for place, row in enumerate(rows)]


def slow(row: Any) -> Any:
    """A row that only `make test-slow` runs."""
    values, marks, id = row if isinstance(row, ParameterSet) else pytest.param(row)
    return pytest.param(*values, marks=(*marks, pytest.mark.slow), id=id)
