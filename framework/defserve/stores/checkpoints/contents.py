"""The content of a checkpoint, in canonical form. A long content shares the unchanged parts of the one before it.

So a small change to a large content costs little more than encoding it.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from pydantic_core import from_json, to_json

from defserve.stores.checkpoints.diffs import Op, diff, merge
from defserve.stores.checkpoints.ids import canonical
from defserve.stores.checkpoints.json_equality import may_have_booleans
from defserve.wire.jsonvalue import is_object

SHORT: Final = 4_096
"""Encoding a text of up to this many bytes is faster than comparing it with another."""

_UNREAD: Final = object()
_PLAIN: Final = frozenset({str, int, bool, type(None)})


class ContentTooDeep(ValueError):
    """Arrays and objects are nested more deeply than allowed."""


class CheckpointContent:
    """A JSON value as canonical text. The value is decoded when it is first asked for, and must not be changed."""

    __slots__ = ("encoded", "_value", "_has_booleans", "__weakref__")

    def __init__(self, encoded: bytes, value: Any = _UNREAD, may_have_booleans: bool | None = None) -> None:
        self.encoded, self._value, self._has_booleans = encoded, value, may_have_booleans

    @classmethod
    def of(cls, value: Any) -> CheckpointContent:
        """Raises ValueError if it is not a JSON value."""
        return cls(canonical(value))

    @property
    def value(self) -> Any:
        if self._value is _UNREAD:
            self._value = from_json(self.encoded)
        return self._value

    @property
    def may_have_booleans(self) -> bool:
        if self._has_booleans is None:
            self._has_booleans = may_have_booleans(self.encoded)
        return self._has_booleans

    def copy(self) -> Any:
        return from_json(self.encoded)


class CheckpointDraft:
    """A new content, and the one before it. If there was none before, there is no patch."""

    __slots__ = ("content", "_before", "_ops")

    def __init__(
        self, content: CheckpointContent, before: CheckpointContent | None, ops: list[Op] | None = None
    ) -> None:
        self.content, self._before, self._ops = content, before, ops

    @property
    def is_same(self) -> bool:
        """Whether nothing has changed."""
        return self.content is self._before

    @property
    def ops(self) -> list[Op] | None:
        if self._ops is None and self._before is not None:
            before, after = self._before, self.content
            has_booleans = before.may_have_booleans or after.may_have_booleans
            self._ops = diff(before.value, after.value, has_booleans=has_booleans)
        return self._ops


def draft(made: Any, before: CheckpointContent | None, depth: int) -> CheckpointDraft:
    """`made` is a JSON value or, in bytes, the text of one. It is not changed and not kept.

    Raises ValueError if it is not a JSON value, and ContentTooDeep if more than `depth` containers are nested.
    """
    if isinstance(made, bytes):
        if before is None or len(before.encoded) <= SHORT:
            return _encoded_anew(from_json(made), before, depth)
        return _merged(from_json(made), may_have_booleans(made), before, depth)
    if before is None:
        return _encoded_anew(made, None, depth)
    return _merged(made, may_have_booleans(to_json(made)), before, depth)


def _encoded_anew(value: Any, before: CheckpointContent | None, depth: int) -> CheckpointDraft:
    """For a short content, or the first one."""
    encoded = canonical(value)
    if encoded.count(b"{") + encoded.count(b"[") > depth:
        _bounded(value, depth)
    if before is not None and encoded == before.encoded:
        return CheckpointDraft(before, before, [])
    return CheckpointDraft(CheckpointContent(encoded), before)


def _merged(value: Any, has_booleans: bool, before: CheckpointContent, depth: int) -> CheckpointDraft:
    """For a long content: it shares all unchanged parts with the one before it."""
    try:
        value, ops = merge(
            before.value,
            value,
            lambda new, level: _fresh(new, depth - level),
            has_booleans=before.may_have_booleans or has_booleans,
        )
    except (TypeError, AttributeError) as error:  # a name that is not text
        raise ValueError(f"not a JSON value: {error}") from None
    return (
        CheckpointDraft(CheckpointContent(_text(value), value, has_booleans), before, ops)
        if ops
        else CheckpointDraft(before, before, ops)
    )


def _fresh(value: Any, depth: int) -> Any:
    """A copy of a value, in canonical form."""
    if type(value) in _PLAIN:
        return value
    if type(value) is float and isfinite(value):
        return int(value) if value.is_integer() else value
    return from_json(canonical(_bounded(value, depth)))


def _bounded(value: Any, depth: int) -> Any:
    level: list[Any] = [value] if _holds(value) else []
    for _ in range(depth):
        if not level:
            return value
        level = [item for held in level for item in (held.values() if is_object(held) else held) if _holds(item)]
    if level:
        raise ContentTooDeep
    return value


def _holds(value: Any) -> bool:
    """Whether it is encoded as an object or an array."""
    return isinstance(value, dict | list | tuple)


def _text(value: Any) -> bytes:
    """The canonical text of a value in canonical form."""
    text = to_json(value)
    # Libraries write tiny numbers in different ways. Searching for one character is fastest, so it comes first.
    has_tiny = (b"-" in text and b"e-" in text) or (b"." in text and b"0.0000" in text)
    return canonical(value) if has_tiny else text
