"""The time of one run: it stands still while a person is asked, and goes on in the next request of the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from defserve.core.call import Call
from defserve.errors import TimedOut


class RunClock:
    """Calls `expired` when the seconds are over, and `asking` when somebody is asked.

    It stands in for the timer of the call that waits for the run.
    """

    def __init__(self, seconds: float, expired: Callable[[], object], asking: Callable[[], object]) -> None:
        self.over = self.paused = False
        self._seconds, self._left, self._expired, self._asking = seconds, seconds, expired, asking
        self._since, self._handle = 0.0, None
        self._call: Call | None = None
        self._outer = None

    def follow(self, call: Call) -> None:
        """Run while this call does. Whoever pauses its timer pauses the clock too."""
        self._call, self._outer = call, call.timer
        call.timer = self
        self._start()

    def leave(self) -> None:
        """Stop, and give the call its own timer back."""
        self._stop()
        if self._call is not None and self._call.timer is self:
            self._call.timer = self._outer

    def pause(self) -> None:
        self.paused = True
        self._stop()
        if self._outer is not None:
            self._outer.pause()
        self._asking()

    def resume(self) -> None:
        self.paused = False
        self._start()
        if self._outer is not None:
            self._outer.resume()

    def extend(self, most: float) -> None:
        """A run has its seconds, whatever the tools that it calls report."""

    @property
    def error(self) -> TimedOut:
        if self._outer is not None:
            return self._outer.error
        return TimedOut(f"timed out after {self._seconds:g} s", data={"timeout_ms": int(self._seconds * 1000)})

    def _start(self) -> None:
        if self._handle is None and not self.over:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._handle = loop.call_later(max(self._left, 0.0), self._expire)

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._left -= asyncio.get_running_loop().time() - self._since

    def _expire(self) -> None:
        self.over = True
        self._handle = None
        self._expired()
