"""A store of checkpoints that a command looks at, and how its command line names trees and checkpoints."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from defserve.errors import UsageError, did_you_mean
from defserve.protocols.mcp.asking.server_secret import ServerSecret
from defserve.stores.checkpoints.secret import find_checkpoint_secret, find_old_secret
from defserve.stores.checkpoints.store import CheckpointStore
from defserve.stores.checkpoints.tree import CheckpointGone, TreeKey
from defserve.stores.identity import ServerStore, choose_server
from defserve.stores.open import open_store
from defserve.stores.store import Store

PREFIX: Final = "chk_"
SHORTEST: Final = 4
"""Characters after `chk_` that name a checkpoint, at least."""


class OpenedStore(NamedTuple):
    """A store and the trees in it. `has_secret`: whether the secret that ids are made with is known."""

    store: Store
    trees: CheckpointStore
    has_secret: bool

    async def chosen(self, options: Namespace) -> list[TreeKey]:
        """The trees that the options choose. Raises UsageError if they name one that is not there."""
        trees = await self.trees.list_trees()
        found = [key for key in trees if _is_wanted(key, options)]
        if not found and (options.set or options.owner):
            raise UsageError("the store has no such tree", fix=_other(trees, options))
        return found

    async def checkpoint(self, name: str, options: Namespace) -> tuple[TreeKey, str]:
        """The tree of a checkpoint, and its whole id. `name` is the id, or how it begins, with or without `chk_`.

        Raises UsageError if there is none, or several.
        """
        keys = await self.chosen(options)
        for key in keys:
            try:
                return key, (await self.trees.get(key, name)).id
            except CheckpointGone:
                continue
        begin = name if name.startswith(PREFIX) else PREFIX + name
        found = [
            (key, at.id)
            for key in keys
            if len(begin) >= len(PREFIX) + SHORTEST
            for at in await self.trees.checkpoints(key)
            if at.id.startswith(begin)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(short_ids([id for _, id in found]).values())
            raise UsageError(f"{len(found)} checkpoints begin with {name!r}", fix=f"write more of it: {ids}")
        raise UsageError(f"the store has no checkpoint {name!r}", fix=f"see defserve state show {options.store}")


def short_ids(ids: list[str]) -> dict[str, str]:
    """Each id → how much of it tells it from the others, as git does: at least eight characters after `chk_`."""
    size = len(PREFIX) + 8
    while len({id[:size] for id in ids}) < len(set(ids)):
        size += 2
    return {id: id[:size] for id in ids}


def _other(trees: list[TreeKey], options: Namespace) -> str:
    """The fix for a tree that is not there: the name that is nearest."""
    look = f"see defserve state list {options.store}"
    sets, owners = ({key[field]: None for key in trees} for field in (0, 1))
    if options.set and options.set not in sets:
        return did_you_mean(options.set, sets, look)
    return did_you_mean(options.owner, owners, look) if options.owner and options.owner not in owners else look


@asynccontextmanager
async def opened_store(address: str, server: str | None = None) -> AsyncGenerator[OpenedStore]:
    """The part of a store that is a server's: of that which is named, or of the only one there."""
    raw = open_store(existing(address))
    try:
        identity = await choose_server(raw, server, is_reading=True)
        store = ServerStore(raw, identity)
        secret = await find_checkpoint_secret(store, ServerSecret(None).known(), identity)
        # Only verifying and committing need a real secret.
        trees = CheckpointStore(store, secret=secret or bytes(32), old_secret=await find_old_secret(store))
        yield OpenedStore(store, trees, secret is not None)
    finally:
        await raw.close()


def existing(address: str) -> str:
    """Raises UsageError for a store that opening would create."""
    if address.startswith("memory:"):
        raise UsageError("a store in memory belongs to its process", fix="name a SQLite file or a Redis server")
    path = Path(address.removeprefix("sqlite:///")).expanduser()
    if address.startswith("sqlite:///") and not path.is_file():
        raise UsageError(
            f"there is no store: {path} does not exist",
            fix="name a file that is there: sqlite:///notes.db, or sqlite:////var/lib/notes.db with its whole path",
        )
    return address


def _is_wanted(key: TreeKey, options: Namespace) -> bool:
    return options.set in (None, key.feature_set) and options.owner in (None, key.owner)
