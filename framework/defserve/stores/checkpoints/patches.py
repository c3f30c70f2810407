"""RFC 6902 patches between JSON values: applied by the `jsonpatch` library, capped. No I/O."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from pydantic_core import from_json, to_json

from defserve.errors import LimitExceeded, Refused
from defserve.stores.checkpoints.diffs import Op
from defserve.wire.jsonvalue import excess, is_array, is_object

MAX_OPS: Final = 1_000
MAX_DEPTH: Final = 64
MAX_BYTES: Final = 1024 * 1024
_UNBOUNDED: Final = 1 << 62


class BadPatch(Refused, ValueError):
    """A patch that is malformed, or does not fit the value."""

    error_type = "bad_patch"


def is_shorter(ops: list[Op], text: bytes) -> bool:
    """Whether a patch is shorter on the wire than the text of the value, and short enough to be applied."""
    return len(ops) <= MAX_OPS and len(to_json(ops)) < len(text)


def apply_patch(
    value: Any, ops: Any, *, max_ops: int = MAX_OPS, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES
) -> Any:
    """A new value: `value` with an untrusted patch applied. Neither argument is changed.

    Raises BadPatch if `ops` is not a patch, does not fit or fails a `test`, and LimitExceeded if it has too many
    operations, or if a value is too deep or too large, even in between.
    """
    if not is_array(ops):
        raise BadPatch("a patch is an array of operations")
    if len(ops) > max_ops:
        raise _too_much("operations", max_ops)
    with _refusing():
        held, steps = to_json(value), to_json(ops)
        budget = _Budget(max_depth, max_bytes, len(held), len(steps))
        result, steps = _read(held), _read(steps)
        for op in steps:
            budget.allow(op, result)
            result = _applied(result, [op])
        if len(to_json(result)) > max_bytes:
            raise _too_much("bytes", max_bytes)
        return result


def _read(text: bytes) -> Any:
    """What was written here. Raises BadPatch for numbers that are too large for a float: they could not be stored."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        raise BadPatch("the patch cannot be applied: a number is too large, or is none") from None


def replay(value: Any, ops: list[Op]) -> Any:
    """Apply a patch that was made here. Changes `value` itself. Raises BadPatch if it does not fit."""
    with _refusing():
        return _applied(value, ops)


class _Budget:
    """How much a patch may still add. Removing does not give any back, so all steps together stay cheap."""

    def __init__(self, depth: int, limit: int, held: int, patch: int) -> None:
        self._depth, self._limit, self._left = depth, limit, 2 * limit - held
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
        f"the patch exceeds the limit of {limit} {what}", data={"limit": f"patch_{what}", "max": limit}
    )
