"""What a server gives MCPL to keep state with: a store, its secret, its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.stores.store import Store


class Keeping(NamedTuple):
    """`store` None: this process's memory. `secret` gives None where none was given: then one is kept in the store."""

    store: Store | None
    secret: Callable[[], bytes | None]
    limits: Limits
