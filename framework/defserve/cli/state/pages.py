"""Checkpoints for a terminal: the tree drawn with lines, patches and times as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from defserve.redaction import printable
from defserve.stores.checkpoints.patches import Op
from defserve.stores.checkpoints.tree import Checkpoint


def drawing(checkpoints: Sequence[Checkpoint], head: str | None) -> Iterator[str]:
    """The tree, one line per checkpoint. Parents stand above their children.

    Only a branch is indented, so a long history without branches goes straight down.
    """
    kept = {at.id for at in checkpoints}
    children: dict[str | None, list[Checkpoint]] = {}
    for at in checkpoints:
        children.setdefault(at.parent if at.parent in kept else None, []).append(at)
    # (checkpoint, prefix of its line, prefix of the lines below it); the next one is at the end.
    todo = [(at, "", "") for at in reversed(children.get(None, []))]
    while todo:
        at, before, below = todo.pop()
        yield f"{before}{at.id}  #{at.number}  {moment(at.time)}{'  <- head' if at.id == head else ''}"
        after = children.get(at.id, [])
        if len(after) == 1:
            todo.append((after[0], below, below))
        elif after:
            marks = [("├── ", "│   ")] * (len(after) - 1) + [("└── ", "    ")]
            branches = [(child, below + mark, below + rest) for child, (mark, rest) in zip(after, marks, strict=True)]
            todo += reversed(branches)


def operations(ops: Iterable[Op]) -> Iterator[str]:
    """A patch, one line per operation."""
    for op in ops:
        value = f"  {json.dumps(op['value'])}" if "value" in op else ""
        yield f"{op['op']:7}  {printable(op['path'] or '(all)')}{value}"


def moment(time: float | None) -> str:
    """Seconds since the epoch, as a date."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
