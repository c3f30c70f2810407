"""One thread that does one kind of work for the event loop, taking all that has come together at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")

MOST: Final = 512

Outcome = tuple[bool, object]
"""Whether it went well, and the result or the exception."""


class WorkerThread(Generic[J, R]):
    """Hands jobs to `work`, in its own thread, in the order they came. `work` returns an outcome for each.

    The thread starts with the first job, and once more in a process that was forked meanwhile. `leave` is called in
    the thread when it ends.
    """

    def __init__(self, name: str, work: Callable[[Sequence[J]], Sequence[Outcome]], leave: Callable[[], None]) -> None:
        self._name, self._work, self._leave = name, work, leave
        self._lock = Lock()
        self._thread: Thread | None = None
        self._last: Thread | None = None
        self._pid = 0
        self._queue: SimpleQueue[_Waiting[J, R] | None] = SimpleQueue()

    async def do(self, job: J) -> R:
        """Its result, or its exception. A caller that goes away does not take its job back."""
        waiting: _Waiting[J, R] = _Waiting(job, asyncio.get_running_loop())
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._start()
            self._queue.put(waiting)
        return await waiting

    async def close(self) -> None:
        """Wait until everything that was asked for is done. The next job starts anew."""
        with self._lock:
            if self._pid != os.getpid():
                return
            if self._thread is not None:
                self._last, self._thread = self._thread, None
                self._queue.put(None)
            last = self._last
        if last is not None:
            await asyncio.get_running_loop().run_in_executor(None, last.join)

    def _start(self) -> None:
        queue: SimpleQueue[_Waiting[J, R] | None] = SimpleQueue()
        last = self._last if self._pid == os.getpid() else None
        # A daemon: what was not acknowledged when the process ends was never promised.
        thread = Thread(target=self._run, args=(queue, last), name=self._name, daemon=True)
        thread.start()
        self._thread, self._queue, self._pid, self._last = thread, queue, os.getpid(), None

    def _run(self, queue: SimpleQueue[_Waiting[J, R] | None], last: Thread | None) -> None:
        if last is not None:
            last.join()  # it has been closed, but may not have come to its end
        try:
            while True:
                group, is_last = _together(queue)
                if group:
                    _settle(group, self._work([waiting.job for waiting in group]))
                if is_last:
                    return
        finally:
            self._leave()


class _Waiting(Generic[J, R]):
    """A job, and the task that waits for it, which goes on the moment it is told.

    What a task asks of a future, and no more: asyncio's own would have it wait for one more turn of the loop.
    """

    __slots__ = ("job", "loop", "_asyncio_future_blocking", "_outcome", "_wake", "_context")

    def __init__(self, job: J, loop: asyncio.AbstractEventLoop) -> None:
        self.job, self.loop = job, loop
        self._asyncio_future_blocking = False
        self._outcome: Outcome | None = None
        self._wake: Callable[[Any], object] | None = None
        self._context: Context | None = None

    def __await__(self) -> Generator[Any, None, R]:
        self._asyncio_future_blocking = True
        yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._wake, self._context = wake, context

    def result(self) -> R:
        assert self._outcome is not None
        is_good, result = self._outcome
        if not is_good:
            raise result  # pyright: ignore[reportGeneralTypeIssues]
        return result  # pyright: ignore[reportReturnType]

    def cancel(self, msg: object = None) -> bool:
        if self._outcome is not None or self._wake is None:
            return False
        self._outcome = False, asyncio.CancelledError(*(() if msg is None else (msg,)))
        self.loop.call_soon(self._wake, self, context=self._context)
        return True

    def tell(self, outcome: Outcome) -> None:
        """Let the task go on, unless it was cancelled meanwhile."""
        if self._outcome is None and self._wake is not None and self._context is not None:
            self._outcome = outcome
            self._context.run(self._wake, self)


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
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Waiting[J, R], Outcome]]] = {}
    for waiting, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_tell, loop, settled)
        except RuntimeError:
            # The loop is closed, so nobody waits any more.
            continue


def _tell(loop: asyncio.AbstractEventLoop, settled: list[tuple[_Waiting[J, R], Outcome]]) -> None:
    settled.reverse()
    while settled:
        waiting, outcome = settled.pop()
        try:
            waiting.tell(outcome)
        except BaseException:  # the end of the program is called for; the others are still told
            loop.call_soon(_tell, loop, settled[::-1])
            raise
