"""One call at a time on each tree: a lock within this process, and a lease among processes if the store is shared.

With other stores, two processes may start from the same checkpoint; then one of them is refused when it commits.
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
    """Another call held the same state for too long."""

    error_type = "state_busy"

    def __init__(self) -> None:
        data = {"limit": "lock", "retry_after_ms": 1000}
        super().__init__("Another call works on this state (Limits.lock); try again later", data=data)


class TreeLock:
    """Held by a call while it works on a tree. The call must release it."""

    __slots__ = ("_lock", "_lease")

    def __init__(self, lock: asyncio.Lock, lease: Lease | None) -> None:
        self._lock, self._lease = lock, lease

    async def release(self) -> None:
        try:
            if self._lease is not None:
                await self._lease.release()
        finally:
            self._lock.release()


class TreeLocks:
    """The locks on the trees of one state."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By event loop. Dropped when nobody uses them.
        self._locks: WeakValueDictionary[tuple[int, TreeKey], asyncio.Lock] = WeakValueDictionary()
        # One token per process and loop, within which the locks order the calls. A forked process gets its own.
        self._tokens: dict[tuple[int, int], bytes] = {}

    async def acquire(self, key: TreeKey, seconds: float) -> TreeLock:
        """Raises StateBusy, and what the store raises."""
        place = id(asyncio.get_running_loop()), key
        if (lock := self._locks.get(place)) is None:
            lock = self._locks[place] = asyncio.Lock()
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            raise StateBusy from None
        try:
            return TreeLock(lock, await self._leased(key, seconds))
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
