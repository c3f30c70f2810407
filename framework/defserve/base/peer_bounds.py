"""Bounds on what a peer says: caches bounded in bytes, and texts cut before they are repeated.

`tests/test_caches.py` lists every cache and table with its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

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


# -- What a peer sent, cut to be repeated: an error, a reply or a log line never grows with somebody else's text.


MAX_ECHO: Final = 1_000
"""Characters of what a peer sent that an error repeats to it."""
MAX_PEER_TEXT: Final = 4_000
"""Characters of another side's own error that ours shows."""
MAX_VIOLATION: Final = 300
MAX_VIOLATIONS: Final = 20
"""Characters of what a guard found, and how many of those a refusal names."""


def cut_text(text: str, most: int = MAX_ECHO) -> str:
    """A text that a peer may have sent, short enough to be repeated in an error, a reply or a log line."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def cut_data(data: Any, most: int = MAX_ECHO, depth: int = 6) -> Any:
    """The data of an error with each of its texts cut. An address that one has to open stays whole."""
    if isinstance(data, str):
        return cut_text(data, most)
    if isinstance(data, dict) and depth:
        members = cast("dict[Any, Any]", data)
        return {
            cut_text(str(name), most): value if name in _WHOLE else cut_data(value, most, depth - 1)
            for name, value in members.items()
        }
    if isinstance(data, list) and depth:
        return [cut_data(item, most, depth - 1) for item in cast("list[Any]", data)]
    return cast("Any", data)


_WHOLE: Final = frozenset(("url", "requestState"))
