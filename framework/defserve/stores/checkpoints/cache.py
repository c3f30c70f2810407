"""The checkpoints used last, in memory: a call on the head then reads nothing but the position of the head."""

from __future__ import annotations

from collections import OrderedDict

from defserve.stores.checkpoints.contents import CheckpointContent
from defserve.stores.checkpoints.tree import CheckpointRecord, CheckpointTree, TreeKey


class CheckpointCache:
    """Records and contents by their ids, up to `limit` bytes. An entry is valid until its tree is rewritten."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._held: OrderedDict[tuple[TreeKey, str], tuple[int, CheckpointRecord, CheckpointContent | None, int]] = (
            OrderedDict()
        )

    def find(
        self, key: TreeKey, tree: CheckpointTree, id: str
    ) -> tuple[CheckpointRecord, CheckpointContent | None] | None:
        found = self._held.get((key, id))
        if found is None or found[0] != tree.epoch:
            return None
        self._held.move_to_end((key, id))
        return found[1], found[2]

    def keep(
        self, key: TreeKey, tree: CheckpointTree, record: CheckpointRecord, content: CheckpointContent | None
    ) -> None:
        self._drop(key, record.id)
        # A decoded value takes several times the room of its text.
        weight = 1024 + len(record.body) + (8 * len(content.encoded) if content is not None else 0)
        self._held[key, record.id] = tree.epoch, record, content, weight
        self._bytes += weight
        while self._bytes > self._limit:
            self._bytes -= self._held.popitem(last=False)[1][3]

    def move(
        self, key: TreeKey, tree: CheckpointTree, record: CheckpointRecord, content: CheckpointContent | None
    ) -> None:
        """Keep a new checkpoint in place of its parent: most calls continue from there."""
        if record.checkpoint.parent is not None:
            self._drop(key, record.checkpoint.parent)
        self.keep(key, tree, record, content)

    def _drop(self, key: TreeKey, id: str) -> None:
        if (dropped := self._held.pop((key, id), None)) is not None:
            self._bytes -= dropped[3]
