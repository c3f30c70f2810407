"""`defserve state rollback`, `branch` and `trust`: another checkpoint becomes the head of its tree."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from defserve.cli.screen.blocks import Data, Line
from defserve.cli.screen.screen import problem_lines, show
from defserve.cli.state.actions import OK, named, shown_ids
from defserve.cli.state.opened import OpenedStore
from defserve.errors import UsageError
from defserve.protocols.mcp.asking.server_secret import VARIABLE
from defserve.stores.checkpoints.store import HeldCheckpoint, StateTampered
from defserve.stores.checkpoints.tree import Checkpoint, TreeKey


async def rollback(opened: OpenedStore, options: Namespace) -> int:
    """Nothing is deleted: what came after the checkpoint stays, and can be rolled back to."""
    key, at = await _found(opened, options)
    before = (await opened.trees.load(key)).head
    await opened.trees.rollback(key, at.id)
    _report(key, at.id, before, options, "is the head again" if before != at.id else "is the head already")
    return OK


async def branch(opened: OpenedStore, options: Namespace) -> int:
    """A new checkpoint below the given one, with its content or another.

    It is proved if the given one is. Content of a file is not: nobody knows where that comes from.
    """
    key, at = await _found(opened, options)
    before, held = (await opened.trees.load(key)).head, await _held(opened, key, at)
    wanted = held.content() if options.content is None else _read(options.content)
    draft = opened.trees.draft(held, wanted)
    if not draft.is_same:
        held = held._replace(verified=False)
    made = (await opened.trees.commit(held, draft, branch=True)).checkpoint
    _report(key, made.id, before, options, f"is a branch of {shown_ids([at.id], options)[at.id]}, and the head")
    if not made.proved and not options.json:
        show(*problem_lines("note", "dangerous tools refuse it; if it is known to be good: defserve state trust"))
    return OK


async def trust(opened: OpenedStore, options: Namespace) -> int:
    """The operator says that a content is good: a proved checkpoint with the same content becomes the head.

    Without a checkpoint, that is done for the head of every tree that the options choose.
    """
    if options.checkpoint is not None:
        chosen = [await _found(opened, options)]
    else:
        chosen = [(key, at) for key in await opened.chosen(options) if (at := await _head(opened, key)) is not None]
    rows: list[dict[str, Any]] = []
    for key, at in chosen:
        if at.proved or at.opaque:
            continue
        before = (await opened.trees.load(key)).head
        held = (await _held(opened, key, at))._replace(verified=True)
        made = await opened.trees.commit(held, opened.trees.draft(held, held.content()), branch=True)
        rows.append({**named(key), "head": made.checkpoint.id, "before": before})
    if options.json:
        show(Data(rows))
        return OK
    names = shown_ids([row["head"] for row in rows], options)
    for row in rows:
        show(Line((names[row["head"]], "name"), f" is trusted, and the head ({row['featureSet']} of {row['owner']})"))
    if not rows:
        show(Line("nothing to do: all of it is proved already"))
    return OK


async def _head(opened: OpenedStore, key: TreeKey) -> Checkpoint | None:
    head = (await opened.trees.load(key)).head
    return await opened.trees.get(key, head) if head is not None else None


async def _held(opened: OpenedStore, key: TreeKey, at: Checkpoint) -> HeldCheckpoint:
    """The checkpoint, to make another one below it. Raises UsageError without the secret of the server."""
    try:
        return await opened.trees.adopt(key, await opened.trees.content(key, at.id), checkpoint=at.id)
    except StateTampered:
        raise UsageError(
            "a new checkpoint needs the secret of the server, and this is another one", fix=f"set {VARIABLE}"
        ) from None


async def _found(opened: OpenedStore, options: Namespace) -> tuple[TreeKey, Checkpoint]:
    """Raises UsageError for a state that the store does not hold: only its server can change that."""
    key, id = await opened.checkpoint(options.checkpoint, options)
    at = await opened.trees.get(key, id)
    if at.opaque:
        raise UsageError(
            f"the server of {key.feature_set} keeps this state itself; the store has only its name",
            fix="have a host send state/rollback to the server",
        )
    return key, at


def _read(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="name a file with the new content") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", fix="name a file with the new content, as JSON") from None


def _report(key: TreeKey, head: str, before: str | None, options: Namespace, what: str) -> None:
    if options.json:
        show(Data({**named(key), "head": head, "before": before}))
        return
    names = shown_ids([id for id in (head, before) if id], options)
    show(Line((names[head], "name"), f" {what} ({key.feature_set} of {key.owner})"))
    if before is not None and before != head:
        show(Line("  the head before it: ", (names[before], "name")))
