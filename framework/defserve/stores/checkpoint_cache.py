"""The checkpoints asked for last, so that a call on the head reads nothing but where the head is."""

from __future__ import annotations

from collections import OrderedDict

from defserve.stores.checkpoints import Record, Tree, TreeKey
from defserve.stores.contents import Content


class Known:
    """Records and contents by their ids, up to `limit` bytes, each good until its tree is rewritten."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._held: OrderedDict[tuple[TreeKey, str], tuple[int, Record, Content | None]] = OrderedDict()

    def find(self, key: TreeKey, tree: Tree, id: str) -> tuple[Record, Content | None] | None:
        found = self._held.get((key, id))
        if found is None or found[0] != tree.epoch:
            return None
        self._held.move_to_end((key, id))
        return found[1], found[2]

    def keep(self, key: TreeKey, tree: Tree, record: Record, content: Content | None) -> None:
        self._drop(key, record.id)
        self._held[key, record.id] = kept = (tree.epoch, record, content)
        self._bytes += _weight(kept)
        while self._bytes > self._limit:
            self._bytes -= _weight(self._held.popitem(last=False)[1])

    def move(self, key: TreeKey, tree: Tree, record: Record, content: Content | None) -> None:
        """Keep what was made of a checkpoint in its place, since it is there that most go on."""
        if record.checkpoint.parent is not None:
            self._drop(key, record.checkpoint.parent)
        self.keep(key, tree, record, content)

    def _drop(self, key: TreeKey, id: str) -> None:
        dropped = self._held.pop((key, id), None)
        if dropped is not None:
            self._bytes -= _weight(dropped)


def _weight(kept: tuple[int, Record, Content | None]) -> int:
    # A value, and what others make of it, take several times the room of its text.
    return 1024 + len(kept[1].body) + (8 * len(kept[2].encoded) if kept[2] is not None else 0)
