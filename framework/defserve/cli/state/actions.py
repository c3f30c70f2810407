"""What `defserve state` can do with an opened store: one function per action, each returns the exit code."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.cli.state.pages import drawing, moment, operations
from defserve.cli.tables import table
from defserve.errors import Refused, UsageError
from defserve.protocols.mcp.asking.server_secret import VARIABLE, ServerSecret
from defserve.stores.checkpoints.secret import derive_secret, stored_checkpoint_secret
from defserve.stores.checkpoints.store import CheckpointStore
from defserve.stores.checkpoints.tree import CheckpointGone, CheckpointTree, Retention, TreeKey
from defserve.stores.open import open_store
from defserve.stores.store import Store

OK: Final = 0
BROKEN: Final = 1


class OpenedStore(NamedTuple):
    """A store and the trees in it. `has_secret`: whether the secret that ids are made with is known."""

    store: Store
    trees: CheckpointStore
    has_secret: bool

    async def chosen(self, options: Namespace) -> list[TreeKey]:
        """The trees that the options choose. Raises UsageError if they name one that is not there."""
        found = [key for key in await self.trees.list_trees() if _is_wanted(key, options)]
        if not found and (options.set or options.owner):
            raise UsageError("the store has no such tree", fix=f"see defserve state list {options.store}")
        return found

    async def tree_of(self, id: str, options: Namespace) -> TreeKey:
        """The tree that a checkpoint is in. Raises UsageError."""
        for key in await self.chosen(options):
            try:
                await self.trees.get(key, id)
                return key
            except CheckpointGone:
                continue
        raise UsageError(f"the store has no checkpoint {id}", fix=f"see defserve state show {options.store}")


@asynccontextmanager
async def opened_store(address: str) -> AsyncGenerator[OpenedStore]:
    store = open_store(_checked(address))
    try:
        known = ServerSecret(None).known()
        secret = derive_secret(known) if known is not None else await stored_checkpoint_secret(store)
        # Only verifying and committing need a real secret.
        yield OpenedStore(store, CheckpointStore(store, secret=secret or bytes(32)), secret is not None)
    finally:
        await store.close()


def _checked(address: str) -> str:
    """Raises UsageError for a store that opening would create."""
    if address.startswith("memory:"):
        raise UsageError("a store in memory belongs to its process", fix="name a SQLite file or a Redis server")
    path = Path(address.removeprefix("sqlite:///")).expanduser()
    if address.startswith("sqlite:///") and not path.is_file():
        raise UsageError(f"there is no store: {path} does not exist")
    return address


async def list_trees(opened: OpenedStore, options: Namespace) -> int:
    rows = [await _row(opened, key) for key in await opened.chosen(options)]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        cells = ([*list(row.values())[:4], moment(row["time"]), row["head"] or ""] for row in rows)
        print(*table(("feature set", "owner", "kept", "made", "last", "head"), cells), sep="\n")
    return OK


async def show(opened: OpenedStore, options: Namespace) -> int:
    if options.checkpoint is not None:
        return await _show_one(opened, options)
    found: list[dict[str, Any]] = []
    for key in await opened.chosen(options):
        tree, checkpoints = await opened.trees.load(key), await opened.trees.checkpoints(key)
        if not options.json:
            print(*table(("feature set", "owner"), [key]), *drawing(checkpoints, tree.head), "", sep="\n")
        found.append({**_named(key), "head": tree.head, "checkpoints": [at._asdict() for at in checkpoints]})
    if options.json:
        print(json.dumps(found, indent=2))
    return OK


async def _show_one(opened: OpenedStore, options: Namespace) -> int:
    key = await opened.tree_of(options.checkpoint, options)
    at, content = await opened.trees.get(key, options.checkpoint), await opened.trees.content(key, options.checkpoint)
    if options.json:
        print(json.dumps({**_named(key), **at._asdict(), "content": content}, indent=2))
        return OK
    head = ("feature set", "owner", "number", "depth", "made", "parent")
    print(*table(head, [(*key, at.number, at.depth, moment(at.time), at.parent or "")]), sep="\n")
    print("(no content: the server keeps this state itself)" if at.opaque else json.dumps(content, indent=2))
    return OK


async def diff(opened: OpenedStore, options: Namespace) -> int:
    try:
        ops = await opened.trees.diff(await opened.tree_of(options.a, options), options.a, options.b)
    except CheckpointGone:
        raise UsageError(f"{options.b} is not in the tree of {options.a}") from None
    if options.json:
        print(json.dumps(ops))
    else:
        for line in operations(ops):
            print(line)
    return OK


async def export(opened: OpenedStore, options: Namespace) -> int:
    for key in await opened.chosen(options):
        async for checkpoint in opened.trees.export(key):
            print(json.dumps({**_named(key), **checkpoint}))
    return OK


async def prune(opened: OpenedStore, options: Namespace) -> int:
    if options.keep is None and options.ttl is None and options.idle is None:
        raise UsageError("nothing says what to delete", fix="give --keep, --ttl or --idle")
    retention, rows = Retention(options.keep, options.ttl), list[dict[str, Any]]()
    for key in await opened.chosen(options):
        tree = await opened.trees.load(key)
        if await _is_idle(opened, key, tree, options.idle):
            await opened.trees.forget(key)
            rows.append({**_named(key), "dropped": tree.kept, "kept": 0})
            continue
        dropped = await opened.trees.prune(key, retention)
        rows.append({**_named(key), "dropped": dropped, "kept": (await opened.trees.load(key)).kept})
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(*table(("feature set", "owner", "dropped", "kept"), (list(row.values()) for row in rows)), sep="\n")
    return OK


async def verify(opened: OpenedStore, options: Namespace) -> int:
    keys = await opened.chosen(options)
    wrong = {"the store": found} if (found := await opened.store.check()) else {}
    for key in keys:
        if found := await opened.trees.verify(key):
            wrong[f"{key.feature_set} of {key.owner}"] = found
    count = sum([(await opened.trees.load(key)).kept for key in keys]) if not wrong else 0
    if options.json:
        print(json.dumps({"ok": not wrong, "trees": len(keys), "checkpoints": count, "problems": wrong}, indent=2))
    elif not wrong:
        print(f"intact: {len(keys):,} trees, {count:,} checkpoints")
    else:
        rows = ((where, line) for where, lines in wrong.items() for line in lines)
        print(*table(("where", "what"), rows), sep="\n")
    if wrong and not options.json and not opened.has_secret:
        print(f"note: the server's secret is not known; set {VARIABLE}")
    return BROKEN if wrong else OK


async def _row(opened: OpenedStore, key: TreeKey) -> dict[str, Any]:
    tree = await opened.trees.load(key)
    return {
        **_named(key),
        "kept": tree.kept,
        "made": tree.last,
        "time": await _last(opened, key, tree),
        "head": tree.head,
    }


async def _is_idle(opened: OpenedStore, key: TreeKey, tree: CheckpointTree, seconds: float | None) -> bool:
    if seconds is None:
        return False
    last = await _last(opened, key, tree)
    return last is not None and last < time.time() - seconds


async def _last(opened: OpenedStore, key: TreeKey, tree: CheckpointTree) -> float | None:
    """When the head was made."""
    try:
        return (await opened.trees.get(key, tree.head)).time if tree.head is not None else None
    except Refused:
        return None  # damaged; `verify` reports it


def _named(key: TreeKey) -> dict[str, Any]:
    return {"featureSet": key.feature_set, "owner": key.owner}


def _is_wanted(key: TreeKey, options: Namespace) -> bool:
    return options.set in (None, key.feature_set) and options.owner in (None, key.owner)
