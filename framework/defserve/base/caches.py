"""Caches for what a peer says, bounded in bytes. `tests/test_caches.py` lists every cache and table with its bound."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def remember_short(entries: int, longest: int = 256) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Like `lru_cache` for a function of texts, but a call with a text longer than `longest` is not remembered."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        remembered = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def answer(*given: P.args, **named: P.kwargs) -> T:
            for value in given:
                if isinstance(value, str) and len(value) > longest:
                    return function(*given, **named)
            return remembered(*given, **named)

        return answer

    return decorate


class ByteCache(Generic[T]):
    """Values up to `most` bytes in all, as their sizes are given. The oldest make room. One that would take more than
    a quarter of the room is not kept."""

    __slots__ = ("_most", "_size", "_kept")

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: dict[Hashable, tuple[T, int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> T | None:
        found = self._kept.get(key)
        return None if found is None else found[0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Keep a value. `size` counts the key as well, if a peer chooses it."""
        self.drop(key)
        if 4 * size > self._most:
            return
        self._kept[key] = value, size
        self._size += size
        while self._size > self._most:
            self.drop(next(iter(self._kept)))

    def drop(self, key: Hashable) -> None:
        if (dropped := self._kept.pop(key, None)) is not None:
            self._size -= dropped[1]

    def clear(self) -> None:
        self._kept.clear()
        self._size = 0
