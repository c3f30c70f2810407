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
    """`async with room` surrounds a call. `running` are under way, `total` have ever begun."""

    def __init__(self, id: str, limit: int) -> None:
        self._id, self.limit = id, limit
        self.running = self.total = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._emptied: asyncio.Event | None = None

    async def __aenter__(self) -> None:
        if self.running < self.limit and not self._waiting:
            self.running += 1
        else:
            await self._turn()
        self.total += 1

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    async def empty(self, seconds: float) -> None:
        """Wait until no call is under way; at most so many seconds."""
        if self.running:
            self._emptied = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    async def _turn(self) -> None:
        if len(self._waiting) >= MOST_WAITING * self.limit:
            raise too_busy(self._id, f"{self.limit} calls run and {len(self._waiting)} wait")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        self.running -= 1
        while self._waiting and self.running < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                # Taken for the one who waits, so that nobody else gets in between.
                self.running += 1
                turn.set_result(None)
        if self.running == 0 and self._emptied is not None:
            self._emptied.set()
