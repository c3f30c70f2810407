"""Whether the process that runs a task is alive: it keeps a lease in the store for as long as it runs tasks.

A process whose lease is missing counts as dead only if it is still missing a heartbeat later: who asks waits for that.
So neither a store that was away for a moment nor a process that was held up costs a task that still runs.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from defserve.errors import Refused
from defserve.protocols.mcp.tasks.record import NOBODY
from defserve.stores.spaces import LEASES, Space
from defserve.stores.store import Store, StoreChange

BEATS: Final = 5
"""How often the lease is renewed in the time it lasts."""
MOST_DEAD: Final = 1024

_HOLDER: Final = "holder"

log = logging.getLogger("defserve")


class Heartbeat:
    """The lease of this process on one loop, `id`, and a look at those of others. A lease lasts for `seconds`."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.id = secrets.token_hex(8)
        self._store, self._seconds = store, seconds
        self._beating: asyncio.Task[None] | None = None
        self._dead: set[str] = set()

    async def begin(self, is_needed: Callable[[], bool]) -> None:
        """Keep the lease from now on, for as long as it is needed. Raises what the store raises."""
        if self._beating is None or self._beating.done():
            await self._renew()
            if self._beating is None or self._beating.done():
                self._beating = asyncio.create_task(self._beat(is_needed))

    async def end(self) -> None:
        """Give up the lease. If the store cannot be reached, it ends by itself."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
            with suppress(Refused):
                await self._store.change(StoreChange(_lease(self.id), drop=[_HOLDER], ttl=self._seconds))

    async def is_dead(self, runner: str) -> bool:
        """Whether nothing was heard of another process for long enough. May take a moment."""
        if runner == NOBODY:
            return True
        if await self._store.get(_lease(runner), [_HOLDER]):
            self._dead.discard(runner)
            return False
        if runner in self._dead:
            return True
        await asyncio.sleep(1.5 * self._seconds / BEATS)
        if await self._store.get(_lease(runner), [_HOLDER]):
            return False
        if len(self._dead) >= MOST_DEAD:
            self._dead.clear()
        self._dead.add(runner)
        return True

    async def _beat(self, is_needed: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(self._seconds / BEATS)
            if not is_needed():
                return
            try:
                await self._renew()
            except Exception as error:
                # Whatever is wrong with the store may pass. Without a heartbeat, others take this process for dead.
                if not isinstance(error, Refused):
                    log.error("the lease of a process that runs tasks could not be renewed", exc_info=error)

    async def _renew(self) -> None:
        await self._store.change(StoreChange(_lease(self.id), put={_HOLDER: self.id.encode()}, ttl=self._seconds))


def _lease(runner: str) -> Space:
    return LEASES.of(f"tasks {runner}")
