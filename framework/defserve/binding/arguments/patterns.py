"""Which regular expressions can backtrack for ever. Over-cautious on purpose: a refused pattern can be rewritten."""

from __future__ import annotations

import re
from typing import Any

# The parse tree is the only exact view of a pattern; the module has had this place since Python 3.11.
_parser: Any = re._parser  # type: ignore[attr-defined]  # pyright: ignore


def backtracks(pattern: str) -> bool:
    """Whether an unbounded repetition holds another, or alternatives that may begin alike."""
    try:
        return _within(_parser.parse(pattern), repeated=False)
    except (re.error, RecursionError, OverflowError):
        return True


def _within(tree: Any, repeated: bool) -> bool:
    for operation, argument in tree:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, inner = argument
            varies = high != low
            if repeated and varies:
                return True
            unbounded = varies and high > _FEW
            if _within(inner, repeated or unbounded):
                return True
        elif name == "BRANCH":
            branches = argument[1]
            if repeated and not _begin_apart(branches):
                return True
            if any(_within(branch, repeated) for branch in branches):
                return True
        elif name == "SUBPATTERN":
            if _within(argument[3], repeated):
                return True
        elif name in ("ASSERT", "ASSERT_NOT"):
            if _within(argument[1], repeated):
                return True
        elif name == "ATOMIC_GROUP":
            if _within(argument, repeated):
                return True
        elif name == "GROUPREF_EXISTS":
            return True
    return False


_FEW = 8


def _begin_apart(branches: list[Any]) -> bool:
    firsts = [branch[0] if len(branch) else None for branch in branches]
    letters = [first[1] for first in firsts if first is not None and str(first[0]) == "LITERAL"]
    return len(letters) == len(branches) and len(set(letters)) == len(letters)
