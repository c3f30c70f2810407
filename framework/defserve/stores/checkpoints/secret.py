"""The secret for the ids of checkpoints: derived from the server's secret, or kept in the store."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from defserve.stores.spaces import API_KEYS, SECRETS
from defserve.stores.store import Store, StoreChange

KEY: Final = "checkpoints"
_LABEL: Final = b"defserve checkpoint ids v1"


def derive_secret(known: bytes) -> bytes:
    """The secret for ids that is derived from the server's secret."""
    return hmac.digest(known, _LABEL, "sha256")


async def stored_checkpoint_secret(store: Store) -> bytes | None:
    """The secret for ids in the store, if there is one."""
    # 0.1.0 kept it among the API keys. It stays there too, so that servers of 0.1.0 in the same store find it.
    for space in (SECRETS, API_KEYS):
        if (found := (await store.get(space, [KEY])).get(KEY)) is not None:
            return found
    return None


async def checkpoint_secret(store: Store, known: bytes | None) -> bytes:
    """The secret for ids to use with a store. If the server has no secret, one is made in the store at first use."""
    if known is not None:
        return derive_secret(known)
    secret = await stored_checkpoint_secret(store) or secrets.token_bytes(32)
    await store.change(StoreChange(SECRETS, put={KEY: secret}, expect={KEY: None}))
    return (await store.get(SECRETS, [KEY]))[KEY]
