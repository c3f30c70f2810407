"""One call at a time on each tree: by a lock in this process, by a lease among processes whose store is made for many.

With other stores two processes may begin on the same checkpoint; then one of the two is refused at its end.
"""

from __future__ import annotations

import asyncio
import os
from weakref import WeakValueDictionary

from defserve.errors import LimitExceeded
from defserve.stores.checkpoints.tree import TreeKey
from defserve.stores.leases import Lease, new_token
from defserve.stores.store import Store, StoreBusy


class StateBusy(LimitExceeded):
    """Another call holds the same state for too long."""

    error_type = "state_busy"

    def __init__(self) -> None:
        super().__init__("Another call works on this state; try again later", data={"retry_after_ms": 1000})


class Turn:
    """What a call has while it works on a tree; to be ended."""

    __slots__ = ("_lock", "_lease")

    def __init__(self, lock: asyncio.Lock, lease: Lease | None) -> None:
        self._lock, self._lease = lock, lease

    async def end(self) -> None:
        try:
            if self._lease is not None:
                await self._lease.release()
        finally:
            self._lock.release()


class Turns:
    """The turns on the trees of one state."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By event loop, and forgotten when nobody waits.
        self._locks: WeakValueDictionary[tuple[int, TreeKey], asyncio.Lock] = WeakValueDictionary()
        # One for whom the locks take turns: a process that was forked has its own.
        self._tokens: dict[tuple[int, int], bytes] = {}

    async def take(self, key: TreeKey, seconds: float) -> Turn:
        """Raises StateBusy, and what the store raises."""
        place = id(asyncio.get_running_loop()), key
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            raise StateBusy from None
        try:
            return Turn(lock, await self._leased(key, seconds))
        except BaseException:
            lock.release()
            raise

    async def _leased(self, key: TreeKey, seconds: float) -> Lease | None:
        if not getattr(self._store, "is_for_many", False):
            return None
        holder = os.getpid(), id(asyncio.get_running_loop())
        lease = Lease(self._store, key.space, self._tokens.setdefault(holder, new_token()))
        try:
            await lease.acquire(seconds)
        except StoreBusy:
            raise StateBusy from None
        return lease
