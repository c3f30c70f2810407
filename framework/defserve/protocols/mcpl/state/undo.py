"""Undo and redo of a state: which checkpoint a step leads to. The step itself is a commit, as any change.

An undo makes a new checkpoint with an old content, so hosts see a change like any other, and nothing is lost. Its
record says where it is in the line of changes (`LinePosition`), so the next undo goes further back:

    a ── b ── c ── U ── V          U has the content of b, and V that of a. `undo` at V gives the initial state,
                                   `redo` at V gives b: the change after a on the way to the tip, c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from defserve.core.json_values import is_object
from defserve.stores.checkpoints.checkpoint_tree import (
    Checkpoint,
    CheckpointGone,
    CheckpointRecord,
    LinePosition,
    TreeKey,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from defserve.stores.checkpoints.checkpoint_store import CheckpointStore, HeldCheckpoint

UndoDirection = Literal["undo", "redo"]


class ChangeLine:
    """The line of changes that leads to a checkpoint. It may cross from a branch into the tree that it left."""

    def __init__(self, trees: CheckpointStore, keys: Sequence[TreeKey]) -> None:
        self._trees, self._keys = trees, keys

    async def find_position_after_step(self, position: LinePosition, direction: UndoDirection) -> LinePosition | None:
        """Where one step leads; None if there is no step."""
        if direction == "redo":
            return await self._find_redo(position)
        if position.at is None or (record := await self._find_record(position.at)) is None:
            return None
        before = await self._find_before(record)
        return LinePosition(before.at, position.tip) if before is not None else None

    async def _find_redo(self, position: LinePosition) -> LinePosition | None:
        """One step towards the tip. Reads as many records as changes were undone."""
        following = position.tip
        while following is not None and following != position.at:
            if (record := await self._find_record(following)) is None:
                return None
            if (before := await self._find_before(record)) is None:
                return None
            if before.at == position.at:
                return LinePosition(following, position.tip)
            following = before.at
        return None

    async def list_changes(self, position: LinePosition, limit: int) -> list[Checkpoint]:
        """The last changes up to a position, the newest first."""
        found: list[Checkpoint] = []
        at = position.at
        while at is not None and len(found) < limit and (record := await self._find_record(at)) is not None:
            found.append(record.checkpoint)
            before = await self._find_before(record) if len(found) < limit else None
            at = before.at if before is not None else None
        return found

    async def load_checkpoint(self, id: str | None) -> HeldCheckpoint:
        """A checkpoint of the line, or the initial state. Raises CheckpointGone."""
        if id is None:
            return await self._trees.load_before_first_checkpoint(self._keys[0])
        for key in self._keys[:-1]:
            try:
                return await self._trees.load_checkpoint(key, id)
            except CheckpointGone:
                continue
        return await self._trees.load_checkpoint(self._keys[-1], id)

    async def _find_record(self, id: str) -> CheckpointRecord | None:
        for key in self._keys:
            if (record := await self._trees.find_retained_record(key, id)) is not None:
                return record
        return None

    async def _find_before(self, record: CheckpointRecord) -> LinePosition | None:
        """Where the line was before a change; None if that is not kept."""
        at = record.checkpoint
        if at.parent is None:
            # What a caller brought may have come before it, and is not kept.
            return LinePosition(None, None) if at.proved else None
        parent = await self._find_record(at.parent)
        return get_line_position(parent) if parent is not None else None


def get_line_position(record: CheckpointRecord) -> LinePosition:
    return record.position or LinePosition(record.id, record.id)


def overwrite_in_place(value: Any, source: Any) -> None:
    """Give an object the content of another of its kind, which is not used afterwards."""
    if isinstance(value, list):
        value[:] = source
    elif is_object(value):
        value.clear()
        value.update(source)
    else:
        slots = {name for kind in type(value).__mro__ for name in _list_slots(kind)}
        for name in slots - {"__dict__", "__weakref__"}:
            if hasattr(source, name):
                object.__setattr__(value, name, getattr(source, name))
        if hasattr(value, "__dict__"):
            object.__setattr__(value, "__dict__", source.__dict__)


def _list_slots(kind: type) -> Sequence[str]:
    slots: str | Sequence[str] = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots
