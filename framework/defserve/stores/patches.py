"""RFC 6902 patches between JSON values: made by our own diff, applied by the `jsonpatch` library, capped. No I/O.

JSON has one kind of number, so 1 and 1.0 are the same here; true and 1 are not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from pydantic_core import from_json, to_json

from defserve.errors import LimitExceeded, Refused
from defserve.jsonvalue import excess, is_array, is_object

MAX_OPS: Final = 1_000
MAX_DEPTH: Final = 64
MAX_BYTES: Final = 1024 * 1024

Op = dict[str, Any]
Same = Callable[[Any, Any], bool]

_UNBOUNDED: Final = 1 << 62


class BadPatch(Refused, ValueError):
    """A patch that is none, or does not fit the value it is for."""

    error_type = "bad_patch"


def diff(before: Any, after: Any, *, has_booleans: bool = True) -> list[Op]:
    """The operations (add, remove, replace) that make `after` of `before`; none if they are the same.

    Their values are those of `after`, not copies. In arrays the common beginning and end are left out, and what is
    between is compared place by place: good for appending, inserting, deleting and editing in one place. Who knows that
    there are no booleans in either is spared a closer look: `has_booleans`.
    """
    ops: list[Op] = []
    _diff("", before, after, ops, _same if has_booleans else _equal)
    return ops


def smaller(ops: list[Op], data: Any) -> bool:
    """Whether the patch is shorter on the wire than the value itself, and not too long to be applied."""
    return len(ops) <= MAX_OPS and len(to_json(ops)) < len(to_json(data))


def apply(
    value: Any, ops: Any, *, max_ops: int = MAX_OPS, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES
) -> Any:
    """A new value: `value` with a patch from anywhere applied. Neither argument is changed.

    Raises BadPatch if `ops` is no patch, does not fit or fails a `test`, and LimitExceeded if it has too many
    operations, or makes too deep or too large a value, even in between.
    """
    if not is_array(ops):
        raise BadPatch("a patch is an array of operations")
    if len(ops) > max_ops:
        raise _too_much("operations", max_ops)
    with _refusing():
        held, steps = to_json(value), to_json(ops)
        budget = _Budget(max_depth, max_bytes, len(held), len(steps))
        result, steps = from_json(held), from_json(steps)
        for op in steps:
            budget.allow(op, result)
            result = _applied(result, [op])
        if len(to_json(result)) > max_bytes:
            raise _too_much("bytes", max_bytes)
        return result


def replay(value: Any, ops: list[Op]) -> Any:
    """`value`, itself changed, after a patch of our own making. Raises BadPatch if it does not fit."""
    with _refusing():
        return _applied(value, ops)


def _diff(path: str, before: Any, after: Any, ops: list[Op], same: Same) -> None:
    if same(before, after):
        return
    if is_object(before) and is_object(after):
        _diff_objects(path, before, after, ops, same)
    elif isinstance(before, list) and isinstance(after, list):
        _diff_arrays(path, before, after, ops, same)  # pyright: ignore[reportUnknownArgumentType]
    else:
        ops.append({"op": "replace", "path": path, "value": after})


def _diff_objects(path: str, before: dict[str, Any], after: dict[str, Any], ops: list[Op], same: Same) -> None:
    for name, value in before.items():
        if name in after:
            _diff(_below(path, name), value, after[name], ops, same)
        else:
            ops.append({"op": "remove", "path": _below(path, name)})
    for name, value in after.items():
        if name not in before:
            ops.append({"op": "add", "path": _below(path, name), "value": value})


def _diff_arrays(path: str, before: list[Any], after: list[Any], ops: list[Op], same: Same) -> None:
    both = min(len(before), len(after))
    start = end = 0
    while start < both and same(before[start], after[start]):
        start += 1
    while end < both - start and same(before[-1 - end], after[-1 - end]):
        end += 1
    for at in range(start, both - end):
        _diff(f"{path}/{at}", before[at], after[at], ops, same)
    at = both - end
    for _ in range(at, len(before) - end):
        ops.append({"op": "remove", "path": f"{path}/{at}"})
    for place in range(at, len(after) - end):
        # §4.1: "-" is the place after the last one.
        ops.append({"op": "add", "path": f"{path}/{place if end else '-'}", "value": after[place]})


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict | list):
        # Python calls 1 and True equal; their texts tell them apart as fast as it is told.
        return one is other or (one == other and to_json(one) == to_json(other))
    return one == other and (one is True or one is False) == (other is True or other is False)


def _equal(one: Any, other: Any) -> bool:
    """The same, where there are no booleans."""
    return one is other or one == other


def _below(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"


class _Budget:
    """What a patch may still add. Removing gives nothing back, so that all its steps together stay cheap."""

    def __init__(self, depth: int, limit: int, held: int, patch: int) -> None:
        self._depth, self._limit = depth, limit
        self._left = 2 * limit - held
        if patch > limit:
            raise _too_much("bytes", limit)

    def allow(self, op: Any, value: Any) -> None:
        """Raises LimitExceeded if this step would make the value too deep or too large."""
        if not is_object(op) or not isinstance(path := op.get("path"), str):
            raise BadPatch("an operation is an object with op and path")
        if op.get("op") in ("copy", "move"):
            from jsonpointer import JsonPointer

            added = JsonPointer(str(op.get("from"))).resolve(value)
        else:
            added = op.get("value")
        if path.count("/") > self._depth or excess(added, self._depth - path.count("/"), _UNBOUNDED):
            raise _too_much("depth", self._depth)
        if op.get("op") != "move":
            self._left -= len(to_json(added)) + len(path)
        if self._left < 0:
            raise _too_much("bytes", self._limit)


def _applied(value: Any, ops: list[Any]) -> Any:
    from jsonpatch import JsonPatch  # pyright: ignore[reportMissingTypeStubs]

    return JsonPatch(ops).apply(value, in_place=True)  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def _refusing() -> Generator[None]:
    """Whatever a hostile patch makes the libraries raise, as BadPatch."""
    try:
        yield
    except Refused:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        # The libraries' own exceptions are among these, or below Exception alone.
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
        f"the patch exceeds the limit of {limit} {what}", data={"limit": f"patch_{what}", "max": limit}
    )
