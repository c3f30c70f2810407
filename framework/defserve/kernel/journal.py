"""What happened to a server: its standard error and its changes of state. Bounded, and without secrets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from defserve.protocols.mgp import instants

KEPT: Final = 500
LONGEST: Final = 2_000
BEHIND: Final = 1_000
"""Lines that a follower may be behind before it misses some."""

Kind: TypeAlias = Literal["state", "stderr", "problem"]


class JournalLine(NamedTuple):
    """A line. `time` is that of the wall clock."""

    time: datetime
    id: str
    kind: Kind
    text: str

    def wire(self) -> dict[str, Any]:
        return {"time": instants.wire(self.time), "id": self.id, "kind": self.kind, "text": self.text}


class Journal:
    """The last lines of all servers, a bounded number for each. Followers get new ones as they come."""

    def __init__(self, clock: Callable[[], datetime] = instants.now) -> None:
        self._lines: dict[str, deque[JournalLine]] = {}
        self._followers: set[asyncio.Queue[JournalLine]] = set()
        self._clock = clock

    def add(self, id: str, kind: Kind, text: str) -> None:
        line = JournalLine(self._clock(), id, kind, text[:LONGEST])
        self._lines.setdefault(id, deque(maxlen=KEPT)).append(line)
        for follower in self._followers:
            if follower.full():
                follower.get_nowait()
            follower.put_nowait(line)

    def forget(self, id: str) -> None:
        """A server is gone for good."""
        self._lines.pop(id, None)

    def lines(self, id: str | None = None) -> list[JournalLine]:
        """The kept lines of one server, or of all, by time."""
        found = self._lines.get(id, ()) if id is not None else (line for kept in self._lines.values() for line in kept)
        return sorted(found, key=lambda line: line.time)

    async def follow(self, id: str | None = None) -> AsyncGenerator[JournalLine]:
        """The kept lines, then new ones for ever."""
        follower: asyncio.Queue[JournalLine] = asyncio.Queue(BEHIND)
        self._followers.add(follower)
        try:
            for line in self.lines(id):
                yield line
            while True:
                line = await follower.get()
                if id is None or line.id == id:
                    yield line
        finally:
            self._followers.discard(follower)
