"""The bytes of messages: new ones in memory, older ones in a temporary file without a name, the oldest forgotten."""

from __future__ import annotations

import tempfile
from collections import deque
from typing import IO, Final, NamedTuple

IN_MEMORY: Final = 32 * 1024 * 1024
IN_FILE: Final = 256 * 1024 * 1024
"""Bytes of one file. There are two at most: when the newer is full, the older is dropped."""
LONGEST: Final = 4 * 1024 * 1024
"""Bytes of one body that are kept."""


class Spilled(NamedTuple):
    """Where a body lies in a file."""

    file: int
    offset: int
    length: int


class Bodies:
    """Bodies by number. Numbers only grow. A body of more than `LONGEST` bytes is cut."""

    def __init__(self, in_memory: int = IN_MEMORY, in_file: int = IN_FILE) -> None:
        self._in_memory, self._in_file = in_memory, in_file
        self._held: dict[int, bytes] = {}
        self._order: deque[int] = deque()
        self._size = 0
        self._spilled: dict[int, Spilled] = {}
        self._files: dict[int, IO[bytes]] = {}
        self._newest = 0
        self._written = 0

    @property
    def in_memory(self) -> int:
        """Bytes that are held in memory."""
        return self._size

    def keep(self, number: int, body: bytes) -> None:
        body = body if len(body) <= LONGEST else body[:LONGEST]
        self._held[number] = body
        self._order.append(number)
        self._size += len(body)
        while self._size > self._in_memory and len(self._order) > 1:
            self._spill(self._order.popleft())

    def get(self, number: int) -> bytes | None:
        """A body; None if it was forgotten."""
        if (held := self._held.get(number)) is not None:
            return held
        if (place := self._spilled.get(number)) is None:
            return None
        file = self._files[place.file]
        file.seek(place.offset)
        return file.read(place.length)

    def forget(self, number: int) -> None:
        """Nobody will ask for this body again."""
        if (held := self._held.pop(number, None)) is not None:
            self._size -= len(held)
            self._order.remove(number)
        self._spilled.pop(number, None)

    def close(self) -> None:
        """Forget everything."""
        for file in self._files.values():
            file.close()
        self._files, self._held, self._spilled, self._size = {}, {}, {}, 0
        self._order.clear()

    def _spill(self, number: int) -> None:
        body = self._held.pop(number)
        self._size -= len(body)
        if not self._files or self._written + len(body) > self._in_file:
            self._turn()
        file = self._files[self._newest]
        file.seek(self._written)
        file.write(body)
        self._spilled[number] = Spilled(self._newest, self._written, len(body))
        self._written += len(body)

    def _turn(self) -> None:
        """Begin another file, and drop the one before the last."""
        self._newest += 1
        self._written = 0
        self._files[self._newest] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        old = self._newest - 2
        if (file := self._files.pop(old, None)) is not None:
            file.close()
            self._spilled = {number: place for number, place in self._spilled.items() if place.file != old}
