"""The outcome of a function that runs in a worker thread, awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

from defserve.errors import Suspended
from defserve.runner.threads.pool import PoolJob, WorkerPool

T = TypeVar("T")


class ThreadOutcome(asyncio.Future[T]):
    """A future of a pool's job. Who cancels it gives the function up.

    The task that waits for it goes on in the very callback that brings the outcome. A plain future would make it wait
    for another turn of the loop: 25k of the 267k instructions of a call.
    """

    def __init__(self, pool: WorkerPool, loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> None:
        super().__init__(loop=loop)
        self._task: tuple[Callable[[Any], object], Context] | None = None
        self._pool = pool
        self._job: PoolJob | None = pool.submit(function, self._finish)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        # A task gives its context. Others may rely on being called later.
        if context is None or self._task is not None or self.done():
            super().add_done_callback(fn, context=context)
        else:
            self._task = fn, context

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self._call_later()
        return super().remove_done_callback(fn)

    def cancel(self, msg: Any | None = None) -> bool:
        self._call_later()  # whoever cancels is perhaps a task itself, and two cannot take a step at a time
        if not super().cancel(msg):
            return False
        if self._job is not None:
            self._pool.abandon(self._job)
        return True

    def _call_later(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            super().add_done_callback(task[0], context=task[1])

    def _finish(self, result: Any, error: BaseException | None) -> None:
        self._job = None
        finish(self, result, error)
        task, self._task = self._task, None
        if task is not None:
            task[1].run(task[0], self)


def finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the outcome of a function that ran in a thread, unless nobody waits for it."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Suspended) or (isinstance(error, Exception) and not isinstance(error, StopIteration)):
        future.set_exception(error)
    else:
        # Others cannot pass through a future: they would end the loop, or look like a return or a cancellation.
        wrapped = RuntimeError(f"{type(error).__name__} raised by the function: {error}")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
