"""Leases: one holder at a time among processes that share a store. A lease ends soon after its holder dies.

A lease only saves others from useless work. It does not make sure that something is done once: a holder that was paused
for too long does not know that its lease has ended. For that, use `StoreChange.expect`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from contextlib import suppress
from typing import Final

from defserve.errors import Refused
from defserve.stores.spaces import LEASES
from defserve.stores.store import Store, StoreBusy, StoreChange

TTL: Final = 3.0
RENEWED_EVERY: Final = TTL / 4
FIRST_PAUSE: Final = 0.005
LONGEST_PAUSE: Final = 0.1
WITHDRAWAL: Final = 1.0
"""Seconds for which a caller that gives up waits for the store. Then the withdrawal goes on without it."""

_HOLDER: Final = "holder"

log = logging.getLogger("defserve")


def new_token() -> bytes:
    """The name of a holder."""
    return secrets.token_bytes(16)


class Lease:
    """The lease of this name: it has one holder between `acquire` and `release`.

    `token` names the holder. A caller that acquires again and again should use the same token each time. If the store
    was unreachable when the caller wanted to release the lease, it then gets the lease back at once.
    """

    __slots__ = ("_store", "_space", "_token", "_renewing", "_given_up", "_withdrawing")

    def __init__(self, store: Store, name: str, token: bytes | None = None) -> None:
        self._store, self._space, self._token = store, LEASES.of(name), token or new_token()
        self._renewing: asyncio.Task[None] | None = None
        self._withdrawing: asyncio.Task[None] | None = None
        self._given_up = asyncio.Event()

    async def acquire(self, seconds: float) -> None:
        """Wait for the lease. Raises StoreBusy after `seconds`, and what the store raises.

        If it raises, or is cancelled, the lease is not held.
        """
        # A task of its own, because a change that is cancelled on its way may still happen, even after a release.
        self._given_up.clear()
        trying = asyncio.create_task(self._wait())
        try:
            await asyncio.wait((trying,), timeout=seconds)
            if not trying.done():
                raise StoreBusy("Another call holds this for too long", data={"retry_after_ms": 1000})
            trying.result()
        except BaseException:
            self._withdrawing = asyncio.create_task(self._withdraw(trying))
            await asyncio.wait((self._withdrawing,), timeout=WITHDRAWAL)
            raise
        self._renewing = asyncio.create_task(self._renew())

    async def release(self) -> None:
        """Let another caller have the lease. If the store cannot be reached, the lease ends by itself."""
        if self._renewing is not None:
            self._renewing.cancel()
        dropping = asyncio.create_task(self._drop())
        await asyncio.wait((dropping,))  # it goes on if the caller is cancelled
        dropping.result()

    async def _drop(self) -> None:
        with suppress(Refused):
            await self._store.change(StoreChange(self._space, drop=[_HOLDER], expect={_HOLDER: self._token}, ttl=TTL))

    async def _withdraw(self, trying: asyncio.Task[None]) -> None:
        self._given_up.set()
        await asyncio.wait((trying,))
        await self.release()

    async def _wait(self) -> None:
        pause = FIRST_PAUSE
        # The lease may be ours already: from an earlier time, or because the store repeated a change after it lost its
        # connection.
        while not (await self._store.change(self._hold(None)) or await self._store.change(self._hold(self._token))):
            with suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.5, 1.5)):
                    await self._given_up.wait()
            if self._given_up.is_set():
                return
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEWED_EVERY)
            try:
                if not await self._store.change(self._hold(self._token)):
                    return
            except Exception as error:
                # Whatever is wrong with the store may pass. A lease that is not renewed is lost.
                if not isinstance(error, Refused):
                    log.error("a lease could not be renewed", exc_info=error)

    def _hold(self, before: bytes | None) -> StoreChange:
        return StoreChange(self._space, put={_HOLDER: self._token}, expect={_HOLDER: before}, ttl=TTL)
