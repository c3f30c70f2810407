"""Which regular expressions can backtrack for ever, and which pydantic cannot use.

The first is strict on purpose: a refused pattern can be rewritten.
"""

from __future__ import annotations

import re
from typing import Any

# Only the parse tree shows exactly what a pattern does. The module has this name since Python 3.11.
_parser: Any = re._parser  # type: ignore[attr-defined]  # pyright: ignore


def backtracks(pattern: str) -> bool:
    """Whether an unbounded repetition holds another, or alternatives that may begin with the same character."""
    try:
        return _within(_parser.parse(pattern), repeated=False)
    except (re.error, RecursionError, OverflowError):
        return True


def _within(tree: Any, repeated: bool) -> bool:
    return any(_can_explode(str(operation), argument, repeated) for operation, argument in tree)


def _can_explode(name: str, argument: Any, repeated: bool) -> bool:
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, inner = argument
        return (repeated and high != low) or _within(inner, repeated or (high != low and high > _FEW))
    if name == "BRANCH":
        branches = argument[1]
        return (repeated and not _begin_apart(branches)) or any(_within(branch, repeated) for branch in branches)
    if name == "SUBPATTERN":
        return _within(argument[3], repeated)
    if name in ("ASSERT", "ASSERT_NOT"):
        return _within(argument[1], repeated)
    if name == "ATOMIC_GROUP":
        return _within(argument, repeated)
    return name == "GROUPREF_EXISTS"


_FEW = 8


def _begin_apart(branches: list[Any]) -> bool:
    firsts = [branch[0] if len(branch) else None for branch in branches]
    letters = [first[1] for first in firsts if first is not None and str(first[0]) == "LITERAL"]
    return len(letters) == len(branches) and len(set(letters)) == len(letters)


# What pydantic says: the pattern, a line below it that points at the place, and the reason.
_REFUSAL = re.compile(r"regex parse error:\n    (?P<pattern>.*)\n *\^+\nerror: (?P<reason>.*)")


def impossible(said: str) -> tuple[str, str] | None:
    """The problem and its fix, if pydantic's error is about a pattern. Its engine knows less than Python's."""
    if "regex parse error" not in said:
        return None
    found = _REFUSAL.search(said)
    if found is None:  # a pattern of several lines
        return "its pattern cannot be used", "correct it, or give pattern=re.compile(…), which Python matches"
    pattern, reason = found["pattern"], found["reason"]
    try:
        re.compile(pattern)
    except re.error:
        fix = "correct the pattern"
    else:
        quoted = f'r"{pattern}"' if '"' not in pattern else repr(pattern)
        fix = f"let Python match it: pattern=re.compile({quoted}), or check it in the function"
    return f"its pattern {pattern!r} cannot be used: {reason}", fix
