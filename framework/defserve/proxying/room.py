"""How many calls of a backend run at once. The others wait in line, and past that they are refused."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from defserve.proxying.failures import too_busy

MOST_WAITING: Final = 4
"""Calls that wait, for each that may run."""


class CallRoom:
    """A call runs from `enter`, or else `turn`, until `leave`. `running` are under way, `total` have ever begun."""

    def __init__(self, id: str, limit: int) -> None:
        self._id, self.limit = id, limit
        self.running = self.total = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._emptied: asyncio.Event | None = None

    def enter(self) -> bool:
        """Whether a call may run at once. If not, it waits for its `turn`."""
        if self.running >= self.limit or self._waiting:
            return False
        self.running += 1
        self.total += 1
        return True

    async def empty(self, seconds: float) -> None:
        """Wait until no call is under way; at most so many seconds."""
        if self.running:
            self._emptied = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    async def turn(self) -> None:
        """Wait in line. Raises ResourceExhausted if the line is too long."""
        if len(self._waiting) >= MOST_WAITING * self.limit:
            raise too_busy(self._id, f"{self.limit} calls run and {len(self._waiting)} wait")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise
        self.total += 1

    def leave(self) -> None:
        """A call is over. The next one in line begins."""
        self.running -= 1
        while self._waiting and self.running < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                # Taken for the one who waits, so that nobody else gets in between.
                self.running += 1
                turn.set_result(None)
        if self.running == 0 and self._emptied is not None:
            self._emptied.set()
