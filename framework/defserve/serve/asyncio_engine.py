"""Runs calls on an asyncio loop: tasks, timers, threads, deadlines. `core.engine` documents the methods.

How it works: a call takes its first step at once, in the turn that brought it (`EagerTaskStarter`). What never waits
costs no task and no turn of the loop; other work cannot tell that it did not begin in a task of its own. The deadline
of a call begins when it first waits. Deadlines are kept in rows, since a call that ends in time should cost its timer
next to nothing.
"""

from __future__ import annotations

import asyncio
import threading
import types

# Documented in "Extending asyncio", for tasks of other libraries.
from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from sys import getrefcount
from typing import Any, TypeVar, cast
from weakref import getweakrefcount

from defserve.core.call import Call
from defserve.core.engine import CancellableTask, await_remaining_steps, iter_remaining_steps
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
    run_without_waiting,
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
        self._first_steps.start(self._settling(call, work), copy_context())

    def run_call_here(self, call: Call, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, None] | None:
        call.task = asyncio.current_task(self.loop)
        try:
            waiting_for = work.send(None)
        except StopIteration as done:
            if call.notified:
                return self._settle_apart(call, partial(self._settle, call, done.value))
            self._settle(call, done.value)
        except BaseException as error:
            if call.notified:
                return self._settle_apart(call, partial(self._fail, call, error))
            self._fail(call, error)
        else:
            return self._settling(call, await_remaining_steps(work, waiting_for))
        call.task = None  # it goes on to something else
        return None

    async def _settling(self, call: Call, work: Awaitable[Any]) -> None:
        # Set in the first step: a task that is cancelled before that would end without a reply. `begin` has set it.
        if call.task is None:
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
            result = yield from iter_remaining_steps(work, waiting_for)
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
            waiting_for = None  # as in `iter_remaining_steps`
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
        return self.in_thread(function) if thread is None else thread.clean_up(function)

    async def in_one_thread(self, work: Coroutine[Any, Any, T], *, wholly: bool) -> T:
        outer, thread = CURRENT_CALL_THREAD.get(), CallThread(self.pool, self.loop)
        CURRENT_CALL_THREAD.set(thread)
        thread.request_worker_thread()
        try:
            return await (thread.run(lambda: run_without_waiting(work)) if wholly else work)
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
# A task for each of them would cost a turn of the loop: 9 µs of a 49 µs call. From Python 3.12 on there are eager
# tasks.


EAGER = hasattr(asyncio, "eager_task_factory")


class EagerTaskStarter:
    """Starts coroutines on one loop. It has a spare task as long as they end with their first step.

    For those that wait, a spare task is one step more than a plain one. If all of them wait, there is none.
    """

    __slots__ = ("loop", "_spare", "_ends_at_once")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._spare: SpareTask | None = None
        self._ends_at_once = False

    def start(self, work: Coroutine[Any, Any, None], context: Context | None) -> asyncio.Task[None] | None:
        """Like `create_task`. The context must be new; only `work` changes it. None stands for an empty one.

        Returns the task, for whoever must hold it; None if the work is done. The first step is taken before this
        returns, or soon if there is no spare task for this context.
        """
        if EAGER:
            eager: Any = {"eager_start": True}
            context = Context() if context is None else context
            task = asyncio.Task(work, loop=self.loop, context=context, **eager)
            return None if task.done() else task
        spare = self._spare
        # Work is mostly begun in an empty context. The spare task need not be asked about that.
        if spare is None or not spare.is_free or ((context or spare.before) and not spare.can_start_in(context)):
            context = Context() if context is None else context
            return self.loop.create_task(self._apart(work, context.copy()), context=context)
        self._spare = None  # the work may start other work
        if spare.take_first_step(work):
            if self._ends_at_once:
                self._ends_at_once, self._spare = False, SpareTask(self.loop, spare.before)
            return spare.task
        self._ends_at_once = True
        self._spare = spare if spare.is_free else SpareTask(self.loop, spare.before)
        return None

    async def _apart(self, work: Coroutine[Any, Any, None], before: Context) -> None:
        try:
            waiting_for = work.send(None)
        except StopIteration:
            if self._spare is None or self._spare.task.done():
                self._spare = SpareTask(self.loop, before)
        else:
            await await_remaining_steps(work, waiting_for)

    async def close(self) -> None:
        """End the spare task."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.task.cancel()
            await asyncio.wait((spare.task,))


# -- One task that waits, parked, for a coroutine whose first step was taken in its name. For Python 3.11.
#
# The coroutine cannot tell: `asyncio.current_task()` is the task that later has the rest of it, and the context is that
# task's. So cancel scopes and timeouts that begin in the first step hold in the rest.


NOT_WAITING: Any = object()
"""Stands for what work waits for that does not wait."""


class SpareTask(asyncio.Future[None]):
    """What the `task` waits for until it has work. Work begins in the context `before`.

    It is free until work waits, or leaves a trace on the task. While the task has work and does not know it yet, this
    stands for what that work waits for: who cancels the task cancels that, and anyio asks whether it is done.
    """

    # Without them, each attribute of a future of ours costs as much as a call.
    __slots__ = (
        *("before", "task", "is_free"),
        *("_context", "_work", "_waiting_for", "_asked_to_cancel", "_is_stepping", "_name"),
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, before: Context) -> None:
        super().__init__(loop=loop)
        self.before, self._context = before, before.copy()
        self._work: Coroutine[Any, Any, None] | None = None
        self._waiting_for = NOT_WAITING
        self._asked_to_cancel: tuple[Any] | None = None
        self.is_free = self._is_stepping = False
        self.task = loop.create_task(self._stand_by(), context=self._context)
        self._name = self.task.get_name()

    def can_start_in(self, context: Context | None) -> bool:
        """Whether work that must begin in this context can begin here."""
        return context is not None and _are_same(context, self.before)

    def take_first_step(self, work: Coroutine[Any, Any, None]) -> bool:
        """Take the first step of `work` as this task. Whether there is a rest of it, which the task takes over."""
        task, loop, outer = self.task, self.get_loop(), None
        references, weak_references = getrefcount(task), getweakrefcount(task)
        try:
            _enter_task(loop, task)
        except RuntimeError:  # another task starts this one
            outer = asyncio.current_task(loop)
            assert outer is not None
            _leave_task(loop, outer)
            _enter_task(loop, task)
        self._is_stepping, waiting_for = True, NOT_WAITING
        try:
            waiting_for = self._context.run(work.send, None)
        except StopIteration:
            pass
        except BaseException as error:
            work, waiting_for = _failing(error), None
        finally:
            self._is_stepping = False
            _leave_task(loop, task)
            if outer is not None:
                _enter_task(loop, outer)
        if waiting_for is not NOT_WAITING:
            self._hand_over(work, waiting_for)
            return True
        # Whoever holds the task, or will be told of its end, must not take the next work for this one.
        if (
            getrefcount(task) != references
            or getweakrefcount(task) != weak_references
            or self._asked_to_cancel is not None
            or task._callbacks is not None  # pyright: ignore
            or task.get_name() is not self._name
            or ((self._context or self.before) and not _are_same(self._context, self.before))
        ):
            self._end()
        return False

    def _hand_over(self, work: Coroutine[Any, Any, None], waiting_for: Any) -> None:
        self.is_free, self._work, self._waiting_for = False, work, waiting_for
        self._mark_awaited(False)  # until this task waits for it, others may
        self.set_result(None)
        if self._asked_to_cancel is not None and not self.cancel(*self._asked_to_cancel):
            self._cancel_in_next_step(self._asked_to_cancel)

    def _end(self) -> None:
        self.is_free = False
        if self._asked_to_cancel is not None:
            self.cancel(*self._asked_to_cancel)
        else:
            self.set_result(None)

    def _cancel_in_next_step(self, message: tuple[Any, ...]) -> None:
        """As `cancel` does if there is nothing to cancel that the work waits for. It was counted already."""
        self.task.cancel(*message)
        self.task.uncancel()

    async def _stand_by(self) -> None:
        self.is_free = True
        try:
            await self
        except asyncio.CancelledError as error:
            if self._work is None:
                raise
            self._cancel_in_next_step(error.args)
        if self._work is not None:
            self._mark_awaited(True)
            await await_remaining_steps(self._work, self._waiting_for)

    def _mark_awaited(self, is_awaited: bool) -> None:
        """Say whether a task is about to wait for the future. asyncio refuses a future that two say so of at a time."""
        if (future := self._awaited) is not None:
            future._asyncio_future_blocking = is_awaited  # pyright: ignore

    # -- as a future, for who cancels the task -----------------------------------------------------------

    def cancel(self, msg: Any = None) -> bool:
        if self._is_stepping:
            self._asked_to_cancel = (msg,)
            return True
        if self._waiting_for is NOT_WAITING:
            self.is_free = False
            return super().cancel(msg)
        return (future := self._awaited) is not None and future.cancel(msg)

    def done(self) -> bool:
        if self._waiting_for is NOT_WAITING:
            return super().done()
        return (future := self._awaited) is not None and future.done()

    @property
    def _awaited(self) -> asyncio.Future[Any] | None:
        return self._waiting_for if asyncio.isfuture(self._waiting_for) else None


async def _failing(error: BaseException) -> None:
    raise error


def _are_same(one: Context, other: Context) -> bool:
    """Whether two contexts hold the same objects. `==` would ask the objects."""
    if len(one) != len(other):
        return False
    for variable, value in one.items():  # noqa: SIM110  `all(…)` costs a frame of its own for each variable
        if variable not in other or other[variable] is not value:
            return False
    return True
