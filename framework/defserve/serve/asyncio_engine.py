"""Runs calls on an asyncio loop: tasks, timers, threads, deadlines. `core.engine` documents the methods.

How it works: a call takes its first step at once, in the turn that brought it (`EagerTaskStarter`). What never waits
costs no task and no turn of the loop; other work cannot tell that it did not begin in a task of its own. The deadline
of a call begins when it first waits. Deadlines are kept in rows, since a call that ends in time should cost its timer
next to nothing.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar, cast

from defserve.core.call import Call
from defserve.core.engine import CancellableTask, await_started_coroutine, iter_started_coroutine
from defserve.errors import Draining, Suspended, TimedOut
from defserve.serve.threads import (
    CURRENT_CALL_THREAD,
    STOP_GRACE_SECONDS,
    CallThread,
    ThreadFuture,
    WorkerPool,
    defer_in_worker_thread,
    get_current_call_thread,
    make_loop_waker,
    run_coroutine_without_loop,
)

T = TypeVar("T")

# Clients in TypeScript handle the messages of one read in their own order: replies first. Progress that arrives in the
# same read as the reply of its call is lost there. A millisecond is enough, and timers may be a little early.
GAP_SECONDS = 0.00125

# In how many turns of the loop every transport has written a message, if its peer reads.
WRITE_TURNS = 3


class AsyncioEngine:
    """Implements `core.engine.Engine` on the running loop."""

    def __init__(self, threads: int) -> None:
        self.ready = True
        self.loop = asyncio.get_running_loop()
        self._waking = make_loop_waker(self.loop)
        self.pool = WorkerPool(threads, self._waking.wake)
        self.timers = Timers(self.loop)
        self.tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.get_ident()
        self._first_steps = EagerTaskStarter(self.loop)

    async def close(self) -> None:
        """Nothing is started any more."""
        self.pool.close()
        self._waking.close()
        await self._first_steps.close()

    def start_call(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        # The session's table of calls in flight keeps the task alive. A set of our own would cost 3 µs a call.
        self._first_steps.start(self._run_call(call, work), copy_context())

    def run_call_here(self, call: Call, work: Coroutine[Any, Any, Any]) -> Awaitable[None] | None:
        running = self._run_call(call, work)
        try:
            waiting_for = running.send(None)
        except StopIteration:
            return None
        return await_started_coroutine(running, waiting_for)

    async def _run_call(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        # Set in the first step: a task that is cancelled before that would end without a reply.
        call.task = asyncio.current_task(self.loop)
        try:
            result = await work
        except BaseException as error:
            if call.notified:
                await self._settle_apart(call, partial(self._fail, call, error))
            else:
                self._fail(call, error)
        else:
            if call.notified:
                await self._settle_apart(call, partial(self._settle, call, result))
            elif call.suspension is None:
                call.session.settle(call, result)
            else:
                self._settle_suspension(call)
        call.task = None  # the task may go on to something else

    async def _settle_apart(self, call: Call, settle: Callable[[], None]) -> None:
        """Settle a call a moment after its last notification was written. Who cancels it does not wait."""
        try:
            for _ in range(WRITE_TURNS):
                if call.unsent and not call.cancelled:
                    await asyncio.sleep(0)
            now = self.loop.time()
            left = GAP_SECONDS if call.unsent else call.last_left + GAP_SECONDS - now
            if left > 0 and not call.cancelled:
                await asyncio.sleep(left)
        except asyncio.CancelledError:
            pass  # the outcome is known, so there is nothing to stop
        finally:
            settle()

    def _settle(self, call: Call, result: Any) -> None:
        if call.suspension is None:
            call.session.settle(call, result)
        else:
            self._settle_suspension(call)

    def _fail(self, call: Call, error: BaseException) -> None:
        if call.suspension is not None:
            self._settle_suspension(call)
            return
        task = cast("asyncio.Task[Any] | None", call.task)
        # If nobody cancelled the task, the function itself raised CancelledError.
        if isinstance(error, asyncio.CancelledError) and not call.cancelled and task is not None and task.cancelling():
            error = Draining("the server is shutting down")
        call.session.fail(call, error)

    def _settle_suspension(self, call: Call) -> None:
        assert call.suspension is not None
        try:
            call.session.settle(call, call.suspension())
        except Exception as error:
            call.session.fail(call, error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> CancellableTask:
        task = self.loop.create_task(work)
        self.keep_task(task)
        return task

    def keep_task(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that nobody else holds until it is done."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def call_soon(self, action: Callable[[], None]) -> None:
        self.loop.call_soon(action)

    def time(self) -> float:
        return self.loop.time()

    def call_later(self, seconds: float, action: Callable[[], None]) -> CancellableTask:
        return self.loop.call_later(seconds, action)

    def create_future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    async def wait_for(self, pending: asyncio.Future[Any], timeout: float | None) -> Any:
        async with asyncio.timeout(timeout):
            return await pending

    @types.coroutine
    def run_with_timeout(self, call: Call, seconds: float, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        # Step the coroutine by hand: one that never waits must not pay for a timer (6 µs of a 32 µs call).
        try:
            waiting_for = work.send(None)
        except StopIteration as done:
            return done.value
        outer, deadline = call.timer, CallDeadline(self, call, seconds)
        call.timer = deadline
        try:
            result = yield from iter_started_coroutine(work, waiting_for)
            if not call.timed_out:
                return result
        except GeneratorExit:
            raise
        except TimedOut:
            # Work that was stopped may say itself what took so long.
            if call.timed_out and not call.cancelled and (task := asyncio.current_task()) is not None:
                task.uncancel()
            raise
        except BaseException:
            if not call.timed_out or call.cancelled:
                raise
        finally:
            waiting_for = None  # as in `iter_started_coroutine`
            if call.timer is deadline:  # a function may run inside another of the same call
                call.timer = outer
            deadline.cancel()
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        raise deadline.error

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        if (thread := get_current_call_thread()) is not None:
            return thread.run(function)
        return ThreadFuture(self.pool, self.loop, function)

    def clean_up_in_thread(self, function: Callable[[], None]) -> Awaitable[None]:
        thread = get_current_call_thread()
        return self.in_thread(function) if thread is None else thread.run_cleanup_function(function)

    async def run_in_one_thread(self, work: Coroutine[Any, Any, T], *, wholly: bool) -> T:
        outer, thread = CURRENT_CALL_THREAD.get(), CallThread(self.pool, self.loop)
        CURRENT_CALL_THREAD.set(thread)
        thread.request_worker_thread()
        try:
            return await (thread.run(lambda: run_coroutine_without_loop(work)) if wholly else work)
        finally:
            CURRENT_CALL_THREAD.set(outer)
            thread.close()
            if thread.never_served:
                work.close()

    def is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def post_to_loop(self, action: Callable[[], None]) -> bool:
        return self.pool.post_to_loop(action)

    def call_after_current_step(self, action: Callable[[], None]) -> None:
        if self.is_on_loop():
            self.call_soon(action)
        elif not defer_in_worker_thread(lambda: self.post_to_loop(action)):
            self.post_to_loop(action)

    def wait_from_thread(self, call: Call, work: Coroutine[Any, Any, T]) -> T:
        if self.is_on_loop():
            work.close()
            raise RuntimeError("ctx.wait() is for functions that run in a worker thread; use await here")
        # Blocking code that `work` needs runs here, in the thread that waits for it.
        thread, context = CallThread(self.pool, self.loop), copy_context()
        context.run(CURRENT_CALL_THREAD.set, thread)
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self.loop.create_task(work, context=context)
            tasks.append(task)
            self.keep_task(task)
            # Not inside the task: a task that is cancelled before it begins runs none of its code.
            task.add_done_callback(finish)
            call.adopt(task)

        def finish(task: asyncio.Task[T]) -> None:
            call.release(task)
            thread.close()

        if self.post_to_loop(begin):
            thread.serve()
        if not tasks or tasks[0].cancelled():
            work.close()
            raise Suspended()
        return tasks[0].result()


# -- The time that a call has: it begins when the call first waits, and stops while a person is asked.


class CallDeadline:
    """Ends a call when its time is up. It starts when the call first waits; `pause` stops the clock."""

    __slots__ = ("_engine", "_call", "_seconds", "_left", "_since", "_handle", "_renewed", "_spent", "_most")

    def __init__(self, engine: AsyncioEngine, call: Call, seconds: float) -> None:
        self._engine, self._call, self._seconds, self._left = engine, call, seconds, seconds
        loop = engine.loop
        self._since = loop.time()
        self._renewed = self._spent = 0.0
        self._handle: asyncio.TimerHandle | RowTimer | None = None
        if not call.questions and not call.timed_out:
            self._handle = engine.timers.call_later(seconds, self._expire)

    def resume(self) -> None:
        if self._handle is None and not self._call.timed_out:
            self._since = self._engine.loop.time()
            self._handle = self._engine.loop.call_later(max(self._left, 0.0), self._expire)

    def pause(self) -> None:
        if self._handle is not None and not self._call.timed_out:
            self._handle.cancel()
            self._handle = None
            now = self._engine.loop.time()
            self._spent += now - self._since
            self._left -= now - self._since
            if self._renewed:
                self._left = min(self._seconds - (now - self._renewed), self._most - self._spent)
                self._renewed = 0.0

    def extend(self, most: float) -> None:
        # The timer is not set again: news may come by the thousand.
        if self._handle is None:  # its clock stands still: it has all of its time when it goes on
            self._left = min(self._seconds, most - self._spent)
        else:
            self._renewed, self._most = self._engine.loop.time(), most

    def cancel(self) -> None:
        if self._handle is not None and not self._call.timed_out:
            self._handle.cancel()
            self._handle = None

    @property
    def error(self) -> TimedOut:
        return TimedOut(f"timed out after {self._seconds:g} s", data={"timeout_ms": int(self._seconds * 1000)})

    def _expire(self) -> None:
        if self._renewed:
            self.pause()
            if self._left > 0:
                self.resume()
                return
        self._call.timed_out = True
        self._call.stop()
        self._handle = self._engine.loop.call_later(STOP_GRACE_SECONDS, self._overdue)

    def _overdue(self) -> None:
        # The function has swallowed its cancellation. The caller is answered anyway.
        task = self._call.task
        if task is not None:
            self._engine.keep_task(cast("asyncio.Task[Any]", task))
        self._call.fail(self.error)


# -- Timers that are mostly cancelled long before their time, as those of calls are.


class Timers:
    """`call_later` of a loop. Of all timers of one length the loop knows only the next one.

    One of its own for each call would cost 8k instructions, because the loop sorts them.
    """

    __slots__ = ("_loop", "_rows")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rows: dict[float, _Row] = {}

    def call_later(self, seconds: float, action: Callable[[], None]) -> RowTimer:
        """Call `action` after so many seconds, unless the timer is cancelled."""
        row = self._rows.get(seconds)
        if row is None:
            row = self._rows[seconds] = _Row(self._loop, lambda: self._rows.pop(seconds))
        timer = RowTimer(row.timers, self._loop.time() + seconds, action)
        row.timers[timer] = None
        if not row.is_armed:
            row.arm(timer)
        return timer


class RowTimer:
    """One timer; `cancel` takes it out of its row."""

    __slots__ = ("at", "action", "_row")

    def __init__(self, row: dict[RowTimer, None], at: float, action: Callable[[], None]) -> None:
        self._row, self.at, self.action = row, at, action

    def cancel(self) -> None:
        self._row.pop(self, None)


class _Row:
    """Timers of one length, so they are due in the order in which they came. It ends when there is none at its time."""

    __slots__ = ("timers", "is_armed", "_loop", "_end")

    def __init__(self, loop: asyncio.AbstractEventLoop, end: Callable[[], object]) -> None:
        self.timers: dict[RowTimer, None] = {}
        self.is_armed = False
        self._loop, self._end = loop, end

    def arm(self, timer: RowTimer) -> None:
        # A context of its own: that of the call would be kept until then.
        self._loop.call_at(timer.at, self._due, context=Context())
        self.is_armed = True

    def _due(self) -> None:
        self.is_armed, now = False, self._loop.time()
        try:
            while (timer := next(iter(self.timers), None)) is not None and timer.at <= now:
                timer.cancel()
                timer.action()
        finally:
            if timer := next(iter(self.timers), None):
                self.arm(timer)
            else:
                self._end()


# -- Takes the first step of a coroutine at once, as the task that has the rest of it. Most have no rest.
#
# A task that begins in the next turn of the loop would cost 9 µs of a 49 µs call.


if sys.version_info >= (3, 12):

    class EagerTaskStarter:
        """Starts coroutines on one loop."""

        __slots__ = ("loop",)

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop = loop

        def start(self, work: Coroutine[Any, Any, None], context: Context | None) -> asyncio.Task[None] | None:
            """Like `create_task`. The context must be new; only `work` changes it. None stands for an empty one.

            Returns the task, for whoever must hold it; None if the work is done.
            """
            context = Context() if context is None else context
            task = asyncio.Task(work, loop=self.loop, context=context, eager_start=True)
            return None if task.done() else task

        async def close(self) -> None:
            """Nothing is kept."""

else:
    from defserve.serve.spare_tasks import EagerTaskStarter as EagerTaskStarter
