"""Differences between JSON values, as RFC 6902 patches: found, applied, and when two values are equal. No I/O.

In arrays, the common beginning and end are skipped, and the items between them are compared one by one. That gives
small patches for appending, inserting, deleting and editing in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import compress, count, islice
from operator import ne
from typing import Any, Final

from pydantic_core import from_json, to_json

from defserve.core.json_values import find_limit_violation, is_array, is_object
from defserve.errors import LimitExceeded, Refused

PatchOperation = dict[str, Any]
Fresh = Callable[[Any, int], Any]
"""Copies a new value; the number is how many containers it is nested in."""

_ABSENT: Final = object()


def diff_json_values(before: Any, after: Any, *, has_booleans: bool = True) -> list[PatchOperation]:
    """The operations (add, remove, replace) that turn `before` into `after`; none if they are equal.

    Their values are taken from `after`, not copied. `has_booleans` as for `reuse_unchanged_parts`.
    """
    return reuse_unchanged_parts(before, after, lambda value, _: value, has_booleans=has_booleans)[1]


def reuse_unchanged_parts(
    before: Any, after: Any, fresh: Fresh, *, has_booleans: bool = True
) -> tuple[Any, list[PatchOperation]]:
    """`after`, built from the unchanged parts of `before` and from `fresh` copies of the others; and the patch.

    Names are sorted. Without booleans in either value (`has_booleans` false), comparing is faster.
    """
    walk = _Walk(fresh, has_booleans)
    return walk.value("", before, after, 0), walk.ops


class _Walk:
    """Walks through two values at once. Each step returns the later value and records what has changed."""

    __slots__ = ("ops", "_fresh", "_differ")

    def __init__(self, fresh: Fresh, has_booleans: bool) -> None:
        self.ops: list[PatchOperation] = []
        self._fresh, self._differ = fresh, comparison(has_booleans=has_booleans)

    def value(self, path: str, before: Any, after: Any, level: int) -> Any:
        return self._merge_value(path, before, after, level) if self._differ(before, after) else before

    def _merge_value(self, path: str, before: Any, after: Any, level: int) -> Any:
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
            return self._merge_same_names(path, before, after, level)
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
                merged[name] = self._merge_value(_below(path, name), mate, item, level)
            else:
                merged[name] = mate
        return merged

    def _merge_same_names(self, path: str, before: dict[str, Any], after: dict[str, Any], level: int) -> dict[str, Any]:
        """An object with the same names: usually few of its values have changed."""
        merged, differ = before.copy(), self._differ
        for name, mate in before.items():
            if differ(mate, item := after[name]):
                merged[name] = self._merge_value(_below(path, name), mate, item, level)
        return merged

    def _array(self, path: str, before: list[Any], after: list[Any], level: int) -> list[Any]:
        start, end = count_common_ends(before, after, self._differ)
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


# -- RFC 6902 patches between JSON values: applied by the `jsonpatch` library, capped. No I/O.


MAX_PATCH_OPERATIONS: Final = 1_000
MAX_PATCHED_DEPTH: Final = 64
MAX_PATCHED_BYTES: Final = 1024 * 1024
_UNBOUNDED: Final = 1 << 62
_OPERATIONS: Final = ("add", "remove", "replace", "move", "copy", "test")


class BadPatch(Refused, ValueError):
    """A patch that is malformed, or does not fit the value."""

    error_type = "bad_patch"


def is_patch_shorter(ops: list[PatchOperation], text: bytes) -> bool:
    """Whether a patch is shorter on the wire than the text of the value, and short enough to be applied."""
    return len(ops) <= MAX_PATCH_OPERATIONS and len(to_json(ops)) < len(text)


def apply_patch_to_text(
    held: bytes,
    ops: Any,
    *,
    max_ops: int = MAX_PATCH_OPERATIONS,
    max_depth: int = MAX_PATCHED_DEPTH,
    max_bytes: int = MAX_PATCHED_BYTES,
) -> Any:
    """A new value: one that is kept as JSON, with an untrusted patch applied. `ops` is not changed.

    Raises BadPatch if `ops` is not a patch, does not fit or fails a `test`, and LimitExceeded if it has too many
    operations, moves too much, or if a value is too deep or too large, even in between: one that is too large to be
    patched is not even read. It can take a second of processor time: do not apply patches of peers on a loop.
    """
    if not is_array(ops):
        raise BadPatch("a patch is an array of operations")
    if len(ops) > max_ops:
        raise _too_much("operations", max_ops)
    with _refusing():
        steps = to_json(ops)
        budget = _Budget(max_depth, max_bytes, len(held), len(steps))
        result, steps = _parse_json(held), _parse_json(steps)
        for op in steps:
            budget.allow(op, result)
            result = _apply_ops(result, [op])
        if len(to_json(result)) > max_bytes:
            raise _too_much("bytes", max_bytes)
        return result


def _parse_json(text: bytes) -> Any:
    """What was written here. Raises BadPatch for numbers that are too large for a float: they could not be stored."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        raise BadPatch("the patch cannot be applied: a number is too large, or is none") from None


def apply_trusted_patch_in_place(value: Any, ops: list[PatchOperation]) -> Any:
    """Apply a patch that was made here. Changes `value` itself. Raises BadPatch if it does not fit."""
    with _refusing():
        return _apply_ops(value, ops)


class _Budget:
    """How much a patch may still add and move. Removing does not give any back, so all steps together stay cheap."""

    def __init__(self, depth: int, limit: int, held: int, patch: int) -> None:
        self._depth, self._limit = depth, limit
        self._added, self._moved = 2 * limit - held, 2 * limit
        if patch > limit or self._added < 0:
            raise _too_much("bytes", limit)

    def allow(self, op: Any, value: Any) -> None:
        """Raises BadPatch for an unknown operation, LimitExceeded if it would make the value too deep or too large."""
        if not is_object(op) or not isinstance(path := op.get("path"), str):
            raise BadPatch("an operation is an object with op and path")
        if (kind := op.get("op")) not in _OPERATIONS:
            raise BadPatch(f"an op is one of {', '.join(_OPERATIONS)}")
        levels = path.count("/")
        if levels > self._depth:
            raise _too_much("depth", self._depth)
        named = _source(op, value) if kind in ("copy", "move") else op.get("value")
        size = len(to_json(named))
        if kind == "move":  # adds nothing, but is walked through for its depth
            self._moved -= size
        else:
            self._added -= size
        self._added -= len(path)
        if self._added < 0:
            raise _too_much("bytes", self._limit)
        if self._moved < 0:
            raise _too_much("bytes moved", 2 * self._limit)
        if find_limit_violation(named, self._depth - levels, _UNBOUNDED):
            raise _too_much("depth", self._depth)


def _source(op: PatchOperation, value: Any) -> Any:
    from jsonpointer import JsonPointer

    return JsonPointer(str(op.get("from"))).resolve(value)


def _apply_ops(value: Any, ops: list[Any]) -> Any:
    from jsonpatch import JsonPatch  # pyright: ignore[reportMissingTypeStubs]

    return JsonPatch(ops).apply(value, in_place=True)  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def _refusing() -> Generator[None]:
    """A hostile patch can make the libraries raise anything. This turns it into BadPatch."""
    try:
        yield
    except Refused:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        # The libraries' own exceptions derive from these, or directly from Exception (below).
        raise BadPatch(f"the patch cannot be applied: {_reason(error)}") from None
    except RecursionError:
        raise BadPatch("the patch cannot be applied: it is nested too deeply") from None
    except Exception as error:
        if type(error).__module__ not in ("jsonpatch", "jsonpointer"):
            raise
        raise BadPatch(f"the patch cannot be applied: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _too_much(what: str, limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"the patch exceeds the limit of {limit} {what}",
        data={"limit": f"patch_{what.replace(' ', '_')}", "max": limit},
    )


# -- When two JSON values are equal: 1 and 1.0 are, true and 1 are not; the order of names does not matter. No I/O.
#
# Python compares large values quickly, but treats true as 1. So there are two ways to compare: one if any of the values
# has booleans, and a faster one otherwise.


Comparison = Callable[[Any, Any], bool]


def are_different(one: Any, other: Any) -> bool:
    """Whether two values are not equal."""
    return one is not other and (one != other or not _alike(one, other))


def comparison(*, has_booleans: bool) -> Comparison:
    """How to compare values that may have booleans, or that surely have none."""
    return are_different if has_booleans else ne


def may_have_booleans(text: bytes) -> bool:
    return b"true" in text or b"false" in text


def count_common_ends(before: Sequence[Any], after: Sequence[Any], differ: Comparison) -> tuple[int, int]:
    """How many items are equal at the beginning of two arrays, and how many of the rest at their end."""
    both = min(len(before), len(after))
    start = _common(before, after, both, differ)
    return start, _common(reversed(before), reversed(after), both - start, differ)


def _common(one: Any, other: Any, most: int, differ: Comparison) -> int:
    return next(compress(count(), islice(map(differ, one, other), most)), most)


def _alike(one: Any, other: Any) -> bool:
    """Whether two equal values have their booleans in the same places."""
    if is_object(one):
        # This runs for every object in a large value: so it is one loop, and skips what cannot be a boolean.
        for name, item in one.items():
            if type(item) is not str and item is not (mate := other[name]) and not _alike(item, mate):
                return False
        return True
    if isinstance(one, list | tuple):
        return all(map(_alike, one, other))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(one, bool) == isinstance(other, bool)
