"""Bounds on what a peer says: caches and queues bounded in bytes, texts cut before they are repeated.

`tests/test_caches.py` lists every cache and table with its bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache, wraps
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def cache_short_texts(entries: int, longest: int = 256) -> Callable[[Callable[P, T]], Callable[P, T]]:
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


class ByteBoundedCache(Generic[T]):
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

    def store_value(self, key: Hashable, value: T, size: int) -> None:
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


# -- What a peer sent and nobody has read yet, or the newest of it. A number is no bound: the peer chooses the sizes.


MAX_UNREAD_BYTES: Final = 16 * 1024 * 1024
AROUND_ITEM: Final = 256
AROUND_CONTAINER: Final = 64
AROUND_VALUE: Final = 16


def estimate_parsed_json_bytes(text: bytes) -> int:
    """About how many bytes a decoded JSON text takes: an empty array is two characters, and 30 times as much in memory.

    Brackets and commas in strings count as well, so it is rather too much than too little.
    """
    containers = text.count(b"[") + text.count(b"{")
    return AROUND_ITEM + len(text) + AROUND_CONTAINER * containers + AROUND_VALUE * text.count(b",")


def estimate_value_bytes(value: Any) -> int:
    """The same for a decoded value, or an object of such values."""
    from pydantic_core import to_json

    try:
        return estimate_parsed_json_bytes(to_json(value, fallback=repr, inf_nan_mode="null"))
    except ValueError:  # a lone surrogate, or too deep
        return estimate_parsed_json_bytes(repr(value).encode("utf-8", "replace"))


class RecentItems(deque[T]):
    """The newest items: at most `most`, and `most_bytes` in all, as `measure` has it. The oldest make room.

    An item that alone takes more is not kept. Change it by `append`, `popleft` and `clear` only.
    """

    def __init__(
        self, most: int, most_bytes: int = MAX_UNREAD_BYTES, measure: Callable[[T], int] = estimate_value_bytes
    ) -> None:
        super().__init__()
        self._most, self._most_bytes, self._measure = most, most_bytes, measure
        self._sizes: deque[int] = deque()
        self.bytes = 0

    def append(self, item: T, /) -> None:
        self.append_with_size(item, self._measure(item))

    def append_with_size(self, item: T, size: int) -> None:
        """Append an item whose size is known."""
        if size > self._most_bytes:
            return
        super().append(item)
        self._sizes.append(size)
        self.bytes += size
        while len(self) > self._most or self.bytes > self._most_bytes:
            self.popleft()

    def has_room(self, size: int) -> bool:
        """Whether nothing has to go for one more item."""
        return len(self) < self._most and self.bytes + size <= self._most_bytes

    def popleft(self) -> T:
        item = super().popleft()
        self.bytes -= self._sizes.popleft()
        return item

    def clear(self) -> None:
        super().clear()
        self._sizes.clear()
        self.bytes = 0

    def extend(self, items: Iterable[T], /) -> None:
        for item in items:
            self.append(item)


class FirstComeTable(Generic[T]):
    """Values by their names: at most `most`, and `most_bytes` in all with the names. What finds no room is not kept."""

    __slots__ = ("_most", "_most_bytes", "_bytes", "_kept")

    def __init__(self, most: int, most_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._kept: dict[str, tuple[T, int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def get(self, name: str) -> T | None:
        found = self._kept.get(name)
        return None if found is None else found[0]

    def values(self) -> list[T]:
        return [value for value, _ in self._kept.values()]

    def store_value(self, name: str, value: T) -> bool:
        """Keep a value instead of the one that has its name. False: there is no room, and none of that name now."""
        size, was = estimate_value_bytes((name, value)), self._kept.get(name, (None, 0))[1]
        if (name not in self._kept and len(self._kept) >= self._most) or self._bytes - was + size > self._most_bytes:
            self.drop(name)
            return False
        self._kept[name] = value, size
        self._bytes += size - was
        return True

    def drop(self, name: str) -> None:
        self._bytes -= self._kept.pop(name, (None, 0))[1]

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0


# -- What a peer sent, cut to be repeated: an error, a reply or a log line never grows with somebody else's text.


MAX_ECHO: Final = 1_000
"""Characters of what a peer sent that an error repeats to it."""
MAX_PEER_TEXT_LENGTH: Final = 4_000
"""Characters of another side's own error that ours shows."""
MAX_VIOLATION_LENGTH: Final = 300
MAX_VIOLATIONS: Final = 20
"""Characters of what a guard found, and how many of those a refusal names."""


def truncate_text(text: str, most: int = MAX_ECHO) -> str:
    """A text that a peer may have sent, short enough to be repeated in an error, a reply or a log line."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def truncate_error_data(data: Any, most: int = MAX_ECHO, depth: int = 6) -> Any:
    """The data of an error with each of its texts cut. An address that one has to open stays whole."""
    if isinstance(data, str):
        return truncate_text(data, most)
    if isinstance(data, dict) and depth:
        members = cast("dict[Any, Any]", data)
        return {
            truncate_text(str(name), most): value if name in _WHOLE else truncate_error_data(value, most, depth - 1)
            for name, value in members.items()
        }
    if isinstance(data, list) and depth:
        return [truncate_error_data(item, most, depth - 1) for item in cast("list[Any]", data)]
    return cast("Any", data)


_WHOLE: Final = frozenset(("url", "requestState"))
