"""Tables of many rows as one test: a test of its own costs ten times what most rows do."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.effort import slow, thinned

ROW_BY_ROW = "ROW_BY_ROW" in os.environ
"""Every row as a test of its own, to run one alone: `ROW_BY_ROW=1 pytest -k …`."""

# What `pytest.raises` and `pytest.fail` raise is no Exception.
FAILED = (Exception, pytest.fail.Exception)


def for_each_row(
    names: str | Iterable[str], rows: Iterable[Any], ids: Any = None, *, every: int = 1
) -> Callable[[Any], Any]:
    """`pytest.mark.parametrize` for rows that need no fixtures of their own. All are run, and each that fails is named.

    Marks of single rows, `skip` and `xfail` have no meaning here. Each row of an `async` test is a task of its own.
    `every`: of so many rows one is run by default, the others by `make test-slow`.
    """
    words = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    kept = list(rows)
    if ROW_BY_ROW:
        alone = [row if isinstance(row, ParameterSet) or len(words) == 1 else pytest.param(*row) for row in kept]
        return pytest.mark.parametrize(names, thinned(alone, every), ids=ids)

    def of(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_all(**given: Any) -> None:
                table = Table(words, kept[given.pop("share", 0) :: every])
                for row in table:
                    with table.noting(row):
                        await asyncio.create_task(test(**given, **row))
                table.tell()

        else:

            @functools.wraps(test)
            def run_all(**given: Any) -> None:
                table = Table(words, kept[given.pop("share", 0) :: every])
                for row in table:
                    with table.noting(row):
                        test(**given, **row)
                table.tell()

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in words]
        assert len(others) + len(words) == len(signature.parameters), f"{words} are not all parameters of the test"
        if every > 1:
            others.append(inspect.Parameter("share", inspect.Parameter.KEYWORD_ONLY))
        vars(run_all)["__signature__"] = signature.replace(parameters=others)
        return pytest.mark.parametrize("share", [0, *map(slow, range(1, every))])(run_all) if every > 1 else run_all

    return of


class Table:
    """Rows, and which of them failed."""

    def __init__(self, names: list[str], rows: list[Any]) -> None:
        self._names, self._rows = names, rows
        self._failures: list[Exception] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            assert not isinstance(row, ParameterSet) or not row.marks, "a row with a mark must be a test of its own"
            values = row.values if isinstance(row, ParameterSet) else row if len(self._names) > 1 else (row,)
            yield dict(zip(self._names, values, strict=True))

    @contextmanager
    def noting(self, row: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except FAILED as error:
            is_error = isinstance(error, Exception)
            failure = error if is_error else AssertionError(str(error)).with_traceback(error.__traceback__)
            failure.add_note("row: " + ", ".join(f"{name}={repr(value)[:200]}" for name, value in row.items()))
            self._failures.append(failure)

    def tell(self) -> None:
        if self._failures:
            raise ExceptionGroup(f"{len(self._failures)} of {len(self._rows)} rows fail", self._failures)
