"""A future for what comes from outside: a pipe or a thread brings it, in a callback of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Arrival(asyncio.Future[T]):
    """A future whose task goes on in the very callback that sets it, if that is no part of another task.

    With a plain one it would wait for another turn of the loop: 15k instructions and a system call.
    """

    # Without them, each attribute of a future of ours costs as much as a call.
    __slots__ = ("_task",)

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._task: tuple[Callable[[Any], object], Context] | None = None

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        # A task gives its context. Others may rely on being called later.
        if context is None or self._task is not None or self.done():
            super().add_done_callback(fn, context=context)
        else:
            self._task = fn, context

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self._tell_later()
        return super().remove_done_callback(fn)

    def cancel(self, msg: Any | None = None) -> bool:
        self._tell_later()
        return super().cancel(msg)

    def set_result(self, result: T, /) -> None:
        super().set_result(result)
        self._tell()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        super().set_exception(exception)
        self._tell()

    def _tell_later(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            super().add_done_callback(task[0], context=task[1])

    def _tell(self) -> None:
        # Two tasks cannot take a step at a time.
        if self._task is None or asyncio.current_task(self.get_loop()) is not None:
            self._tell_later()
            return
        (go_on, context), self._task = self._task, None
        context.run(go_on, self)
