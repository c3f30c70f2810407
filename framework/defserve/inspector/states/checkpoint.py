"""A checkpoint as the page shows it, and a tree of them as the panel reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class KnownCheckpoint:
    """A checkpoint, with what is known of how it came to be.

    number  counts the checkpoints of a tree
    call    the tool whose call made it
    change  what it changed from its parent, in words; None if that is not known yet
    who     who made it
    """

    id: str
    parent: str | None
    number: int
    time: float
    call: str | None = None
    change: str | None = None
    who: str | None = None


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""In place of a content that the server keeps for itself, or that nobody told."""


class CheckpointView(Protocol):
    """One tree, wherever it comes from. `is_shared`: others can change it, and this inspector is not told."""

    @property
    def is_shared(self) -> bool: ...

    async def head(self) -> str | None: ...

    async def count(self) -> int: ...

    async def checkpoints(self) -> Sequence[KnownCheckpoint]:
        """All that are kept, the oldest first."""
        ...

    async def content(self, id: str) -> Any:
        """The content of a checkpoint, or MISSING. Raises CheckpointGone."""
        ...

    def facts(self) -> Json:
        """What is known of the tree: some of `owner`, `store`, `keep`, `undoes`, `opaque`."""
        ...
