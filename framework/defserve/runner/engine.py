"""The one module that puts calls on an asyncio loop: tasks, timers, threads. See `core.engine` for the contracts."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from defserve.core.call import Call
from defserve.core.engine import Pending, Task
from defserve.errors import Draining, Suspended, TimedOut
from defserve.runner.pool import Pool

T = TypeVar("T")


class Deadline:
    """Cancels a call when its time is up. Armed at the first suspension; `pause` stops the clock."""

    __slots__ = ("_loop", "_call", "_left", "_since", "_handle", "_paused", "expired")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Call, seconds: float) -> None:
        self._loop, self._call, self._left = loop, call, seconds
        self._since, self._paused, self.expired = 0.0, 0, False
        self._handle: asyncio.TimerHandle | None = None
        self._arm()

    def pause(self) -> None:
        self._paused += 1
        if self._paused == 1:
            self.disarm()

    def resume(self) -> None:
        self._paused -= 1
        if self._paused == 0 and not self.expired:
            self._arm()

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._left -= self._loop.time() - self._since

    def _arm(self) -> None:
        self._since = self._loop.time()
        self._handle = self._loop.call_later(max(self._left, 0.0), self._expire)

    def _expire(self) -> None:
        self._handle, self.expired = None, True
        self._call.timed_out = True
        self._call.stop()


class AsyncioEngine:
    """Implements `core.engine.Engine` on the running loop."""

    ready = True

    def __init__(self, threads: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.pool = Pool(threads, self.loop.call_soon_threadsafe)
        self.tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.get_ident()
        self._eager = hasattr(asyncio, "eager_task_factory")

    def start(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        task = self._task(self._settle(call, work))
        if not call.settled:
            call.task = task
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _settle(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        if call.task is None:
            call.task = asyncio.current_task()
        try:
            result = await work
        except BaseException as error:
            if call.suspension is not None:
                self._suspended(call)
            elif isinstance(error, asyncio.CancelledError) and not call.cancelled:
                call.session.fail(call, Draining("the server is shutting down"))
            else:
                call.session.fail(call, error)
        else:
            if call.suspension is None:
                call.session.settle(call, result)
            else:
                self._suspended(call)

    def _suspended(self, call: Call) -> None:
        assert call.suspension is not None
        try:
            call.session.settle(call, call.suspension())
        except Exception as error:
            call.session.fail(call, error)

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if self._eager:
            return asyncio.Task(work, loop=self.loop, eager_start=True)  # pyright: ignore
        return self.loop.create_task(work)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Task:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def soon(self, action: Callable[[], None]) -> None:
        self.loop.call_soon(action)

    def pending(self) -> Pending:
        return self.loop.create_future()

    async def wait(self, pending: Pending, timeout: float | None) -> Any:
        async with asyncio.timeout(timeout):
            return await pending

    async def within(self, call: Call, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._timed(call, seconds, work)
        except asyncio.CancelledError:
            if not call.timed_out or call.cancelled:
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise TimedOut(f"timed out after {seconds:g} s", data={"timeout_ms": int(seconds * 1000)}) from None

    @types.coroutine
    def _timed(self, call: Call, seconds: float, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        # Step the coroutine by hand: one that never suspends must not pay for a timer (6 µs of a 32 µs call).
        try:
            waiting_for = work.send(None)
        except StopIteration as done:
            return done.value
        deadline = Deadline(self.loop, call, seconds)
        call.timer = deadline
        try:
            while True:
                try:
                    value = yield waiting_for
                except BaseException as error:
                    waiting_for = work.throw(error)
                else:
                    waiting_for = work.send(value)
        except StopIteration as done:
            return done.value
        finally:
            call.timer = None
            deadline.disarm()

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        future: asyncio.Future[T] = self.loop.create_future()
        self.pool.submit(function, lambda result, error: self._finish(future, result, error))
        future.add_done_callback(self._given_up)
        return future

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            self.pool.regain()
        elif isinstance(error, StopIteration | KeyboardInterrupt | SystemExit):
            # None of these can pass through a future; each would end the loop or be mistaken for a return.
            future.set_exception(RuntimeError(f"{type(error).__name__} raised by the function: {error}"))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _given_up(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self.pool.abandon()

    def on_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def post(self, action: Callable[[], None]) -> None:
        self.pool.post(action)

    def wait_from_thread(self, call: Call, work: Coroutine[Any, Any, T]) -> T:
        if self.on_loop():
            work.close()
            raise RuntimeError("ctx.wait() is for functions that run in a worker thread; use await here")
        done = threading.Event()
        outcome: list[Any] = [None, None]

        async def run() -> None:
            try:
                outcome[0] = await work
            except BaseException as error:
                outcome[1] = error
            finally:
                done.set()

        def begin() -> None:
            call.adopt(self.spawn(run()))

        self.post(begin)
        done.wait()
        if isinstance(outcome[1], asyncio.CancelledError):
            raise Suspended() from None
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]
