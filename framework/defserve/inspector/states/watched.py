"""A tree of the checkpoints that this inspector has seen being made, in one conversation after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from defserve.host.mcpl.state import LONGEST_ID, KeptContents, StateChange
from defserve.inspector.states.changes import patch, words
from defserve.inspector.states.checkpoint import MISSING, Json, KnownCheckpoint

MOST: Final = 20_000
DROPPED_AT_ONCE: Final = 1_000
ITSELF: Final = "inspector"
SERVER: Final = "server"


class WatchedTree:
    """`key` names it among the contents, which several trees share. At most `most` checkpoints are kept."""

    def __init__(
        self, key: str, contents: KeptContents, most: int = MOST, clock: Callable[[], float] = time.time
    ) -> None:
        self._key, self._contents, self._most, self._clock = key, contents, most, clock
        self._known: dict[str, KnownCheckpoint] = {}
        self._head: str | None = None
        self._last = 0
        self._has_contents = True

    def add(self, change: StateChange) -> None:
        """Take a checkpoint that was made, or gone back to. An id that nobody could mean is left out."""
        if len(change.checkpoint) > LONGEST_ID or len(change.parent or "") > LONGEST_ID:
            return
        self._head = change.checkpoint
        if change.by_rollback or change.checkpoint in self._known:
            return
        self._last += 1
        self._has_contents = change.content is not None
        said = None
        if change.content is not None:
            before = self._contents.get(self._key, change.parent)
            if before is not None or change.parent is None:
                said = words(patch(before, change.content))
            self._contents.keep(self._key, change.checkpoint, change.content)
        self._known[change.checkpoint] = KnownCheckpoint(
            change.checkpoint,
            change.parent,
            self._last,
            self._clock(),
            change.tool,
            said,
            ITSELF if change.tool is not None else SERVER,
        )
        if len(self._known) > self._most:
            for old in list(self._known)[:DROPPED_AT_ONCE]:
                del self._known[old]

    def get(self, id: str) -> KnownCheckpoint | None:
        return self._known.get(id)

    @property
    def is_shared(self) -> bool:
        return False

    async def count(self) -> int:
        return len(self._known)

    async def head(self) -> str | None:
        return self._head

    async def checkpoints(self) -> Sequence[KnownCheckpoint]:
        return list(self._known.values())

    async def content(self, id: str) -> Any:
        found = self._contents.get(self._key, id)
        return MISSING if found is None else found

    def facts(self) -> Json:
        return {} if self._has_contents else {"opaque": True}
