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
            yield waiting_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            thrown = error
        else:
            waiting_for = None  # if it failed, its error's traceback refers to this frame: a circle
            # Whoever runs coroutines sends nothing but None. From here on the interpreter steps them itself.
            return (yield from steps)  # pyright: ignore
        # Not while it is being handled: it would become the `__context__` of whatever the coroutine raises, and anyio
        # takes a cancellation with such a context for its own.
        try:
            waiting_for = None
            waiting_for = steps.throw(thrown)
        except StopIteration as done:
            return done.value
        finally:
            del thrown


rest = types.coroutine(steps_left)
"""The same, to be awaited."""
