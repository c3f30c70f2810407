"""One worker thread for the blocking code of one call: what is opened in a thread is used and closed in that thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, Token, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from defserve.runner.threads.outcome import finish
from defserve.runner.threads.pool import PoolJob, WorkerPool, run_afterwards, run_in

T = TypeVar("T")

_UNSET = object()

GRACE = 0.25
"""Seconds in which a stopped function may end before its call ends without it."""


class ThreadJob:
    """One blocking function on its way through a call's thread. Teardown is `vital`: it runs whatever happened."""

    __slots__ = ("function", "vital", "variables", "changed", "future", "ended", "over", "given_up")

    def __init__(self, function: Callable[[], Any], vital: bool, future: asyncio.Future[Any]) -> None:
        self.function, self.vital, self.future = function, vital, future
        self.variables, self.changed = copy_context(), list[tuple[ContextVar[Any], Any]]()
        self.ended: asyncio.Future[None] | None = None
        self.over = self.given_up = False

    def finish(self, result: Any, error: BaseException | None) -> None:
        self.over = True
        finish(self.future, result, error)
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


class CallThread:
    """Runs functions one after the other in the thread that is in `serve`, all in one context.

    When a call is cancelled, it waits `GRACE` seconds for the function that runs. Teardown behind a function that does
    not end is left to the thread. `never_served`: the call was given up before a worker thread was free.
    """

    __slots__ = (
        "never_served",
        "_left",
        "_pool",
        "_loop",
        "_jobs",
        "_context",
        "_adopted",
        "_closed",
        "_pool_job",
        "_ident",
        "_running",
    )

    def __init__(self, pool: WorkerPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool, self._loop = pool, loop
        self._jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._context, self._adopted = copy_context(), dict[ContextVar[Any], Token[Any]]()
        self._pool_job: PoolJob | None = None
        self._ident: int | None = None
        self._running: ThreadJob | None = None
        self._left: ThreadJob | None = None
        self._closed = self.never_served = False

    def hire(self) -> None:
        """Have a worker thread serve."""
        self._pool_job = self._pool.submit(self.serve, _ignore)

    def close(self) -> None:
        """Let the thread go when it has run everything it was given."""
        self._closed = True
        self._jobs.put(None)

    @property
    def is_open(self) -> bool:
        """Whether it takes functions. Behind a function that was left to it, the thread still runs its own."""
        return not self._closed or threading.get_ident() == self._ident

    # -- on the loop, or in the thread itself ------------------------------------------------------------

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in the thread."""
        if threading.get_ident() == self._ident:
            return self._run_here(function)
        job = ThreadJob(function, False, self._loop.create_future())
        self._jobs.put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            await self._give_up(job)
            raise
        finally:
            for variable, value in job.changed:
                variable.set(value)
            del job  # the traceback of its error refers to this frame: a circle

    async def clean_up(self, function: Callable[[], None]) -> None:
        """Run a function in the thread, even if the call was cancelled."""
        if threading.get_ident() == self._ident:
            function()
        elif not self.never_served:
            job = ThreadJob(function, True, self._loop.create_future())
            self._jobs.put(job)
            if self._left is None or self._left.over:
                await job.future

    async def _give_up(self, job: ThreadJob) -> None:
        job.given_up = True
        if self._pool_job is None or job.over:
            return
        self._pool.abandon(self._pool_job)
        self.never_served = not self._pool_job.running
        if not self.never_served:
            self._left, job.ended = job, self._loop.create_future()
            await asyncio.wait((job.ended,), timeout=GRACE)

    # -- in the thread -----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run functions in this thread until `close`."""
        run_afterwards()  # the function that called, if any, waits now
        self._ident = threading.get_ident()
        while (job := self._next()) is not None:
            self._run(job)
            del job  # a waiting thread must not keep the last value alive

    def _next(self) -> ThreadJob | None:
        try:
            return self._jobs.get_nowait()
        except Empty:
            with self._pool.parked():
                return self._jobs.get()

    def _run(self, job: ThreadJob) -> None:
        outcome, self._running = (None, None), job
        if job.vital or not job.given_up:
            outcome = run_in(self._context, partial(self._with_variables, job))
        self._running = None
        run_afterwards()
        self._pool.post(partial(job.finish, *outcome))
        del job, outcome  # the traceback of an error refers to this frame, too

    def _with_variables(self, job: ThreadJob) -> Any:
        """Run a job with its caller's context variables, and note those that it changes."""
        for variable in [variable for variable in self._adopted if variable not in job.variables]:
            variable.reset(self._adopted.pop(variable))
        for variable, value in job.variables.items():
            if variable.get(_UNSET) is not value:
                self._adopted.setdefault(variable, variable.set(value))
        before = copy_context()
        try:
            return job.function()
        finally:
            now = copy_context().items()
            job.changed = [(variable, value) for variable, value in now if before.get(variable, _UNSET) is not value]
            del job  # as in `run`

    def _run_here(self, function: Callable[[], T]) -> T:
        self._stop_if_given_up()
        result = function()
        # The peer is told that the call failed, so its teardown must see a failure.
        self._stop_if_given_up()
        return result

    def _stop_if_given_up(self) -> None:
        if self._running is not None and self._running.given_up:
            raise asyncio.CancelledError


CURRENT: ContextVar[CallThread | None] = ContextVar("defserve_call_thread", default=None)
"""The thread of the call that runs in this context."""


def current_thread() -> CallThread | None:
    """Where blocking code of this context belongs. None: any worker thread will do."""
    thread = CURRENT.get()
    return thread if thread is not None and thread.is_open else None


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("this coroutine waits for the event loop")


def _ignore(result: Any, error: BaseException | None) -> None:
    pass
