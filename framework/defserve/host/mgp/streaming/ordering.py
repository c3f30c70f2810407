"""MGP §12.9: puts the chunks of a stream in order by their index, and knows which ones are missing."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import to_json

MOST_EARLY: Final = 1_000
MOST_EARLY_BYTES: Final = 16 * 1024 * 1024
AROUND_BYTES: Final = 128
"""What a part takes besides its content, about."""
MOST_WANTED: Final = 256
"""How many missing chunks are asked for at a time. The server chooses the indices, so a gap may be huge."""

_LOST: Final = object()


class ChunkOrder:
    """`next` is the index of the next chunk to give out. `missed` counts chunks that will never come."""

    __slots__ = ("next", "missed", "_early", "_early_bytes", "_asked")

    def __init__(self) -> None:
        self.next = self.missed = 0
        self._early: dict[int, tuple[Any, int]] = {}
        self._early_bytes = 0
        self._asked: set[int] = set()

    def take(self, index: int, content: Any) -> list[Any]:
        """Take one more chunk; returns the chunks that are next in order. A repeated chunk is ignored."""
        if index < self.next or index in self._early:
            return []
        # What can be given out at once does not wait, so it need not be measured.
        size = part_size(content) if index > self.next else 0
        self._early[index] = (content, size)
        self._early_bytes += size
        if len(self._early) > MOST_EARLY or self._early_bytes > MOST_EARLY_BYTES:
            self._skip_to(min(self._early))
        return self._due()

    def lose(self, index: int) -> list[Any]:
        """Give up a chunk that cannot be sent again. Other missing chunks may be asked for once more."""
        self._asked.clear()
        return self.take(index, _LOST)

    def wanted(self) -> list[int]:
        """The missing chunks that were not asked for yet."""
        until = min(max(self._early, default=0), self.next + MOST_WANTED)
        found = [index for index in range(self.next, until) if index not in self._early and index not in self._asked]
        self._asked = {index for index in self._asked if index >= self.next}.union(found)
        return found

    def repeat(self) -> None:
        """The chunks start again from the first. Those that were given out are not given out twice."""
        self._early.clear()
        self._early_bytes = 0
        self._asked.clear()

    def rest(self) -> list[Any]:
        """All remaining chunks, when no more can come."""
        found: list[Any] = []
        while self._early:
            self._skip_to(min(self._early))
            found += self._due()
        return found

    def _skip_to(self, index: int) -> None:
        self.missed += index - self.next
        self.next = index

    def _due(self) -> list[Any]:
        found: list[Any] = []
        while self.next in self._early:
            content, size = self._early.pop(self.next)
            self._early_bytes -= size
            self.next += 1
            if content is _LOST:
                self.missed += 1
            else:
                found.append(content)
        return found


def part_size(part: Any) -> int:
    """The bytes that a part takes, about."""
    size = len(part) if isinstance(part, str) else len(to_json(part, fallback=str, inf_nan_mode="null"))
    return AROUND_BYTES + size
