"""Spaces of named values, kept somewhere: a change of one space happens wholly or not at all, and is kept once told.

This is all a server keeps anything in, whatever it is. Who keeps something picks spaces of its own:

    checkpoints   `state:["set","owner"]`   the tree under one name, each checkpoint under its id
    nonces        `nonce:<nonce>`           one value, expected to be absent, with a ttl: spent exactly once
    keys          `keys`                    each key under its id
    events        `events:<session>`        each event under its place, with a ttl that every append renews
    leases        `lease:<name>`            the holder, with a ttl that it renews
    tasks         `tasks:<principal>`       each task under its id

The errors here are what a store in trouble raises; it recovers by itself when the trouble is over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from defserve.errors import LimitExceeded, Refused

_NONE: Final[Mapping[str, bytes]] = MappingProxyType({})


class StoreChange(NamedTuple):
    """What happens to one space, if every name in `expect` has that value now (None: is not there).

    With a `ttl`, the whole space is forgotten after that many seconds; give one with every change of a space, or
    with none.
    """

    space: str
    put: Mapping[str, bytes] = _NONE
    drop: Sequence[str] = ()
    expect: Mapping[str, bytes | None] = _NONE
    ttl: float | None = None


class Store(Protocol):
    """Where values are kept. Opens itself on first use; `open` is for those who want to hear of trouble earlier.

    Everything may raise StoreUnavailable, StoreBusy or, when changing, StoreFull and StoreReadOnly: then nothing was
    acknowledged, and the same may be tried again.
    """

    async def open(self) -> None:
        """Be ready. May be called again, and after `close`."""
        ...

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        """The values of those names that are there."""
        ...

    async def change(self, change: StoreChange) -> bool:
        """Change a space and return when that is kept. False, with nothing changed, if it is not as expected."""
        ...

    def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        """Everything in a space, in no promised order. What is changed meanwhile may be seen or not."""
        ...

    def spaces(self, prefix: str) -> AsyncIterator[str]:
        """The names of the spaces that begin so and hold anything."""
        ...

    async def check(self) -> list[str]:
        """What is wrong with the medium itself, a line each. Reads all of it."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go of files, threads and connections."""
        ...


class StoreUnavailable(Refused):
    """The store cannot be reached, opened or read."""

    error_type = "store_unavailable"


class StoreReadOnly(StoreUnavailable):
    """The store can be read, but not written."""

    error_type = "store_read_only"


class StoreCorrupt(StoreUnavailable):
    """What the store holds is not what was put there."""

    error_type = "store_corrupt"


class StoreFull(LimitExceeded):
    """There is no room for more."""

    error_type = "store_full"


class StoreBusy(LimitExceeded):
    """Somebody else kept the store to themselves for too long."""

    error_type = "store_busy"
