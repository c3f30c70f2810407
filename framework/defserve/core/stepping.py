"""Coroutines stepped by hand: one that never waits needs no task and no timer. Every layer may use it."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def steps_left(steps: Generator[Any, Any, T] | Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """The rest of an awaitable that was stepped once and then waited for `waiting_for`."""
    while True:
        try:
            try:
                value = yield waiting_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                waiting_for = steps.throw(error)
            else:
                waiting_for = steps.send(value)
        except StopIteration as done:
            return done.value


rest = types.coroutine(steps_left)
"""The same, to be awaited."""
