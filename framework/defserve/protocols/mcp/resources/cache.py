"""Contents of resources that have a `ttl`, kept until they expire."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

from defserve.wire.messages import Params

MOST_BYTES, KEY_BYTES = 16 * 1024 * 1024, 256


class CachedContents(NamedTuple):
    """The contents, as one protocol version shows them, and when they expire."""

    contents: list[Params]
    until: float
    size: int


class ResourceCache:
    """Contents by URI and protocol version. The least recently read go first. From any thread."""

    __slots__ = ("_readings", "_size", "_most", "_clock", "_lock", "changes")

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MOST_BYTES) -> None:
        self._readings: dict[tuple[str, str], CachedContents] = {}
        self._size, self._most = 0, most
        self._clock, self._lock = clock, Lock()
        self.changes = 0
        """How often something was forgotten. What was read before that may be out of date."""

    def get(self, uri: str, version: str) -> tuple[list[Params], float] | None:
        """The contents and the seconds until they expire; None if there are none, or they have expired."""
        with self._lock:
            reading = self._drop((uri, version))
            if reading is None or reading.until <= (now := self._clock()):
                return None
            self._put((uri, version), reading)
            return _copied(reading.contents), reading.until - now

    def put(self, uri: str, version: str, contents: list[Params], ttl: float, changes: int) -> None:
        """Keep what a function gave, unless something has been forgotten since `changes` was read."""
        size = KEY_BYTES + len(uri) + sum(len(str(part.get("text") or part.get("blob") or "")) for part in contents)
        with self._lock:
            if changes != self.changes or size > self._most:
                return
            self._drop((uri, version))
            self._put((uri, version), CachedContents(_copied(contents), self._clock() + ttl, size))
            while self._size > self._most:
                self._drop(next(iter(self._readings)))

    def forget(self, uri: str | None = None) -> None:
        """A resource has changed; without a URI, all have."""
        with self._lock:
            self.changes += 1
            for key in [key for key in self._readings if uri in (None, key[0])]:
                self._drop(key)

    def _put(self, key: tuple[str, str], reading: CachedContents) -> None:
        self._readings[key] = reading
        self._size += reading.size

    def _drop(self, key: Any) -> CachedContents | None:
        reading = self._readings.pop(key, None)
        self._size -= reading.size if reading is not None else 0
        return reading


def _copied(contents: list[Params]) -> list[Params]:
    # A wrapper of the method may change what it passes on.
    return [dict(part) for part in contents]
