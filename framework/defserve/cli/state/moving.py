"""`defserve state rollback` and `branch`: another checkpoint becomes the head of its tree."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from defserve.cli.screen.blocks import Data, Line
from defserve.cli.screen.screen import show
from defserve.cli.state.actions import OK, named, shown_ids
from defserve.cli.state.opened import OpenedStore
from defserve.errors import UsageError
from defserve.protocols.mcp.asking.server_secret import VARIABLE
from defserve.stores.checkpoints.store import StateTampered
from defserve.stores.checkpoints.tree import Checkpoint, TreeKey


async def rollback(opened: OpenedStore, options: Namespace) -> int:
    """Nothing is deleted: what came after the checkpoint stays, and can be rolled back to."""
    key, at = await _found(opened, options)
    before = (await opened.trees.load(key)).head
    await opened.trees.rollback(key, at.id)
    _report(key, at.id, before, options, "is the head again" if before != at.id else "is the head already")
    return OK


async def branch(opened: OpenedStore, options: Namespace) -> int:
    """A new checkpoint below the given one, with its content or another."""
    key, at = await _found(opened, options)
    before, content = (await opened.trees.load(key)).head, await opened.trees.content(key, at.id)
    try:
        held = await opened.trees.adopt(key, content, checkpoint=at.id)
    except StateTampered:
        raise UsageError(
            "a new checkpoint needs the secret of the server, and this is another one", fix=f"set {VARIABLE}"
        ) from None
    wanted = content if options.content is None else _read(options.content)
    made = (await opened.trees.commit(held, wanted, branch=True)).checkpoint
    _report(key, made.id, before, options, f"is a branch of {shown_ids([at.id], options)[at.id]}, and the head")
    return OK


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
