"""What `defserve state` can do with an opened store: one function per action, each returns the exit code."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from typing import Any, Final

from defserve.cli.screen.blocks import Data, Line, Table
from defserve.cli.screen.counts import counted
from defserve.cli.screen.screen import is_drawn, problem_lines, show
from defserve.cli.state.opened import OpenedStore, short_ids
from defserve.cli.state.pages import drawing, moment, operations
from defserve.errors import Refused, UsageError
from defserve.protocols.mcp.asking.server_secret import VARIABLE
from defserve.stores.checkpoints.tree import CheckpointGone, CheckpointTree, Retention, TreeKey

OK: Final = 0
BROKEN: Final = 1


async def list_trees(opened: OpenedStore, options: Namespace) -> int:
    rows = [await _row(opened, key) for key in await opened.chosen(options)]
    if options.json:
        show(Data(rows))
        return OK
    names = shown_ids([row["head"] for row in rows if row["head"]], options)
    cells = (
        [
            (row["featureSet"], "title"),
            row["owner"],
            row["kept"],
            row["made"],
            moment(row["time"]),
            _id(row["head"], names),
        ]
        for row in rows
    )
    show(Table(("feature set", "owner", "kept", "made", "last", "head"), cells, fit=("owner",), right=("kept", "made")))
    return OK


def shown_ids(ids: list[str], options: Namespace) -> dict[str, str]:
    """Id → what is shown of it: at a terminal as much as tells it from the others, else all of it, for scripts."""
    return short_ids(ids) if is_drawn(sys.stdout) and not options.long else {id: id for id in ids}


def _id(id: str | None, names: dict[str, str]) -> tuple[str, str]:
    return names.get(id or "", id or ""), "name"


async def show_trees(opened: OpenedStore, options: Namespace) -> int:
    if options.checkpoint is not None:
        return await _show_one(opened, options)
    found: list[dict[str, Any]] = []
    for key in await opened.chosen(options):
        tree, checkpoints = await opened.trees.load(key), await opened.trees.checkpoints(key)
        if not options.json:
            names = shown_ids([at.id for at in checkpoints], options)
            show(Table(("feature set", "owner"), [key]), *drawing(checkpoints, tree.head, names), "")
        found.append({**named(key), "head": tree.head, "checkpoints": [at._asdict() for at in checkpoints]})
    if options.json:
        show(Data(found))
    return OK


async def _show_one(opened: OpenedStore, options: Namespace) -> int:
    key, id = await opened.checkpoint(options.checkpoint, options)
    at, content = await opened.trees.get(key, id), await opened.trees.content(key, id)
    if options.json:
        show(Data({**named(key), **at._asdict(), "content": content}))
        return OK
    head = ("feature set", "owner", "number", "depth", "made", "parent")
    parent = _id(at.parent, shown_ids([at.parent] if at.parent else [], options))
    show(Table(head, [(*key, at.number, at.depth, moment(at.time), parent)], fit=("owner",)))
    show("(no content: the server keeps this state itself)" if at.opaque else Data(content))
    return OK


async def diff(opened: OpenedStore, options: Namespace) -> int:
    (key, a), (_, b) = await opened.checkpoint(options.a, options), await opened.checkpoint(options.b, options)
    try:
        ops = await opened.trees.diff(key, a, b)
    except CheckpointGone:
        raise UsageError(f"{options.b} is not in the tree of {options.a}") from None
    show(*([Data(ops, compact=True)] if options.json else operations(ops)))
    return OK


async def export(opened: OpenedStore, options: Namespace) -> int:
    for key in await opened.chosen(options):
        async for checkpoint in opened.trees.export(key):
            show(Data({**named(key), **checkpoint}, compact=True))
    return OK


async def prune(opened: OpenedStore, options: Namespace) -> int:
    if options.keep is None and options.ttl is None and options.idle is None:
        raise UsageError("nothing says what to delete", fix="give --keep, --ttl or --idle")
    retention, rows = Retention(options.keep, options.ttl), list[dict[str, Any]]()
    for key in await opened.chosen(options):
        tree = await opened.trees.load(key)
        if await _is_idle(opened, key, tree, options.idle):
            await opened.trees.forget(key)
            rows.append({**named(key), "dropped": tree.kept, "kept": 0})
            continue
        dropped = await opened.trees.prune(key, retention)
        rows.append({**named(key), "dropped": dropped, "kept": (await opened.trees.load(key)).kept})
    if options.json:
        show(Data(rows))
    else:
        show(Table(("feature set", "owner", "dropped", "kept"), (list(row.values()) for row in rows), fit=("owner",)))
    return OK


async def verify(opened: OpenedStore, options: Namespace) -> int:
    keys = await opened.chosen(options)
    wrong = {"the store": found} if (found := await opened.store.check()) else {}
    for key in keys:
        if found := await opened.trees.verify(key):
            wrong[f"{key.feature_set} of {key.owner}"] = found
    count = sum([(await opened.trees.load(key)).kept for key in keys]) if not wrong else 0
    if options.json:
        show(Data({"ok": not wrong, "trees": len(keys), "checkpoints": count, "problems": wrong}))
    elif not wrong:
        show(Line(("intact:", "good"), f" {counted(len(keys), 'tree')}, {counted(count, 'checkpoint')}"))
    else:
        rows = ((where, line) for where, lines in wrong.items() for line in lines)
        show(Table(("where", "what"), rows, fit=("where", "what")))
    if wrong and not options.json and not opened.has_secret:
        show(*problem_lines("note", f"the server's secret is not known; set {VARIABLE}"))
    return BROKEN if wrong else OK


async def _row(opened: OpenedStore, key: TreeKey) -> dict[str, Any]:
    tree = await opened.trees.load(key)
    return {
        **named(key),
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


def named(key: TreeKey) -> dict[str, Any]:
    return {"featureSet": key.feature_set, "owner": key.owner}
