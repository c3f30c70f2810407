"""A store in the memory of this process: fast, bounded, and gone when the process ends."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from heapq import heappop, heappush
from threading import Lock
from typing import Final

from defserve.stores.store import StoreChange, StoreFull

MAX_BYTES: Final = 256 * 1024 * 1024


class MemoryStore:
    """A Store for one process, for any thread. It holds at most `limit` bytes."""

    def __init__(self, *, limit: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock, self._lock = limit, clock, Lock()
        self._spaces: dict[str, dict[str, bytes]] = {}
        self._expires: dict[str, float] = {}
        self._queue: list[tuple[float, str]] = []
        self._bytes = 0

    async def open(self) -> None:
        pass

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        with self._lock:
            self._expire()
            held = self._spaces.get(space, {})
            return {name: held[name] for name in names if name in held}

    async def change(self, change: StoreChange) -> bool:
        with self._lock:
            self._expire()
            held = self._spaces.get(change.space, {})
            if any(held.get(name) != value for name, value in change.expect.items()):
                return False
            replaced = {name: held[name] for name in {*change.drop, *change.put} if name in held}
            growth = _size(change.put) - _size(replaced)
            if growth > 0 and self._bytes + growth > self._limit:
                raise StoreFull("the store in memory is full", data={"limit": "store_bytes", "max": self._limit})
            self._bytes += growth
            for name in change.drop:
                held.pop(name, None)
            held.update(change.put)
            self._keep(change.space, held, change.ttl)
            return True

    async def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        with self._lock:
            self._expire()
            held = list(self._spaces.get(space, {}).items())
        for entry in held:
            yield entry

    async def spaces(self, prefix: str) -> AsyncIterator[str]:
        with self._lock:
            self._expire()
            found = [space for space in self._spaces if space.startswith(prefix)]
        for space in found:
            yield space

    async def check(self) -> list[str]:
        return []

    async def close(self) -> None:
        pass

    def _keep(self, space: str, held: dict[str, bytes], ttl: float | None) -> None:
        if not held:
            self._spaces.pop(space, None)
            self._expires.pop(space, None)
            return
        self._spaces[space] = held
        if ttl is not None:
            self._expires[space] = end = self._clock() + ttl
            heappush(self._queue, (end, space))

    def _expire(self) -> None:
        while self._queue and self._queue[0][0] <= self._clock():
            end, space = heappop(self._queue)
            if self._expires.get(space) == end:
                del self._expires[space]
                self._bytes -= _size(self._spaces.pop(space))


def is_in_memory(store: object) -> bool:
    """Whether a store, or the store that a server's part belongs to, ends with this process."""
    return isinstance(getattr(store, "raw", store), MemoryStore)


def _size(entries: Mapping[str, bytes]) -> int:
    return sum(len(name) + len(value) for name, value in entries.items())
