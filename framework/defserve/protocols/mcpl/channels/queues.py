"""MCPL §14.3: what concerns one channel is done one at a time, in the order in which it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager

# For one session: notifications that wait for earlier ones.
MOST_WAITING = 1_000


class ChannelQueues:
    """The queues of one session."""

    __slots__ = ("waiting", "_tails")

    def __init__(self) -> None:
        self.waiting = 0
        self._tails: dict[Hashable, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        """How many queues have work."""
        return len(self._tails)

    @property
    def full(self) -> bool:
        return self.waiting >= MOST_WAITING

    @asynccontextmanager
    async def turn(self, queue: Hashable) -> AsyncGenerator[None]:
        """Wait for everything that came earlier in this queue."""
        before, mine = self._tails.get(queue), asyncio.get_running_loop().create_future()
        self._tails[queue] = mine
        self.waiting += 1

        def end(_: object = None) -> None:
            mine.set_result(None)
            if self._tails[queue] is mine:
                del self._tails[queue]

        try:
            if before is not None:
                await asyncio.wait((before,))
            yield
        finally:
            self.waiting -= 1
            if before is None or before.done():
                end()
            else:  # cancelled while it waited: those behind it keep waiting for the one before
                before.add_done_callback(end)
