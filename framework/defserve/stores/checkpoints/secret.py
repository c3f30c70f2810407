"""The secret for the ids of checkpoints: derived from the server's secret, or kept in the store."""

from __future__ import annotations

import secrets
from typing import Final

from defserve.stores.identity import NOBODY, ServerIdentity
from defserve.stores.spaces import API_KEYS, SECRETS
from defserve.stores.store import Store, StoreChange

KEY: Final = "checkpoints"
OLD_KEY: Final = "checkpoints 0.1.0"
"""What 0.1.0 derived from the server's secret. `adopting` keeps it, so that ids of 0.1.0 stay good."""


def derive_secret(known: bytes, identity: ServerIdentity) -> bytes:
    """The secret for ids of one server that is derived from the server's secret."""
    return identity.derive_key(known, "checkpoint ids")


async def stored_checkpoint_secret(store: Store) -> bytes | None:
    """The secret for ids in the store, if there is one."""
    # 0.1.0 kept it among the API keys.
    for space in (SECRETS, API_KEYS):
        if (found := (await store.get(space, [KEY])).get(KEY)) is not None:
            return found
    return None


async def find_checkpoint_secret(store: Store, known: bytes | None, identity: ServerIdentity) -> bytes | None:
    """The secret for ids that a server uses with its part of a store; None if none was made yet."""
    if known is None:
        return await stored_checkpoint_secret(store)
    return (await store.get(SECRETS, [OLD_KEY])).get(OLD_KEY) or derive_secret(known, identity)


async def checkpoint_secret(store: Store, known: bytes | None, identity: ServerIdentity = NOBODY) -> bytes:
    """The secret for ids to use with a store. If the server has no secret, one is made in the store at first use."""
    if known is not None and (secret := await find_checkpoint_secret(store, known, identity)) is not None:
        return secret
    secret = await stored_checkpoint_secret(store) or secrets.token_bytes(32)
    await store.change(StoreChange(SECRETS, put={KEY: secret}, expect={KEY: None}))
    return (await store.get(SECRETS, [KEY]))[KEY]
