"""Tables of many rows as one test: a test of its own costs ten times what most rows do."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from _pytest.mark import ParameterSet

ROW_BY_ROW = "ROW_BY_ROW" in os.environ
"""Every row as a test of its own, to run one alone: `ROW_BY_ROW=1 pytest -k …`."""

# What `pytest.raises` and `pytest.fail` raise is no Exception.
FAILED = (Exception, pytest.fail.Exception)


def for_each_row(names: str | Iterable[str], rows: Iterable[Any], ids: Any = None) -> Callable[[Any], Any]:
    """`pytest.mark.parametrize` for rows that need no fixtures of their own. All are run, and each that fails is named.

    Marks of single rows, `skip` and `xfail` have no meaning here. Each row of an `async` test is a task of its own.
    """
    kept = list(rows)
    if ROW_BY_ROW:
        return pytest.mark.parametrize(names, kept, ids=ids)
    words = names.replace(",", " ").split() if isinstance(names, str) else list(names)

    def arguments() -> Iterator[dict[str, Any]]:
        for row in kept:
            assert not isinstance(row, ParameterSet) or not row.marks, "a row with a mark must be a test of its own"
            values = row.values if isinstance(row, ParameterSet) else row if len(words) > 1 else (row,)
            yield dict(zip(words, values, strict=True))

    def of(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_all(**given: Any) -> None:
                failures: list[Exception] = []
                for row in arguments():
                    try:
                        await asyncio.create_task(test(**given, **row))
                    except FAILED as failure:
                        failures.append(_named(failure, row))
                _raise_all(failures, len(kept))

        else:

            @functools.wraps(test)
            def run_all(**given: Any) -> None:
                failures: list[Exception] = []
                for row in arguments():
                    try:
                        test(**given, **row)
                    except FAILED as failure:
                        failures.append(_named(failure, row))
                _raise_all(failures, len(kept))

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in words]
        assert len(others) + len(words) == len(signature.parameters), f"{words} are not all parameters of the test"
        vars(run_all)["__signature__"] = signature.replace(parameters=others)
        return run_all

    return of


def _named(error: BaseException, row: dict[str, Any]) -> Exception:
    failure = error if isinstance(error, Exception) else AssertionError(str(error)).with_traceback(error.__traceback__)
    failure.add_note("row: " + ", ".join(f"{name}={repr(value)[:200]}" for name, value in row.items()))
    return failure


def _raise_all(failures: list[Exception], count: int) -> None:
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {count} rows fail", failures)
