"""Nonces: values that may be used only once, such as the answer to a question or a sealed state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from heapq import heappop, heappush
from threading import Lock
from typing import Final, Protocol

from defserve.errors import LimitExceeded
from defserve.stores.spaces import NONCES
from defserve.stores.store import Store, StoreChange

_SPENT: Final = "spent"


class NonceStore(Protocol):
    """Remembers which nonces were used. Processes that may be given the same nonce must share one."""

    async def spend(self, nonce: str, *, ttl: float) -> bool:
        """Use a nonce that is valid for `ttl` more seconds. True exactly once; False afterwards, and if it has expired.

        The caller must refuse an expired nonce itself, because the store may have forgotten it. Raises LimitExceeded if
        the store is full: a nonce that is not remembered could be used twice.
        """
        ...


class MemoryNonces:
    """A NonceStore for one process, for any thread. It holds at most `limit` nonces that have not expired."""

    __slots__ = ("_limit", "_clock", "_lock", "_spent", "_queue")

    def __init__(self, limit: int = 10_000, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock, self._lock = limit, clock, Lock()
        self._spent: set[str] = set()
        self._queue: list[tuple[float, str]] = []

    async def spend(self, nonce: str, *, ttl: float) -> bool:
        return self.spend_now(nonce, ttl=ttl)

    def spend_now(self, nonce: str, *, ttl: float) -> bool:
        """The same without awaiting, for code that never leaves this process."""
        with self._lock:
            now = self._clock()
            while self._queue and self._queue[0][0] <= now:
                self._spent.discard(heappop(self._queue)[1])
            # Written this way so that a ttl of NaN is refused as well.
            if not ttl > 0 or nonce in self._spent:
                return False
            if len(self._spent) >= self._limit:
                wait = self._queue[0][0] - now if self._queue else 1.0
                raise LimitExceeded(
                    "Too many answers are being remembered; try again later",
                    data={"limit": "nonces", "max": self._limit, "retry_after_ms": int(min(wait, 3600.0) * 1000) + 1},
                )
            self._spent.add(nonce)
            heappush(self._queue, (now + ttl, nonce))
            return True

    def __len__(self) -> int:
        return len(self._spent)


class StoreNonces:
    """A NonceStore for all processes that share a store. If the store raises, nothing was spent."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def spend(self, nonce: str, *, ttl: float) -> bool:
        if not ttl > 0:
            return False
        space, mine = NONCES.of(nonce), os.urandom(8)
        if await self._store.change(StoreChange(space, put={_SPENT: mine}, expect={_SPENT: None}, ttl=ttl)):
            return True
        # A store that lost its connection may repeat a change, and then find its own first attempt.
        return (await self._store.get(space, [_SPENT])).get(_SPENT) == mine
