"""Timers that are mostly cancelled long before their time, as those of calls are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context


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
