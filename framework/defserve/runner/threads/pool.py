"""Worker threads for blocking functions. Many results wake the event loop once.

`concurrent.futures` wakes the loop for every result, and joins its threads at exit: a blocking function would keep the
process alive after its peer has left. These threads are daemons.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

IDLE_SECONDS = 30.0
ABANDONED_PER_THREAD = 8
ROUND = 0.016
SHORTEST = 0.0001

Finished: TypeAlias = Callable[[Any, BaseException | None], None]


class _Worker(threading.local):
    """What a worker thread does when its function is over. None in other threads."""

    afterwards: list[Callable[[], object]] | None = None


_WORKER = _Worker()


def do_afterwards(action: Callable[[], object]) -> bool:
    """Call `action` in this thread when its function is over, or waits. False: this is no worker thread."""
    if _WORKER.afterwards is None:
        return False
    _WORKER.afterwards.append(action)
    return True


def run_afterwards() -> None:
    """The function of this worker thread is over, or waits."""
    while _WORKER.afterwards:
        _WORKER.afterwards.pop(0)()


class PoolJob:
    """One blocking function on its way through the pool."""

    __slots__ = ("function", "finished", "context", "running", "abandoned")

    def __init__(self, function: Callable[[], Any], finished: Finished, context: Context) -> None:
        self.function, self.finished, self.context = function, finished, context
        self.running = self.abandoned = False


class WorkerPool:
    """At most `size` working threads. Those that wait for a peer (`parked`) or were given up (`abandon`) are extra."""

    def __init__(self, size: int, wake: Callable[[Callable[[], None]], Any]) -> None:
        self._size, self._wake = size, wake
        self._replaceable = size * ABANDONED_PER_THREAD
        self._jobs: SimpleQueue[PoolJob | None] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._waking = self._closed = False
        self._lock = threading.Lock()
        # `_pending` and `_idle` go down together when a thread takes a job. So their difference is always exact, and no
        # job waits for a busy thread.
        self._pending = self._threads = self._idle = self._abandoned = self._parked = 0

    def submit(self, function: Callable[[], Any], finished: Finished) -> PoolJob:
        """Run `function` in a thread, with the caller's context; then `finished(result, error)` on the loop."""
        job = PoolJob(function, finished, copy_context())
        with self._lock:
            self._pending += 1
            if self._pending > self._idle:
                self._hire()
        self._jobs.put(job)
        return job

    def abandon(self, job: PoolJob) -> None:
        """Nobody waits for this job any more. It does not begin; if it runs already, its thread may be replaced."""
        with self._lock:
            if job.abandoned:
                return
            job.abandoned = True
            if job.running:
                self._abandoned += 1
                self._hire()

    @contextmanager
    def parked(self) -> Generator[None]:
        """While a worker thread waits for a slow peer, another thread may take its place."""
        with self._lock:
            self._parked += 1
            self._hire()
        try:
            yield
        finally:
            with self._lock:
                self._parked -= 1

    def post(self, action: Callable[[], None]) -> bool:
        """Run `action` on the loop, behind what this thread posted before. False: the loop has ended."""
        self._done.append(action)
        # `_drain` clears the flag before it empties the deque, so an action that finds the flag set is not missed. The
        # lock is for Python without a GIL.
        with self._lock:
            is_awake, self._waking = self._waking, True
        if not is_awake:
            try:
                self._wake(self._drain)
            except RuntimeError:
                self._closed = True
        return not self._closed

    def close(self) -> None:
        """End the idle threads. Those at work end when they are done."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    @property
    def _allowed(self) -> int:
        # A peer that calls a hanging function again and again must not get unlimited threads.
        return self._size + min(self._abandoned + self._parked, self._replaceable)

    def _hire(self) -> None:
        if self._pending <= self._idle or self._threads >= self._allowed:
            return
        self._threads += 1
        try:
            threading.Thread(target=self._work, name="defserve-worker", daemon=True).start()
        except RuntimeError:  # the system has no more threads; another thread will take the job
            self._threads -= 1
            if not self._threads:
                self._pending -= 1
                raise

    def _drain(self) -> None:
        with self._lock:
            self._waking = False
        try:
            while self._done:
                self._done.popleft()()
        except BaseException:
            # A failed action must not stop those behind it.
            self.post(_nothing)
            raise

    def _work(self) -> None:
        _WORKER.afterwards = []
        with self._lock:
            self._idle += 1
        while (job := self._next()) is not None and self._run(job):
            del job  # an idle thread must not keep the last call alive

    def _next(self) -> PoolJob | None:
        while True:
            try:
                job, timed_out = self._jobs.get(timeout=IDLE_SECONDS), False
            except Empty:
                job, timed_out = None, True
            with self._lock:
                if job is None:
                    if timed_out and self._pending:
                        continue
                    self._idle -= 1
                    self._threads -= 1
                    return None
                self._idle -= 1
                self._pending -= 1
                job.running = not job.abandoned
            return job

    def _run(self, job: PoolJob) -> bool:
        """Whether this thread takes another job."""
        result, error, begins = None, None, job.running
        if begins:
            try:
                result = job.context.run(job.function)
            except BaseException as raised:  # SystemExit and the like end the call, never the server
                error = raised
            run_afterwards()
        with self._lock:
            job.running = False
            if begins and job.abandoned:
                self._abandoned -= 1
            # An abandoned thread may come back after it was replaced. Others are idle before anybody hears of the
            # outcome: the next job needs no other thread.
            is_needed = self._threads <= self._allowed
            if is_needed:
                self._idle += 1
            else:
                self._threads -= 1
        if begins:
            self.post(lambda: job.finished(result, error))
        return is_needed


def _nothing() -> None:
    pass


@contextmanager
def lowered_switch_interval(threads: int) -> Generator[None]:
    """Switch threads so often that all worker threads get a turn within `ROUND` seconds. Only for our own process.

    With Python's own interval of 5 ms and 32 computing threads, answering a ping takes seconds.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, max(ROUND / threads, SHORTEST)))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
