"""The difference between two JSON values, as an RFC 6902 patch, and the later value built from the earlier. No I/O.

In arrays, the common beginning and end are skipped, and the items between them are compared one by one. That gives
small patches for appending, inserting, deleting and editing in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from defserve.stores.checkpoints.json_equality import common_ends, comparison
from defserve.wire.jsonvalue import is_object

Op = dict[str, Any]
Fresh = Callable[[Any, int], Any]
"""Copies a new value; the number is how many containers it is nested in."""

_ABSENT: Final = object()


def diff(before: Any, after: Any, *, has_booleans: bool = True) -> list[Op]:
    """The operations (add, remove, replace) that turn `before` into `after`; none if they are equal.

    Their values are taken from `after`, not copied. `has_booleans` as for `merge`.
    """
    return merge(before, after, lambda value, _: value, has_booleans=has_booleans)[1]


def merge(before: Any, after: Any, fresh: Fresh, *, has_booleans: bool = True) -> tuple[Any, list[Op]]:
    """`after`, built from the unchanged parts of `before` and from `fresh` copies of the others; and the patch.

    Names are sorted. Without booleans in either value (`has_booleans` false), comparing is faster.
    """
    walk = _Walk(fresh, has_booleans)
    return walk.value("", before, after, 0), walk.ops


class _Walk:
    """Walks through two values at once. Each step returns the later value and records what has changed."""

    __slots__ = ("ops", "_fresh", "_differ")

    def __init__(self, fresh: Fresh, has_booleans: bool) -> None:
        self.ops: list[Op] = []
        self._fresh, self._differ = fresh, comparison(has_booleans=has_booleans)

    def value(self, path: str, before: Any, after: Any, level: int) -> Any:
        return self._changed(path, before, after, level) if self._differ(before, after) else before

    def _changed(self, path: str, before: Any, after: Any, level: int) -> Any:
        kind = before.__class__  # a stored value has only the types of JSON
        if kind is dict and is_object(after):
            return self._object(path, before, after, level + 1)
        if kind is list and isinstance(after, list):
            return self._array(path, before, after, level + 1)  # pyright: ignore[reportUnknownArgumentType]
        made = self._fresh(after, level)
        self.ops.append({"op": "replace", "path": path, "value": made})
        return made

    def _object(self, path: str, before: dict[str, Any], after: dict[str, Any], level: int) -> dict[str, Any]:
        if before.keys() == after.keys():
            return self._edited(path, before, after, level)
        for name in before:
            if name not in after:
                self.ops.append({"op": "remove", "path": _below(path, name)})
        merged = dict(sorted(after.items()))
        for name, item in merged.items():
            mate = before.get(name, _ABSENT)
            if mate is _ABSENT:
                merged[name] = made = self._fresh(item, level)
                self.ops.append({"op": "add", "path": _below(path, name), "value": made})
            elif self._differ(mate, item):
                merged[name] = self._changed(_below(path, name), mate, item, level)
            else:
                merged[name] = mate
        return merged

    def _edited(self, path: str, before: dict[str, Any], after: dict[str, Any], level: int) -> dict[str, Any]:
        """An object with the same names: usually few of its values have changed."""
        merged, differ = before.copy(), self._differ
        for name, mate in before.items():
            if differ(mate, item := after[name]):
                merged[name] = self._changed(_below(path, name), mate, item, level)
        return merged

    def _array(self, path: str, before: list[Any], after: list[Any], level: int) -> list[Any]:
        start, end = common_ends(before, after, self._differ)
        at = min(len(before), len(after)) - end
        edited = [self.value(f"{path}/{place}", before[place], after[place], level) for place in range(start, at)]
        for _ in range(at, len(before) - end):
            self.ops.append({"op": "remove", "path": f"{path}/{at}"})
        new = after[at : len(after) - end]
        added: list[Any] = self._fresh(new, level - 1) if new else new
        for place, item in enumerate(added, at):
            # §4.1: "-" is the place after the last one.
            self.ops.append({"op": "add", "path": f"{path}/{place if end else '-'}", "value": item})
        return [*before[:start], *edited, *added, *before[len(before) - end :]]


def _below(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
