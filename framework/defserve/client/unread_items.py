"""What a peer sent, until somebody reads it: bounded in number and bytes. The oldest make room, or the peer waits."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from defserve.base.peer_bounds import MAX_UNREAD_BYTES, RecentItems
from defserve.errors import PeerError

T = TypeVar("T")


class UnreadItems(Generic[T]):
    """`get` waits for the next item. After `end` it gives out what is left, then raises the reason."""

    def __init__(self, most: int) -> None:
        self._items: RecentItems[T] = RecentItems(most)
        self._ended = False
        self._reason: PeerError | None = None
        self._news = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether `get` would have to wait."""
        return not (self._items or self._ended)

    def put(self, item: T, size: int) -> None:
        """Take an item that takes so many bytes. After the end, none is taken."""
        if not self._ended:
            self._items.append_with_size(item, size)
            self._news.set()

    def put_if_room(self, item: T, size: int) -> bool:
        """Take it only if nothing has to go for it. Whether it was taken."""
        has_room = not self._ended and self._items.has_room(size)
        if has_room:
            self.put(item, size)
        return has_room

    def end(self, reason: PeerError | None = None) -> None:
        """Take nothing more. The first reason counts."""
        if not self._ended:
            self._ended, self._reason = True, reason
            self._news.set()

    async def get(self) -> T:
        """Raises the reason of the end, or StopAsyncIteration."""
        while not self._items:
            if self._ended:
                raise self._reason or StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()


class ByteQueue(asyncio.Queue[T]):
    """A queue in which putting waits while there are `most` items, or `most_bytes` in all. Its items are bytes, or
    something of ours that takes next to nothing."""

    def __init__(self, most: int, most_bytes: int = MAX_UNREAD_BYTES) -> None:
        self.bytes, self._most_bytes = 0, most_bytes
        super().__init__(most)

    def full(self) -> bool:
        return super().full() or self.bytes >= self._most_bytes

    def _put(self, item: T) -> None:
        self.bytes += len(item) if isinstance(item, bytes) else 0
        super()._put(item)

    def _get(self) -> T:
        item = super()._get()
        self.bytes -= len(item) if isinstance(item, bytes) else 0
        return item
