"""How many calls of a backend run at once. The others wait in line, and past that they are refused."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final, TypeAlias

from defserve.proxying.failures import too_busy

MOST_WAITING: Final = 4
"""Calls that wait, for each that may run."""
SHARE_OF_ONE: Final = 3
"""Quarters of the room that one caller may have, so that it cannot keep out the others."""
TIMES_KEPT: Final = 1_000

CallTime: TypeAlias = tuple[float, float, bool]
"""When a call began and ended, by `time.perf_counter`, and whether it failed."""


class CallSlots:
    """`enter` and `leave` surround a call. `running` are under way, `total` have ever begun.

    Callers wait in lines of their own, which take turns. `times` are those of the last calls; `errors` have failed.
    """

    def __init__(self, id: str, limit: int) -> None:
        self._id, self.limit, self._share = id, limit, -(-limit * SHARE_OF_ONE // 4)
        self.running = self.total = self.errors = 0
        self.times: deque[CallTime] = deque(maxlen=TIMES_KEPT)
        self._each: dict[str, int] = {}
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._emptied: asyncio.Event | None = None

    def enter(self, caller: str) -> asyncio.Future[None] | None:
        """Begin a call. None if there is room; else wait for what this gives, with `turn`. Raises ResourceExhausted."""
        mine = self._each.get(caller, 0)
        if self.running < self.limit and mine < self._share and caller not in self._lines:
            self._each[caller] = mine + 1
            self.running += 1
            self.total += 1
            return None
        line, waiting = self._lines.get(caller, ()), sum(map(len, self._lines.values()))
        if waiting >= MOST_WAITING * self.limit or len(line) >= MOST_WAITING * self._share:
            raise too_busy(self._id, f"{self.running} calls run and {waiting} wait")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        return turn

    async def turn(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Wait until a call may begin. It has begun when this returns."""
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave(caller)
            else:
                self._forget(caller, turn)
            raise
        self.total += 1

    def leave(self, caller: str) -> None:
        """A call is over."""
        self.running -= 1
        if (left := self._each[caller] - 1) > 0:
            self._each[caller] = left
        else:
            del self._each[caller]
        if self._lines:
            self._call_in()
        if self.running == 0 and self._emptied is not None:
            self._emptied.set()

    async def empty(self, seconds: float) -> None:
        """Wait until no call is under way; at most so many seconds."""
        if self.running:
            self._emptied = self._emptied or asyncio.Event()
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    def _call_in(self) -> None:
        """Give the place that has become free to a caller who has not too many. Its line then is the last."""
        for caller in list(self._lines):
            if self.running >= self.limit:
                return
            if self._each.get(caller, 0) >= self._share:
                continue
            # Who was cancelled a moment ago has not left its line yet.
            line = deque(turn for turn in self._lines.pop(caller) if not turn.done())
            if not line:
                continue
            # Taken for the one who waits, so that nobody else gets in between.
            self._each[caller] = self._each.get(caller, 0) + 1
            self.running += 1
            line.popleft().set_result(None)
            if line:
                self._lines[caller] = line

    def _forget(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(caller, ())
        if turn in line:
            self._lines[caller] = deque(other for other in line if other is not turn)
            if len(line) == 1:
                del self._lines[caller]
