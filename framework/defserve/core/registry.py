"""Named items in order of registration. They are copied on write, so readers need no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from threading import Lock
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from defserve.errors import UsageError

T = TypeVar("T")
Rename: TypeAlias = Callable[[str, T], tuple[str, T] | None]


class _Entry(NamedTuple, Generic[T]):
    position: int
    item: T
    where: str


class _Mirror(Generic[T]):
    """Where the items of a registry are shown too, and as what. It is only used under the lock of their registry."""

    __slots__ = ("_rename", "_shown", "target")

    def __init__(self, target: Registry[T], rename: Rename[T]) -> None:
        self.target, self._rename = target, rename
        self._shown: dict[str, tuple[str, T]] = {}

    def put_entry(self, name: str, entry: _Entry[T], changed: list[Registry[T]]) -> None:
        renamed = self._rename(name, entry.item)
        if renamed is None:
            self.remove_entry(name, changed)
            return
        there, item = renamed
        _, shown = self._shown.get(name, (None, None))
        self.target._put_item(there, item, entry.where, changed, over=shown)  # pyright: ignore[reportPrivateUsage]
        self._shown[name] = (there, item)

    def remove_entry(self, name: str, changed: list[Registry[T]]) -> None:
        there, item = self._shown.pop(name, (None, None))
        if there is not None:
            self.target._remove_item(there, changed, item)  # pyright: ignore[reportPrivateUsage]

    def restore(self, name: str, old: _Entry[T] | None, changed: list[Registry[T]]) -> None:
        if old is None:
            self.remove_entry(name, changed)
        else:
            self.put_entry(name, old, changed)

    def clear(self, changed: list[Registry[T]]) -> None:
        for name in [*self._shown]:
            self.remove_entry(name, changed)


class Registry(Generic[T]):
    """Items of one kind ("tool", "resource", …) by name.

    `add` and `remove` may be called from any thread. A registry that mirrors this one changes with it, or neither
    changes. `version` grows with every change. To cache something under it, read the version before the items.
    """

    __slots__ = ("_entries", "_last", "_lock", "_mirrors", "_watchers", "kind", "version")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.version = 0
        self._entries: dict[str, _Entry[T]] = {}
        self._last = 0
        # Held while the mirrors are changed, so locks are taken from the source to its mirrors, never back.
        self._lock = Lock()
        self._mirrors: tuple[_Mirror[T], ...] = ()
        self._watchers: dict[object, Callable[[], None]] = {}

    def add(self, name: str, item: T, *, where: str = "", replace: bool = False) -> None:
        """Register `item`; `where` (`file:line`) is for messages.

        Raises UsageError when the name is taken, unless `replace`: then the item takes over name and position.
        """
        changed = list[Registry[T]]()
        self._put_item(name, item, where, changed, replace=replace)
        for registry in changed:
            registry._notify_watchers()

    def remove(self, name: str) -> T:
        """Take an item out and return it; its position stays empty. Raises UsageError when there is none."""
        changed = list[Registry[T]]()
        entry = self._remove_item(name, changed)
        if entry is None:
            raise self._unknown(name)
        for registry in changed:
            registry._notify_watchers()
        return entry.item

    def get(self, name: str) -> T | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.item

    def items(self) -> list[tuple[str, T]]:
        return [(name, entry.item) for name, entry in self._entries.items()]

    def list_after(self, position: int, count: int) -> list[tuple[int, T]]:
        """Up to `count` items past `position`, each with its own: the base of stable cursors.

        Positions start at 1 and only grow. An item keeps its position, so a cursor stays valid after any change.
        """
        later = ((entry.position, entry.item) for entry in self._entries.values() if entry.position > position)
        return list(islice(later, max(count, 0)))

    def notify_watchers(self) -> None:
        """Tell the watchers that items are shown differently, though none was added or removed."""
        with self._lock:
            self.version += 1
        self._notify_watchers()
        for mirror in self._mirrors:
            mirror.target.notify_watchers()

    def mirror(self, target: Registry[T], rename: Rename[T]) -> Callable[[], None]:
        """Show the items in `target` too, now and after each change. Returns the function that ends it.

        `rename` gives an item's name there, and the item under that name; None hides it. An item whose name is taken
        there is refused here as well. What `target` itself makes of a mirrored name stays. Mirrors must not form a
        circle.
        """
        mirror = _Mirror(target, rename)
        changed = list[Registry[T]]()
        with self._lock:
            try:
                for name, entry in self._entries.items():
                    mirror.put_entry(name, entry, changed)
            except UsageError:
                mirror.clear([])
                raise
            self._mirrors = (*self._mirrors, mirror)
        for registry in changed:
            registry._notify_watchers()

        def end() -> None:
            gone = list[Registry[T]]()
            with self._lock:
                self._mirrors = tuple(other for other in self._mirrors if other is not mirror)
                mirror.clear(gone)
            for registry in gone:
                registry._notify_watchers()

        return end

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

    def _put_item(
        self,
        name: str,
        item: T,
        where: str,
        changed: list[Registry[T]],
        *,
        replace: bool = False,
        over: T | None = None,
    ) -> None:
        """`over` is the item that this one follows. If another one has taken the name since, that one stays."""
        with self._lock:
            old = self._entries.get(name)
            if old is not None and not replace and old.item is not over:
                if over is not None:
                    return
                raise self._make_conflict_error(name, old.where, where)
            entry = _Entry(self._last + 1 if old is None else old.position, item, where)
            for index, mirror in enumerate(self._mirrors):
                try:
                    mirror.put_entry(name, entry, changed)
                except UsageError:
                    for done in self._mirrors[:index]:
                        done.restore(name, old, changed)
                    raise
            self._last = max(self._last, entry.position)
            self._publish({**self._entries, name: entry})
        changed.append(self)

    def _remove_item(self, name: str, changed: list[Registry[T]], item: T | None = None) -> _Entry[T] | None:
        """Take out what is registered under a name; with `item`, only if it is that one."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or (item is not None and entry.item is not item):
                return None
            for mirror in self._mirrors:
                mirror.remove_entry(name, changed)
            # Copied whole: choosing one by one takes ten times as long, and a server that leaves may have thousands.
            left = self._entries.copy()
            del left[name]
            self._publish(left)
        changed.append(self)
        return entry

    def _publish(self, entries: dict[str, _Entry[T]]) -> None:
        # In this order: newer items cached under an older version are soon replaced; the reverse would stay wrong.
        self._entries = entries
        self.version += 1

    def _notify_watchers(self) -> None:
        # Outside the lock, so that a watcher may use the registry.
        for changed in self._watchers.values():
            changed()

    def _make_conflict_error(self, name: str, first: str, second: str) -> UsageError:
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
