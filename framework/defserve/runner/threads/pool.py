"""Worker threads for blocking functions. Many results wake the event loop once.

A job goes to the thread that became idle last: its memory is warm, and those that are not needed end. Threads are
called one by one, each by the one before it, so many short jobs need few of them.

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
from functools import partial
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
    """One blocking function on its way through the pool.

    Who waits for it refers to it, and its `work` refers back. So `work` is dropped as soon as it is not needed: what a
    call has brought must not wait for the garbage collector.
    """

    __slots__ = ("work", "running", "abandoned")

    def __init__(self, function: Callable[[], Any], finished: Finished, context: Context) -> None:
        self.work: tuple[Callable[[], Any], Finished, Context] | None = (function, finished, context)
        self.running = self.abandoned = False


class WorkerPool:
    """At most `size` working threads. Those that wait for a peer (`parked`) or were given up (`abandon`) are extra."""

    def __init__(self, size: int, wake: Callable[[Callable[[], None]], Any]) -> None:
        self._size, self._wake = size, wake
        self._replaceable = size * ABANDONED_PER_THREAD
        self._jobs: deque[PoolJob] = deque()
        self._done: deque[Callable[[], None]] = deque()
        self._waking = self._calling = self._closed = False
        self._lock = threading.Lock()
        self._idle: list[threading.Lock] = []
        """A lock of each idle thread: releasing it calls the thread. The last has been idle the shortest."""
        self._threads = self._abandoned = self._parked = 0

    def submit(self, function: Callable[[], Any], finished: Finished) -> PoolJob:
        """Run `function` in a thread, with the caller's context; then `finished(result, error)` on the loop."""
        job = PoolJob(function, finished, copy_context())
        with self._lock:
            self._jobs.append(job)
            self._call()
        return job

    def abandon(self, job: PoolJob) -> None:
        """Nobody waits for this job any more. It does not begin; if it runs already, its thread may be replaced."""
        with self._lock:
            if job.abandoned:
                return
            job.abandoned = True
            if job.running:
                self._abandoned += 1
                self._call()
            else:
                job.work = None

    @contextmanager
    def parked(self) -> Generator[None]:
        """While a worker thread waits for a slow peer, another thread may take its place."""
        with self._lock:
            self._parked += 1
            self._call()
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
            while self._idle:
                self._idle.pop().release()

    @property
    def _free(self) -> int:
        """How many more threads may work. Below 0: threads that were replaced came back."""
        # A peer that calls a hanging function again and again must not get unlimited threads.
        allowed = self._size + min(self._abandoned + self._parked, self._replaceable)
        return allowed - (self._threads - len(self._idle))

    def _call(self) -> None:
        """Call a thread if a job waits. When it takes the job, it calls the next one."""
        if self._calling or not self._jobs or self._free <= 0:
            return
        if self._idle:
            self._idle.pop().release()
        elif not self._hire():
            return
        self._calling = True

    def _hire(self) -> bool:
        self._threads += 1
        try:
            threading.Thread(target=self._work, name="defserve-worker", daemon=True).start()
        except RuntimeError:  # the system has no more threads; another thread will take the job
            self._threads -= 1
            if not self._threads:
                self._jobs.pop()
                raise
            return False
        return True

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
        call_lock = threading.Lock()  # free, as if it had been released: a new thread is called
        while self._is_called(call_lock):
            with self._lock:
                self._calling = False
                job = self._take(call_lock)
            while job is not None:
                job = self._run(job, call_lock)

    def _is_called(self, call_lock: threading.Lock) -> bool:
        """Wait to be called. False: this thread is not needed any more."""
        while not call_lock.acquire(timeout=0 if self._closed else IDLE_SECONDS):
            with self._lock:
                if call_lock in self._idle:
                    self._idle.remove(call_lock)
                    self._threads -= 1
                    return False
        return True

    def _take(self, call_lock: threading.Lock) -> PoolJob | None:
        """The next job. None: there is none for this thread, and it is idle now."""
        if not self._jobs or self._free < 0:
            self._idle.append(call_lock)
            return None
        job = self._jobs.popleft()
        job.running = not job.abandoned
        self._call()
        return job

    def _run(self, job: PoolJob, call_lock: threading.Lock) -> PoolJob | None:
        """Run a job, and take the next one."""
        work, job.work, outcome = job.work, None, None
        if work is not None:
            function, finished, context = work
            outcome = partial(finished, *run_in(context, function))
            del function, finished, context
            run_afterwards()
        with self._lock:
            if job.running and job.abandoned:
                self._abandoned -= 1
            job.running = False
            # Idle before anybody hears of the outcome: the next job needs no other thread.
            following = self._take(call_lock)
        if outcome is not None:
            self.post(outcome)
        del work, outcome  # the traceback of an error refers to this frame, too
        return following


def run_in(context: Context, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """The result of a function, or its error. No variable leads to the error: its traceback refers to them."""
    try:
        return context.run(function), None
    except BaseException as raised:  # SystemExit and the like end the call, never the server
        return None, raised
    finally:
        del context, function


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
