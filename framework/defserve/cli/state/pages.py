"""Checkpoints for a terminal: the tree drawn with lines, patches and times as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from defserve.cli.screen.blocks import Line
from defserve.stores.checkpoints.patches import Op
from defserve.stores.checkpoints.tree import Checkpoint


def drawing(
    checkpoints: Sequence[Checkpoint], head: str | None, names: Mapping[str, str] | None = None
) -> Iterator[Line]:
    """The tree, one line per checkpoint. Parents stand above their children. `names` is what to show of each id.

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
        id = names[at.id] if names else at.id
        mark = ("  <- head", "good") if at.id == head else ""
        yield Line((before, "faint"), (id, "name"), f"  #{at.number}", (f"  {moment(at.time)}", "faint"), mark)
        after = children.get(at.id, [])
        if len(after) == 1:
            todo.append((after[0], below, below))
        elif after:
            marks = [("├── ", "│   ")] * (len(after) - 1) + [("└── ", "    ")]
            branches = [(child, below + mark, below + rest) for child, (mark, rest) in zip(after, marks, strict=True)]
            todo += reversed(branches)


def operations(ops: Iterable[Op]) -> Iterator[Line]:
    """A patch, one line per operation."""
    for op in ops:
        value = f"  {json.dumps(op['value'])}" if "value" in op else ""
        style = {"add": "added", "remove": "removed"}.get(op["op"], "warning")
        yield Line((f"{op['op']:7}", style), f"  {op['path'] or '(all)'}{value}", hang=9)


def moment(time: float | None) -> str:
    """Seconds since the epoch, as a date."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
