"""Checkpoints for a terminal: tables, and a tree drawn with lines. Owners come from callers, so they are escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from defserve.redaction import printable
from defserve.stores.checkpoints.patches import Op
from defserve.stores.checkpoints.tree import Checkpoint


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Columns that line up."""
    cells = [list(head), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def drawing(checkpoints: Sequence[Checkpoint], head: str | None) -> Iterator[str]:
    """The tree: a line a checkpoint, parents above their children, a branch further in than what it left.

    A way without branches goes straight down, however long it is.
    """
    kept = {at.id for at in checkpoints}
    children: dict[str | None, list[Checkpoint]] = {}
    for at in checkpoints:
        children.setdefault(at.parent if at.parent in kept else None, []).append(at)
    # (checkpoint, what stands before it, what stands before those below it); the next one is at the end.
    todo = [(at, "", "") for at in reversed(children.get(None, []))]
    while todo:
        at, before, below = todo.pop()
        yield f"{before}{at.id}  #{at.number}  {moment(at.time)}{'  <- head' if at.id == head else ''}"
        after = children.get(at.id, [])
        if len(after) == 1:
            todo.append((after[0], below, below))
        elif after:
            marks = [("├── ", "│   ")] * (len(after) - 1) + [("└── ", "    ")]
            steps = zip(after, marks, strict=True)
            todo += reversed([(child, below + mark, below + rest) for child, (mark, rest) in steps])


def operations(ops: Iterable[Op]) -> Iterator[str]:
    """A patch, a line an operation."""
    for op in ops:
        value = f"  {json.dumps(op['value'])}" if "value" in op else ""
        yield f"{op['op']:7}  {printable(op['path'] or '(all)')}{value}"


def moment(time: float | None) -> str:
    """Seconds since the epoch, as a date."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"


def indented(value: Any) -> str:
    return json.dumps(value, indent=2)
