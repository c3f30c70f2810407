"""The interface of a store: spaces of named values. A change to a space happens as a whole or not at all.

Each feature uses spaces of its own, which `SPACE_DESCRIPTIONS` lists. A store with a problem raises one of the errors
below. It recovers by itself when the problem is gone. Here are also the store in memory, and leases and nonces on any
store.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from threading import Lock
from types import MappingProxyType
from typing import Final, NamedTuple, NewType, Protocol

from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.errors import LimitExceeded, Refused

_NONE: Final[Mapping[str, bytes]] = MappingProxyType({})


class StoreChange(NamedTuple):
    """A change to one space, made only if every name in `expect` has that value now (None: it does not exist).

    With a `ttl`, the whole space expires after that many seconds. Give one with every change to a space, or with no
    change to it. A change that is not durable holds for all who use the store now, and may be forgotten by a store
    that dies: then it need not wait for a disk.
    """

    space: Space
    put: Mapping[str, bytes] = _NONE
    drop: Sequence[str] = ()
    expect: Mapping[str, bytes | None] = _NONE
    ttl: float | None = None
    is_durable: bool = True


class Store(Protocol):
    """Where values are kept. It opens itself on first use; call `open` to notice problems earlier.

    Every method may raise StoreUnavailable or StoreBusy, and `change` also StoreFull and StoreReadOnly. Then nothing
    was acknowledged, and the caller may try again.
    """

    async def open(self) -> None:
        """Connect. May be called again, also after `close`."""
        ...

    async def get(self, space: Space, names: Sequence[str]) -> dict[str, bytes]:
        """The values of the names that exist."""
        ...

    async def change(self, change: StoreChange) -> bool:
        """Change a space, and return True when the change is kept. If the space is not as expected, change nothing and
        return False."""
        ...

    def scan(self, space: Space) -> AsyncIterator[tuple[str, bytes]]:
        """Everything in a space, in any order. Changes made meanwhile may be seen or not."""
        ...

    def spaces(self, prefix: SpaceFamily) -> AsyncIterator[str]:
        """The names of the spaces that begin with `prefix` and hold anything."""
        ...

    async def check(self) -> list[str]:
        """Problems of the file or database itself, one line each. Reads all of it."""
        ...

    async def close(self) -> None:
        """Finish pending changes, and release files, threads and connections."""
        ...


class StoreUnavailable(Refused):
    """The store cannot be reached, opened or read."""

    error_type = "store_unavailable"


class StoreReadOnly(StoreUnavailable):
    """The store can be read but not written."""

    error_type = "store_read_only"


class StoreCorrupt(StoreUnavailable):
    """The content of the store is not what was put there."""

    error_type = "store_corrupt"


class StoreFull(LimitExceeded):
    """There is no room for more."""

    error_type = "store_full"


class StoreBusy(LimitExceeded):
    """Another user kept the store locked for too long."""

    error_type = "store_busy"


# -- The table of all spaces of a store. A feature gets its space here and nowhere else, so no two features share one.
#
# A `Space` is made only in this file; type checkers refuse a plain text where a store wants a space. A name that ends
# in a colon stands for many spaces, one for each name that is put after it.
#
# In a store, each of them stands behind the identity of its server (`identity`). `SPACES_WITHOUT_SERVER` do not: they
# belong to the store itself, or to a log that has a name of its own.


Space = NewType("Space", str)


class SpaceFamily(str):
    """Spaces whose names begin alike."""

    __slots__ = ()

    def make_space(self, name: str) -> Space:
        return Space(self + name)


FORMAT_SPACE: Final = Space("format")
SERVER_SPACES: Final = SpaceFamily("server:")
API_KEYS_SPACE: Final = Space("keys")
SECRETS_SPACE: Final = Space("secrets")
AUDIT_HEADS_SPACE: Final = Space("audit")
AUDIT_LOG_SPACES: Final = SpaceFamily("audit log:")
AUDIT_EXPORT_SPACE: Final = Space("audit export")
DENIED_TOKENS_SPACE: Final = Space("denied tokens")
CHECKPOINT_SPACES: Final = SpaceFamily("state:")
NONCES: Final = SpaceFamily("nonce:")
LEASE_SPACES: Final = SpaceFamily("lease:")
OAUTH_GRANT_SPACES: Final = SpaceFamily("oauth grant:")
TASK_SPACES: Final = SpaceFamily("task:")
TASK_ACCOUNT_SPACES: Final = SpaceFamily("task account:")
EVENT_LOG_SPACES: Final = SpaceFamily("event log:")
EVENT_NEWS_SPACE: Final = Space("event news")
WEBHOOK_SPACES: Final = SpaceFamily("webhooks:")
KERNEL_STATE_SPACE: Final = Space("kernel state")

SPACES_WITHOUT_SERVER: Final = frozenset((FORMAT_SPACE, AUDIT_HEADS_SPACE, AUDIT_LOG_SPACES))
PERMANENT_SPACES: Final = frozenset((API_KEYS_SPACE, SECRETS_SPACE, DENIED_TOKENS_SPACE, CHECKPOINT_SPACES))
"""What does not end by itself: 0.1.0 kept it without the name of a server."""

SPACE_DESCRIPTIONS: Final[Mapping[str, str]] = {
    FORMAT_SPACE: "the format of a store that has no other place for it: `version`",
    SERVER_SPACES: "after the colon the identity of a server, a colon, and one of the other names",
    API_KEYS_SPACE: "each API key under its id. 0.1.0 also kept the secret of checkpoint ids here, as `checkpoints`",
    SECRETS_SPACE: "`checkpoints` is the secret of checkpoint ids, `checkpoints 0.1.0` what 0.1.0 made them with; "
    "`events` is that of event cursors, `kernels` that of the link between the kernels of a group",
    AUDIT_HEADS_SPACE: "the last signed head of each audit log that is anchored here, under the log's name",
    AUDIT_LOG_SPACES: "after the colon the log's name: each record under its number, the last signed head under `head`",
    AUDIT_EXPORT_SPACE: "under the names of an audit log and a collector, the number of the next record to send there",
    DENIED_TOKENS_SPACE: "under the hash of its id, each signed token that is accepted no more, until it expires",
    CHECKPOINT_SPACES: 'after the colon `["set","owner"]`: the tree under `tree`, each checkpoint under its id',
    NONCES: "after the colon the nonce: one value, expected to be absent, with a ttl, so it is spent exactly once",
    LEASE_SPACES: "after the colon the lease's name: the holder, with a ttl that it renews",
    OAUTH_GRANT_SPACES: "after the colon the grant's id: its `record`, until the user has to sign in again",
    TASK_SPACES: "after the colon the task's id: its `record` and, when it has ended, its `outcome`, until its ttl",
    TASK_ACCOUNT_SPACES: "after the colon the hash of a principal: the `ledger` of the tasks that are kept for it",
    EVENT_LOG_SPACES: "after the colon a type of event: its log's `head`, each event under its number",
    EVENT_NEWS_SPACE: "nothing is kept here: in Redis, the types of event to which one was added are told by this name",
    WEBHOOK_SPACES: "after the colon the hash of a principal: its `ledger`, each subscription by its id, its progress "
    "as `progress` and the id",
    KERNEL_STATE_SPACE: "of the kernels of a group: `revision`, and for each server `pins`, `definitions`, `access`, "
    "`permissions` and `servers`, each with a space and the server's id after it",
}


# -- A store in the memory of this process: fast, bounded, and gone when the process ends.


MAX_BYTES: Final = 256 * 1024 * 1024

# What a space and an entry cost besides their text, roughly. Many spaces hold a single small entry.
SPACE_BYTES, ENTRY_BYTES = 384, 128

# So many ends of spaces that end later now, or are gone, may wait in the queue, besides one for each space.
SPARE_ENDS: Final = 64


class MemoryStore:
    """A Store for one process, for any thread. It takes at most `limit` bytes, roughly."""

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
            is_kept = bool(change.put) or len(held) > sum(name in held for name in set(change.drop))
            growth = _size(change.put) - _size(replaced) + (is_kept - bool(held)) * _size_space(change.space)
            if growth > 0 and self._bytes + growth > self._limit:
                raise StoreFull("the store in memory is full", data={"limit": "store_bytes", "max": self._limit})
            self._bytes += growth
            for name in change.drop:
                held.pop(name, None)
            held.update(change.put)
            self._store_space(change.space, held, change.ttl)
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

    def _store_space(self, space: str, held: dict[str, bytes], ttl: float | None) -> None:
        if not held:
            self._spaces.pop(space, None)
            self._expires.pop(space, None)
            return
        self._spaces[space] = held
        if ttl is not None:
            self._expires[space] = end = self._clock() + ttl
            heappush(self._queue, (end, space))
            if len(self._queue) > 2 * len(self._expires) + SPARE_ENDS:
                self._queue = [(end, space) for space, end in self._expires.items()]
                heapify(self._queue)

    def _expire(self) -> None:
        while self._queue and self._queue[0][0] <= self._clock():
            end, space = heappop(self._queue)
            if self._expires.get(space) == end:
                del self._expires[space]
                self._bytes -= _size(self._spaces.pop(space)) + _size_space(space)


def is_in_memory(store: object) -> bool:
    """Whether a store, or the store that a server's part belongs to, ends with this process."""
    return isinstance(getattr(store, "raw", store), MemoryStore)


def _size(entries: Mapping[str, bytes]) -> int:
    return sum(len(name) + len(value) + ENTRY_BYTES for name, value in entries.items())


def _size_space(space: str) -> int:
    return len(space) + SPACE_BYTES


# -- Leases: one holder at a time among processes that share a store. A lease ends soon after its holder dies.
#
# A lease only saves others from useless work. It does not make sure that something is done once: a holder that was
# paused for too long does not know that its lease has ended. For that, use `StoreChange.expect`.


TTL: Final = 3.0
RENEWED_EVERY: Final = TTL / 4
MAX_LEASE_SECONDS: Final = 60.0
"""No lease lasts longer, so one that seems to is not valid: see `find_entries` in `sqlite_entries`."""
FIRST_PAUSE: Final = 0.005
MAX_PAUSE_SECONDS: Final = 0.1
WITHDRAWAL: Final = 1.0
"""Seconds for which a caller that gives up waits for the store. Then the withdrawal goes on without it."""

_HOLDER: Final = "holder"

log = get_logger()


def is_lease_space(space: str) -> bool:
    """Whether a space, with or without the name of its server, is a lease."""
    return (space.split(":", 2)[-1] if space.startswith(SERVER_SPACES) else space).startswith(LEASE_SPACES)


def make_lease_token() -> bytes:
    """The name of a holder."""
    return secrets.token_bytes(16)


class Lease:
    """The lease of this name: it has one holder between `acquire` and `release`.

    `token` names the holder. A caller that acquires again and again should use the same token each time. If the store
    was unreachable when the caller wanted to release the lease, it then gets the lease back at once.
    """

    __slots__ = ("_store", "_space", "_token", "_renewing", "_given_up", "_withdrawing", "on_lost")

    def __init__(self, store: Store, name: str, token: bytes | None = None) -> None:
        self._store, self._space, self._token = store, LEASE_SPACES.make_space(name), token or make_lease_token()
        self._renewing: asyncio.Task[None] | None = None
        self._withdrawing: asyncio.Task[None] | None = None
        self._given_up = asyncio.Event()
        self.on_lost: Callable[[], None] | None = None
        """Called if another holder is found where this one should be."""

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

    async def is_held(self) -> bool:
        """Whether the lease is still ours. It may end a moment later."""
        return await self.find_holder() == self._token

    async def find_holder(self) -> bytes | None:
        """The token of whoever holds it now."""
        return (await self._store.get(self._space, [_HOLDER])).get(_HOLDER)

    async def release(self) -> None:
        """Let another caller have the lease. If the store cannot be reached, the lease ends by itself."""
        if self._renewing is not None:
            self._renewing.cancel()
        dropping = asyncio.create_task(self._drop())
        await asyncio.wait((dropping,), timeout=TTL)  # it goes on if the caller is cancelled
        if dropping.done():
            dropping.result()
        else:
            dropping.cancel()  # the lease has ended by itself

    async def _drop(self) -> None:
        with suppress(Refused):
            await self._store.change(
                StoreChange(self._space, _NONE, [_HOLDER], {_HOLDER: self._token}, TTL, is_durable=False)
            )

    async def _withdraw(self, trying: asyncio.Task[None]) -> None:
        self._given_up.set()
        await asyncio.wait((trying,))
        await self.release()

    async def _wait(self) -> None:
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE_SECONDS, jitter=(0.5, 1.5))
        # The lease may be ours already: from an earlier time, or because the store repeated a change after it lost its
        # connection.
        while not (
            await self._store.change(self._make_hold_change(None))
            or await self._store.change(self._make_hold_change(self._token))
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_wait()):
                    await self._given_up.wait()
            if self._given_up.is_set():
                return

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEWED_EVERY)
            try:
                # It may have ended without another holder: we were paused, or the clock was set back.
                if not (
                    await self._store.change(self._make_hold_change(self._token))
                    or await self._store.change(self._make_hold_change(None))
                ):
                    if self.on_lost is not None:
                        self.on_lost()
                    return
            except Exception as error:
                # Whatever is wrong with the store may pass. A lease that is not renewed is lost.
                if not isinstance(error, Refused):
                    log.error("a lease could not be renewed", exc_info=error)

    def _make_hold_change(self, before: bytes | None) -> StoreChange:
        return StoreChange(self._space, {_HOLDER: self._token}, (), {_HOLDER: before}, TTL, is_durable=False)


# -- Nonces: values that may be used only once, such as the answer to a question or a sealed state.


_SPENT: Final = "spent"


class NonceStore(Protocol):
    """Remembers which nonces were used. Processes that may be given the same nonce must share one."""

    async def spend(self, nonce: str, *, ttl: float) -> bool:
        """Use a nonce that is valid for `ttl` more seconds. True exactly once; False afterwards, and if it has expired.

        The caller must refuse an expired nonce itself, because the store may have forgotten it. Raises LimitExceeded if
        the store is full: a nonce that is not remembered could be used twice.
        """
        ...


class MemoryNonceStore:
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


class SharedNonceStore:
    """A NonceStore for all processes that share a store. If the store raises, nothing was spent."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def spend(self, nonce: str, *, ttl: float) -> bool:
        if not ttl > 0:
            return False
        space, mine = NONCES.make_space(nonce), os.urandom(8)
        if await self._store.change(StoreChange(space, put={_SPENT: mine}, expect={_SPENT: None}, ttl=ttl)):
            return True
        # A store that lost its connection may repeat a change, and then find its own first attempt.
        return (await self._store.get(space, [_SPENT])).get(_SPENT) == mine
