"""The outcome of a function that runs in a worker thread, awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from defserve.errors import Suspended
from defserve.runner.threads.pool import WorkerPool
from defserve.transports.arrival import Arrival

T = TypeVar("T")


class ThreadOutcome(Arrival[T]):
    """What a function of a pool comes to. Who cancels it gives the function up."""

    __slots__ = ("_pool", "_job")

    def __init__(self, pool: WorkerPool, loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> None:
        super().__init__(loop=loop)
        self._pool = pool
        self._job = pool.submit(function, lambda result, error: finish(self, result, error))

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._pool.abandon(self._job)
        return is_cancelled


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
