"""The time that a call has: it begins when the call first waits, and stops while a person is asked."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from defserve.core.call import Call
from defserve.errors import TimedOut
from defserve.runner.threads.call_thread import GRACE
from defserve.runner.timing.timers import RowTimer, Timers


class TimingEngine(Protocol):
    """What a deadline needs of an engine."""

    loop: asyncio.AbstractEventLoop
    timers: Timers

    def keep(self, task: asyncio.Task[Any], /) -> None: ...


class CallDeadline:
    """Ends a call when its time is up. It starts when the call first waits; `pause` stops the clock."""

    __slots__ = ("_engine", "_call", "_seconds", "_left", "_since", "_handle", "_renewed", "_spent", "_most")

    def __init__(self, engine: TimingEngine, call: Call, seconds: float) -> None:
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

    def end(self) -> None:
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
        self._handle = self._engine.loop.call_later(GRACE, self._overdue)

    def _overdue(self) -> None:
        # The function has swallowed its cancellation. The caller is answered anyway.
        task = self._call.task
        if task is not None:
            self._engine.keep(cast("asyncio.Task[Any]", task))
        self._call.fail(self.error)
