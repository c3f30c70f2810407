"""The secret that checkpoints' ids are made with: derived from the server's own, or kept with what it protects."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from defserve.stores.store import Store, StoreChange

KEYS: Final = "keys"
KEY: Final = "checkpoints"
_LABEL: Final = b"defserve checkpoint ids v1"


def derived(known: bytes) -> bytes:
    """From the server's secret."""
    return hmac.digest(known, _LABEL, "sha256")


async def kept(store: Store) -> bytes | None:
    """The one in a store, if there is one."""
    return (await store.get(KEYS, [KEY])).get(KEY)


async def checkpoint_secret(store: Store, known: bytes | None) -> bytes:
    """The one to use with a store; without a server's own, one is made there at its first use."""
    if known is not None:
        return derived(known)
    await store.change(StoreChange(KEYS, put={KEY: secrets.token_bytes(32)}, expect={KEY: None}))
    return (await store.get(KEYS, [KEY]))[KEY]
