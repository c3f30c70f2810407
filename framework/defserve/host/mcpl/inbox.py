"""What a server sent and nobody has read yet: an async iterator with a bound, which ends when the conversation does."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from defserve.errors import PeerError

T = TypeVar("T")

ROOM: Final = 1_000


class Inbox(Generic[T]):
    """`async for item in inbox`. Ends when the client closes; raises PeerGone when the server left."""

    def __init__(self, room: int = ROOM) -> None:
        self._items: deque[T] = deque()
        self._room = room
        self._ended = False
        self._reason: PeerError | None = None
        self._news = asyncio.Event()

    def put(self, item: T) -> bool:
        """Whether there was room for it."""
        if self._ended or len(self._items) >= self._room:
            return False
        self._items.append(item)
        self._news.set()
        return True

    def end(self, reason: PeerError | None = None) -> None:
        """What is there can still be read."""
        if not self._ended:
            self._ended, self._reason = True, reason
            self._news.set()

    def __aiter__(self) -> Inbox[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._ended:
                raise self._reason or StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()
