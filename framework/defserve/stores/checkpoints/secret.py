"""The secret for the ids of checkpoints: derived from the server's secret, or kept in the store."""

from __future__ import annotations

import secrets
from typing import Final

from defserve.stores.identity import NOBODY, ServerIdentity
from defserve.stores.spaces import API_KEYS, SECRETS
from defserve.stores.store import Store, StoreChange

KEY: Final = "checkpoints"
OLD_KEY: Final = "checkpoints 0.1.0"
"""What 0.1.0 made ids with. It names no server, and a secret that is changed does not change it. So ids are recognized
with it that prove nothing, as all of 0.1.0 do, and none is made. `adopting` keeps it."""


def derive_secret(known: bytes, identity: ServerIdentity) -> bytes:
    """The secret for ids of one server that is derived from the server's secret."""
    return identity.derive_key(known, "checkpoint ids")


async def stored_checkpoint_secret(store: Store) -> bytes | None:
    """The secret for ids in the store, if there is one."""
    return (await store.get(SECRETS, [KEY])).get(KEY)


async def find_old_secret(store: Store) -> bytes | None:
    """The secret that 0.1.0 made ids with, if the store has any of 0.1.0."""
    # 0.1.0 kept it among the API keys.
    return (await store.get(SECRETS, [OLD_KEY])).get(OLD_KEY) or (await store.get(API_KEYS, [KEY])).get(KEY)


async def find_checkpoint_secret(store: Store, known: bytes | None, identity: ServerIdentity) -> bytes | None:
    """The secret for ids that a server uses with its part of a store; None if none was made yet."""
    return await stored_checkpoint_secret(store) if known is None else derive_secret(known, identity)


async def checkpoint_secret(store: Store, known: bytes | None, identity: ServerIdentity = NOBODY) -> bytes:
    """The secret for ids to use with a store. If the server has no secret, one is made in the store at first use."""
    if (found := await find_checkpoint_secret(store, known, identity)) is not None:
        return found
    await store.change(StoreChange(SECRETS, put={KEY: secrets.token_bytes(32)}, expect={KEY: None}))
    return (await store.get(SECRETS, [KEY]))[KEY]
