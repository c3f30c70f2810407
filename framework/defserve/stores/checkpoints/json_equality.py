"""When two JSON values are equal: 1 and 1.0 are, true and 1 are not; the order of names does not matter. No I/O.

Python compares large values quickly, but treats true as 1. So there are two ways to compare: one if any of the values
has booleans, and a faster one otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, count, islice
from operator import ne
from typing import Any

from defserve.wire.jsonvalue import is_object

Comparison = Callable[[Any, Any], bool]


def are_different(one: Any, other: Any) -> bool:
    """Whether two values are not equal."""
    return one is not other and (one != other or not _alike(one, other))


def comparison(*, has_booleans: bool) -> Comparison:
    """How to compare values that may have booleans, or that surely have none."""
    return are_different if has_booleans else ne


def may_have_booleans(text: bytes) -> bool:
    return b"true" in text or b"false" in text


def common_ends(before: Sequence[Any], after: Sequence[Any], differ: Comparison) -> tuple[int, int]:
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
