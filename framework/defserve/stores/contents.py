"""The content of a checkpoint, in canonical form. One that was made of another shares with it all that is the same.

So a small change of a large content costs little more than writing it down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from defserve.stores.checkpoint_ids import canonical
from defserve.stores.diffs import Op, merge
from defserve.stores.sameness import may_have_booleans

_PLAIN: Final = frozenset({str, int, bool, type(None)})
_ITEMS: Final[dict[type, Callable[[Any], Iterable[Any]]]] = {dict: dict[str, Any].values, list: iter}


class TooDeep(ValueError):
    """Arrays and objects in one another, more than there may be."""


class Content:
    """A JSON value, names in order, which nobody changes; and its canonical text."""

    __slots__ = ("value", "encoded", "_has_booleans", "__weakref__")

    def __init__(self, value: Any, encoded: bytes, may_have_booleans: bool | None = None) -> None:
        self.value, self.encoded, self._has_booleans = value, encoded, may_have_booleans

    @classmethod
    def of(cls, value: Any) -> Content:
        """Raises ValueError for what is no JSON value."""
        encoded = canonical(value)
        return cls(from_json(encoded), encoded)

    @property
    def may_have_booleans(self) -> bool:
        if self._has_booleans is None:
            self._has_booleans = may_have_booleans(self.encoded)
        return self._has_booleans

    def copy(self) -> Any:
        return from_json(self.encoded)


class Draft(NamedTuple):
    """What was made of a content, or of nothing; then there is no patch from the one to the other."""

    content: Content
    ops: list[Op] | None


def draft(made: Any, before: Content | None, depth: int) -> Draft:
    """`made` is a JSON value or, in bytes, the text of one; it stays its maker's.

    Raises ValueError for what is no JSON value, and TooDeep for more than `depth` containers in one another.
    """
    text, value = (made, from_json(made)) if isinstance(made, bytes) else (None, made)
    if before is None:
        return Draft(Content.of(_bounded(value, depth)), None)
    has_booleans = may_have_booleans(to_json(made) if text is None else text)
    try:
        value, ops = merge(
            before.value,
            value,
            lambda new, level: _fresh(new, depth - level),
            has_booleans=before.may_have_booleans or has_booleans,
        )
    except (TypeError, AttributeError) as error:  # a name that is no text
        raise ValueError(f"not a JSON value: {error}") from None
    return Draft(Content(value, _text(value), has_booleans) if ops else before, ops)


def _fresh(value: Any, depth: int) -> Any:
    """A value in canonical form that nobody else has."""
    if type(value) in _PLAIN:
        return value
    if type(value) is float and isfinite(value):
        return int(value) if value.is_integer() else value
    return Content.of(_bounded(value, depth)).value


def _bounded(value: Any, depth: int) -> Any:
    level: list[Any] = [value] if type(value) in _ITEMS else []
    for _ in range(depth):
        if not level:
            return value
        level = [item for held in level for item in _ITEMS[type(held)](held) if type(item) in _ITEMS]
    if level:
        raise TooDeep
    return value


def _text(value: Any) -> bytes:
    """The canonical text of a value in canonical form."""
    text = to_json(value)
    # Libraries write tiny numbers in different ways. To look for a single sign is the quickest.
    has_tiny = (b"-" in text and b"e-" in text) or (b"." in text and b"0.0000" in text)
    return canonical(value) if has_tiny else text
