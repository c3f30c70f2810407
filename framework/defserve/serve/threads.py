"""Worker threads for blocking code: a pool, and the one thread that a call's blocking code shares (`CallThread`).

Results come back on the event loop, many of them with one wake-up. A function that hangs holds up neither its call nor
the end of the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

from defserve.errors import Suspended

T = TypeVar("T")

_UNSET = object()

STOP_GRACE_SECONDS = 0.25
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

    When a call is cancelled, it waits `STOP_GRACE_SECONDS` for the function that runs. Teardown behind a function that
    does not end is left to the thread. `never_served`: the call was given up before a worker thread was free.
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

    def request_worker_thread(self) -> None:
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

    async def run_cleanup_function(self, function: Callable[[], None]) -> None:
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
            await asyncio.wait((job.ended,), timeout=STOP_GRACE_SECONDS)

    # -- in the thread -----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run functions in this thread until `close`."""
        run_deferred_actions()  # the function that called, if any, waits now
        self._ident = threading.get_ident()
        while (job := self._next()) is not None:
            self._run(job)
            del job  # a waiting thread must not keep the last value alive

    def _next(self) -> ThreadJob | None:
        try:
            return self._jobs.get_nowait()
        except Empty:
            with self._pool.park_thread():
                return self._jobs.get()

    def _run(self, job: ThreadJob) -> None:
        outcome, self._running = (None, None), job
        if job.vital or not job.given_up:
            outcome = run_in(self._context, partial(self._with_variables, job))
        self._running = None
        run_deferred_actions()
        self._pool.post_to_loop(partial(job.finish, *outcome))
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


CURRENT_CALL_THREAD: ContextVar[CallThread | None] = ContextVar("defserve_call_thread", default=None)
"""The thread of the call that runs in this context."""


def get_current_call_thread() -> CallThread | None:
    """Where blocking code of this context belongs. None: any worker thread will do."""
    thread = CURRENT_CALL_THREAD.get()
    return thread if thread is not None and thread.is_open else None


def run_coroutine_without_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("this coroutine waits for the event loop")


def _ignore(result: Any, error: BaseException | None) -> None:
    pass


# -- Worker threads for blocking functions. Many results wake the event loop once.
#
# A job goes to the thread that became idle last: its memory is warm, and those that are not needed end. Threads are
# called one by one, each by the one before it, so many short jobs need few of them.
#
# `concurrent.futures` wakes the loop for every result, and joins its threads at exit: a blocking function would keep
# the process alive after its peer has left. These threads are daemons.


IDLE_SECONDS = 30.0
ABANDONED_PER_THREAD = 8
ROUND = 0.016
MIN_SWITCH_SECONDS = 0.0001

Finished: TypeAlias = Callable[[Any, BaseException | None], None]


class _Worker(threading.local):
    """What a worker thread does when its function is over. None in other threads."""

    afterwards: list[Callable[[], object]] | None = None


_WORKER = _Worker()


def defer_in_worker_thread(action: Callable[[], object]) -> bool:
    """Call `action` in this thread when its function is over, or waits. False: this is no worker thread."""
    if _WORKER.afterwards is None:
        return False
    _WORKER.afterwards.append(action)
    return True


def run_deferred_actions() -> None:
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
    def park_thread(self) -> Generator[None]:
        """While a worker thread waits for a slow peer, another thread may take its place."""
        with self._lock:
            self._parked += 1
            self._call()
        try:
            yield
        finally:
            with self._lock:
                self._parked -= 1

    def post_to_loop(self, action: Callable[[], None]) -> bool:
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
            self.post_to_loop(_nothing)
            raise

    def _work(self) -> None:
        _WORKER.afterwards = []
        call_lock = threading.Lock()  # free, as if it had been released: a new thread is called
        while self._is_called(call_lock):
            with self._lock:
                self._calling = False
                job = self._take_job(call_lock)
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

    def _take_job(self, call_lock: threading.Lock) -> PoolJob | None:
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
            run_deferred_actions()
        with self._lock:
            if job.running and job.abandoned:
                self._abandoned -= 1
            job.running = False
            # Idle before anybody hears of the outcome: the next job needs no other thread.
            following = self._take_job(call_lock)
        if outcome is not None:
            self.post_to_loop(outcome)
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
def lower_switch_interval(threads: int) -> Generator[None]:
    """Switch threads so often that all worker threads get a turn within `ROUND` seconds. Only for our own process.

    With Python's own interval of 5 ms and 32 computing threads, answering a ping takes seconds.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, max(ROUND / threads, MIN_SWITCH_SECONDS)))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# -- A future for what comes from outside: a pipe or a thread brings it, in a callback of the loop.


class ImmediateFuture(asyncio.Future[T]):
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
        self._wake_task_later()
        return super().remove_done_callback(fn)

    def cancel(self, msg: Any | None = None) -> bool:
        self._wake_task_later()
        return super().cancel(msg)

    def set_result(self, result: T, /) -> None:
        super().set_result(result)
        self._wake_task()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        super().set_exception(exception)
        try:
            self._wake_task()
        finally:
            # From Python 3.12 on, the task's frames know this one. The exception's traceback knows them: a circle.
            del self, exception

    def _wake_task_later(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            super().add_done_callback(task[0], context=task[1])

    def _wake_task(self) -> None:
        # Two tasks cannot take a step at a time.
        if self._task is None or asyncio.current_task(self.get_loop()) is not None:
            self._wake_task_later()
            return
        (go_on, context), self._task = self._task, None
        try:
            context.run(go_on, self)
        finally:
            del self, go_on, context  # as in `set_exception`


# -- The outcome of a function that runs in a worker thread, awaited on the event loop.


class ThreadFuture(ImmediateFuture[T]):
    """What a function of a pool comes to. Who cancels it gives the function up."""

    __slots__ = ("_pool", "_job")

    def __init__(self, pool: WorkerPool, loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> None:
        super().__init__(loop=loop)
        self._pool = pool
        self._job = pool.submit(function, partial(finish, self))

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._pool.abandon(self._job)
        return is_cancelled


def finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the outcome of a function that ran in a thread, unless nobody waits for it."""
    try:
        if future.done():
            return
        if error is None:
            future.set_result(result)
            return
        if isinstance(error, StopIteration) or not isinstance(error, Exception | Suspended):
            # These cannot pass through a future: they would end the loop, or look like a return or a cancellation.
            cause, error = error, RuntimeError(f"{type(error).__name__} raised by the function: {error}")
            error.__cause__ = cause
            del cause
        future.set_exception(error)
    finally:
        del future, error  # as in `ImmediateFuture.set_exception`


# -- How a worker thread has something called on the event loop.


class LoopWaker(Protocol):
    """`wake` is for any thread: the loop calls `action` soon. Raises RuntimeError if the loop has ended."""

    def wake(self, action: Callable[[], None], /) -> Any: ...

    def close(self) -> None: ...


def make_loop_waker(loop: asyncio.AbstractEventLoop) -> LoopWaker:
    """The quickest way for this loop."""
    if isinstance(loop, asyncio.SelectorEventLoop) and hasattr(os, "eventfd"):
        return EventfdWaker(loop)
    return CallSoonWaker(loop)


class CallSoonWaker:
    """The loop's own way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wake = loop.call_soon_threadsafe

    def close(self) -> None:
        pass


class EventfdWaker:
    """A descriptor that the loop watches. asyncio's own way makes a handle, and reads a socket until it is empty.

    Of actions that are given before the loop has called them, only the last is called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._lock = loop, threading.Lock()
        self._action: Callable[[], None] | None = None
        self._event: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event, self._woken, self._event)

    def wake(self, action: Callable[[], None], /) -> None:
        # Another file may have the number of a descriptor that is closed.
        with self._lock:
            if self._event is not None:
                self._action = action
                os.eventfd_write(self._event, 1)
                return
        self._loop.call_soon_threadsafe(action)

    def close(self) -> None:
        """From now on in the loop's own way."""
        with self._lock:
            event, self._event = self._event, None
        if event is not None:
            self._loop.remove_reader(event)
            os.close(event)
            if (action := self._take_action()) is not None:
                self._loop.call_soon(action)

    def _woken(self, event: int) -> None:
        os.eventfd_read(event)
        if (action := self._take_action()) is not None:
            Context().run(action)

    def _take_action(self) -> Callable[[], None] | None:
        with self._lock:
            action, self._action = self._action, None
        return action
