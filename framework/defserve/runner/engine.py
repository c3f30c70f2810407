"""Runs calls on an asyncio loop: tasks, timers, threads. `core.engine` documents the methods."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

from defserve.core.call import Call
from defserve.core.engine import PendingAnswer, Task
from defserve.core.stepping import rest, steps_left
from defserve.errors import Draining, Suspended, TimedOut
from defserve.runner.tasks.first_steps import FirstSteps
from defserve.runner.threads.call_thread import CURRENT, CallThread, current_thread, run_to_the_end
from defserve.runner.threads.outcome import ThreadOutcome
from defserve.runner.threads.pool import WorkerPool, do_afterwards
from defserve.runner.threads.waking import waking
from defserve.runner.timing.call_deadline import CallDeadline
from defserve.runner.timing.timers import Timers

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
        self._waking = waking(self.loop)
        self.pool = WorkerPool(threads, self._waking.wake)
        self.timers = Timers(self.loop)
        self.tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.get_ident()
        self._first_steps = FirstSteps(self.loop)

    async def close(self) -> None:
        """Nothing is started any more."""
        self.pool.close()
        self._waking.close()
        await self._first_steps.close()

    def start(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        # The session's table of calls in flight keeps the task alive. A set of our own would cost 3 µs a call.
        self._first_steps.start(self._settling(call, work), copy_context())

    def begin(self, call: Call, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, None] | None:
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
            return self._settling(call, rest(work, waiting_for))
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
                self._suspended(call)
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
            self._suspended(call)

    def _fail(self, call: Call, error: BaseException) -> None:
        if call.suspension is not None:
            self._suspended(call)
            return
        task = cast("asyncio.Task[Any] | None", call.task)
        # If nobody cancelled the task, the function itself raised CancelledError.
        if isinstance(error, asyncio.CancelledError) and not call.cancelled and task is not None and task.cancelling():
            error = Draining("the server is shutting down")
        call.session.fail(call, error)

    def _suspended(self, call: Call) -> None:
        assert call.suspension is not None
        try:
            call.session.settle(call, call.suspension())
        except Exception as error:
            call.session.fail(call, error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Task:
        task = self.loop.create_task(work)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that nobody else holds until it is done."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def soon(self, action: Callable[[], None]) -> None:
        self.loop.call_soon(action)

    def time(self) -> float:
        return self.loop.time()

    def pending(self) -> PendingAnswer:
        return self.loop.create_future()

    async def wait(self, pending: PendingAnswer, timeout: float | None) -> Any:
        async with asyncio.timeout(timeout):
            return await pending

    @types.coroutine
    def within(self, call: Call, seconds: float, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        # Step the coroutine by hand: one that never waits must not pay for a timer (6 µs of a 32 µs call).
        try:
            waiting_for = work.send(None)
        except StopIteration as done:
            return done.value
        outer, deadline = call.timer, CallDeadline(self, call, seconds)
        call.timer = deadline
        try:
            result = yield from steps_left(work, waiting_for)
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
            waiting_for = None  # as in `steps_left`
            if call.timer is deadline:  # a function may run inside another of the same call
                call.timer = outer
            deadline.end()
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        raise deadline.error

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        if (thread := current_thread()) is not None:
            return thread.run(function)
        return ThreadOutcome(self.pool, self.loop, function)

    def clean_up_in_thread(self, function: Callable[[], None]) -> Awaitable[None]:
        thread = current_thread()
        return self.in_thread(function) if thread is None else thread.clean_up(function)

    async def in_one_thread(self, work: Coroutine[Any, Any, T], *, wholly: bool) -> T:
        outer, thread = CURRENT.get(), CallThread(self.pool, self.loop)
        CURRENT.set(thread)
        thread.hire()
        try:
            return await (thread.run(lambda: run_to_the_end(work)) if wholly else work)
        finally:
            CURRENT.set(outer)
            thread.close()
            if thread.never_served:
                work.close()

    def on_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def post(self, action: Callable[[], None]) -> bool:
        return self.pool.post(action)

    def afterwards(self, action: Callable[[], None]) -> None:
        if self.on_loop():
            self.soon(action)
        elif not do_afterwards(lambda: self.post(action)):
            self.post(action)

    def wait_from_thread(self, call: Call, work: Coroutine[Any, Any, T]) -> T:
        if self.on_loop():
            work.close()
            raise RuntimeError("ctx.wait() is for functions that run in a worker thread; use await here")
        # Blocking code that `work` needs runs here, in the thread that waits for it.
        thread, context = CallThread(self.pool, self.loop), copy_context()
        context.run(CURRENT.set, thread)
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self.loop.create_task(work, context=context)
            tasks.append(task)
            self.keep(task)
            # Not inside the task: a task that is cancelled before it begins runs none of its code.
            task.add_done_callback(finish)
            call.adopt(task)

        def finish(task: asyncio.Task[T]) -> None:
            call.release(task)
            thread.close()

        if self.post(begin):
            thread.serve()
        if not tasks or tasks[0].cancelled():
            work.close()
            raise Suspended()
        return tasks[0].result()
