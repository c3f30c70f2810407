"""The interface of a store: spaces of named values. A change to a space happens as a whole or not at all.

Each feature uses spaces of its own, which `spaces` lists. A store that has a problem raises one of the errors below. It
recovers by itself when the problem is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from defserve.errors import LimitExceeded, Refused
from defserve.stores.spaces import Space, SpaceFamily

_NONE: Final[Mapping[str, bytes]] = MappingProxyType({})


class StoreChange(NamedTuple):
    """A change to one space, made only if every name in `expect` has that value now (None: it does not exist).

    With a `ttl`, the whole space expires after that many seconds. Give one with every change to a space, or with no
    change to it.
    """

    space: Space
    put: Mapping[str, bytes] = _NONE
    drop: Sequence[str] = ()
    expect: Mapping[str, bytes | None] = _NONE
    ttl: float | None = None


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
