"""One thread that does one kind of work for the event loop, taking all that has come together at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Final, Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")

MOST: Final = 512

Outcome = tuple[bool, object]
"""Whether it went well, and the result or the exception."""


class Lane(Generic[J, R]):
    """Hands jobs to `work`, in its own thread, in the order they came. `work` returns an outcome for each.

    The thread starts with the first job, and once more in a process that was forked meanwhile. `leave` is called in
    the thread when it ends.
    """

    def __init__(self, name: str, work: Callable[[Sequence[J]], Sequence[Outcome]], leave: Callable[[], None]) -> None:
        self._name, self._work, self._leave = name, work, leave
        self._lock = Lock()
        self._thread: Thread | None = None
        self._pid = 0
        self._queue: SimpleQueue[_Waiting[J, R] | None] = SimpleQueue()

    async def do(self, job: J) -> R:
        """Its result, or its exception. A caller that goes away does not take its job back."""
        loop = asyncio.get_running_loop()
        waiting: _Waiting[J, R] = (job, loop.create_future(), loop)
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._start()
            self._queue.put(waiting)
        return await waiting[1]

    async def close(self) -> None:
        """Wait until everything that was asked for is done. The next job starts anew."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None or self._pid != os.getpid():
                return
            self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def _start(self) -> None:
        self._queue = SimpleQueue()
        self._pid = os.getpid()
        # A daemon: what was not acknowledged when the process ends was never promised.
        self._thread = Thread(target=self._run, args=(self._queue,), name=self._name, daemon=True)
        self._thread.start()

    def _run(self, queue: SimpleQueue[_Waiting[J, R] | None]) -> None:
        try:
            while True:
                group, is_last = _together(queue)
                if group:
                    _settle(group, self._work([job for job, _, _ in group]))
                if is_last:
                    return
        finally:
            self._leave()


_Waiting = tuple[J, "asyncio.Future[R]", asyncio.AbstractEventLoop]


def _together(queue: SimpleQueue[_Waiting[J, R] | None]) -> tuple[list[_Waiting[J, R]], bool]:
    """What is waiting, at least one, and whether it is the last."""
    group: list[_Waiting[J, R]] = []
    item = queue.get()
    while item is not None:
        group.append(item)
        if len(group) == MOST:
            return group, False
        try:
            item = queue.get_nowait()
        except Empty:
            return group, False
    return group, True


def _settle(group: list[_Waiting[J, R]], outcomes: Sequence[Outcome]) -> None:
    """Tell each caller in its own loop, waking each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[R], Outcome]]] = {}
    for (_, future, loop), outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(loop, []).append((future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_tell, settled)
        except RuntimeError:
            # The loop is closed, so nobody waits any more.
            continue


def _tell(settled: list[tuple[asyncio.Future[R], Outcome]]) -> None:
    for future, (is_good, result) in settled:
        if future.cancelled():
            continue
        if is_good:
            future.set_result(result)  # pyright: ignore[reportArgumentType]
        else:
            future.set_exception(result)  # pyright: ignore[reportArgumentType]
