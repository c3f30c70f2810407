"""A thread that works for event loops: it takes all jobs that are waiting at once."""

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
"""Jobs in one group."""


class WorkerThread(Generic[J, R]):
    """Hands jobs to `work`, in a thread of its own, in the order they came.

    `work` returns for each job its result, or the exception that its caller is to raise. It should not raise. If it
    does, every caller of the group gets a RuntimeError with that cause, and the thread goes on. The thread starts with
    the first job, and again in a process that was forked meanwhile. `leave` is called in the thread when it ends.
    """

    def __init__(
        self, name: str, work: Callable[[Sequence[J]], Sequence[R | Exception]], leave: Callable[[], None]
    ) -> None:
        self._name, self._work, self._leave = name, work, leave
        self._lock = Lock()
        self._thread: Thread | None = None
        self._last: Thread | None = None
        self._pid = 0
        self._queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None] = SimpleQueue()

    async def do(self, job: J) -> R:
        """The result of a job; raises its exception. If the caller is cancelled, the job is still done."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._start()
            self._queue.put((job, future))
        return await future

    async def close(self) -> None:
        """Wait until every job is done. The next job starts a new thread."""
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
        queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None] = SimpleQueue()
        last = self._last if self._pid == os.getpid() else None
        # A daemon thread: a job that was not acknowledged when the process ends was never promised.
        thread = Thread(target=self._run, args=(queue, last), name=self._name, daemon=True)
        thread.start()
        self._thread, self._queue, self._pid, self._last = thread, queue, os.getpid(), None

    def _run(self, queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None], last: Thread | None) -> None:
        if last is not None:
            last.join()  # it was closed, but may still be at work
        try:
            while True:
                jobs, futures, is_last = _waiting(queue)
                if jobs:
                    _settle(futures, self._outcomes(jobs))
                if is_last:
                    return
        finally:
            self._leave()

    def _outcomes(self, jobs: Sequence[J]) -> Sequence[R | Exception]:
        """One outcome for each job, because a caller without one would wait for ever."""
        try:
            outcomes = self._work(jobs)
            if len(outcomes) == len(jobs):
                return outcomes
            cause: BaseException = ValueError(f"{len(outcomes)} outcomes of {len(jobs)} jobs")
        except BaseException as error:
            cause = error
        return [_failed(self._name, cause) for _ in jobs]


def _failed(name: str, cause: BaseException) -> RuntimeError:
    # Not the cause itself: each caller raises an exception of its own, and a future does not take every kind.
    error = RuntimeError(f"the thread {name} could not work: {cause!r}")
    error.__cause__ = cause
    return error


def _waiting(
    queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None],
) -> tuple[list[J], list[asyncio.Future[R]], bool]:
    """The waiting jobs, their futures, and whether the thread is to end after them. Waits for the first one."""
    jobs: list[J] = []
    futures: list[asyncio.Future[R]] = []
    item = queue.get()
    while item is not None:
        jobs.append(item[0])
        futures.append(item[1])
        if len(jobs) == MOST:
            return jobs, futures, False
        try:
            item = queue.get_nowait()
        except Empty:
            return jobs, futures, False
    return jobs, futures, True


def _settle(futures: list[asyncio.Future[R]], outcomes: Sequence[R | Exception]) -> None:
    """Tell each caller in its own loop. Each loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[R], R | Exception]]] = {}
    for future, outcome in zip(futures, outcomes, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_tell, settled)
        except RuntimeError:
            # The loop is closed, so nobody waits any more.
            continue


def _tell(settled: list[tuple[asyncio.Future[R], R | Exception]]) -> None:
    for future, outcome in settled:
        if future.done():  # its caller was cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
