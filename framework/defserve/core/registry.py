"""Named items in order of registration. They are copied on write, so readers need no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from defserve.errors import UsageError

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    position: int
    item: T
    where: str


class Registry(Generic[T]):
    """Items of one kind ("tool", "resource", …) by name.

    `add` and `remove` may be called from any thread. `version` grows with every change. To cache something under
    it, read the version before the items.
    """

    __slots__ = ("_entries", "_last", "_lock", "_watchers", "kind", "version")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.version = 0
        self._entries: dict[str, _Entry[T]] = {}
        self._last = 0
        self._lock = Lock()
        self._watchers: dict[object, Callable[[], None]] = {}

    def add(self, name: str, item: T, *, where: str = "", replace: bool = False) -> None:
        """Register `item`; `where` (`file:line`) is for messages.

        Raises UsageError when the name is taken, unless `replace`: then the item takes over name and position.
        """
        with self._lock:
            old = self._entries.get(name)
            if old is not None and not replace:
                raise self._taken(name, old.where, where)
            if old is None:
                self._last += 1
            position = self._last if old is None else old.position
            self._publish({**self._entries, name: _Entry(position, item, where)})
        self._tell()

    def remove(self, name: str) -> T:
        """Take an item out and return it; its position stays empty. Raises UsageError when there is none."""
        with self._lock:
            entries = self._entries.copy()
            entry = entries.pop(name, None)
            if entry is None:
                raise self._unknown(name)
            self._publish(entries)
        self._tell()
        return entry.item

    def get(self, name: str) -> T | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.item

    def items(self) -> list[tuple[str, T]]:
        return [(name, entry.item) for name, entry in self._entries.items()]

    def after(self, position: int, count: int) -> list[tuple[int, T]]:
        """Up to `count` items past `position`, each with its own: the base of stable cursors.

        Positions start at 1 and only grow. An item keeps its position, so a cursor stays valid after any change.
        """
        later = ((entry.position, entry.item) for entry in self._entries.values() if entry.position > position)
        return list(islice(later, max(count, 0)))

    def touch(self) -> None:
        """Tell the watchers that items are shown differently, though none was added or removed."""
        with self._lock:
            self.version += 1
        self._tell()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change, in the thread that made it. Returns the function that ends it."""
        key = object()
        with self._lock:
            self._watchers = {**self._watchers, key: changed}

        def unwatch() -> None:
            with self._lock:
                self._watchers = {kept: other for kept, other in self._watchers.items() if kept is not key}

        return unwatch

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return (entry.item for entry in self._entries.values())

    def __repr__(self) -> str:
        return f"<Registry of {self.kind}: {', '.join(self._entries) or 'empty'}>"

    def _publish(self, entries: dict[str, _Entry[T]]) -> None:
        # In this order: newer items cached under an older version are soon replaced; the reverse would stay wrong.
        self._entries = entries
        self.version += 1

    def _tell(self) -> None:
        # Outside the lock, so that a watcher may use the registry.
        for changed in self._watchers.values():
            changed()

    def _taken(self, name: str, first: str, second: str) -> UsageError:
        place = f" at {first}" if first else ""
        return UsageError(
            f"{self.kind} {name!r} is already registered{place}",
            where=second,
            fix="give one of the two another name, or replace the first with replace=True",
        )

    def _unknown(self, name: str) -> UsageError:
        from difflib import get_close_matches

        close = get_close_matches(name, self._entries)
        known = ", ".join(map(repr, close or islice(self._entries, 10)))
        hint = f"did you mean {known}?" if close else f"registered: {known or 'none'}"
        return UsageError(f"there is no {self.kind} {name!r}; {hint}")
