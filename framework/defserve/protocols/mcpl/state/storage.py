"""What MCPL keeps state with: the server's store, its secret and its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.stores.identity import ServerIdentity, ServerStore


class StateStorage(NamedTuple):
    """`store` None means the memory of this process. If `secret` returns None, a secret is kept in the store.

    `identity` says which server's state it is.
    """

    store: ServerStore | None
    secret: Callable[[], bytes | None]
    limits: Limits
    identity: Callable[[], ServerIdentity]
