"""A short text that a regular expression matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

from defserve.binding.arguments.patterns import PatternProblem, compile_pattern, search_pattern

# The standard library's own parser of patterns, which has no public name.
kinds: Final[Any] = import_module("re._constants")
parser: Final[Any] = import_module("re._parser")

# The characters to choose from if the pattern allows several, in this order.
PLAIN: Final = "a1A0-_ .:/@bcdexyzBCXYZ23456789,+#\t\n"
MOST: Final = 64
MAX_MADE: Final = 2_000
"""Characters of a text, and of each part of it."""


class Unmatched(ValueError):
    """No text was found for a pattern."""


def matching(pattern: str, at_least: int = 0) -> str:
    """A text of at least so many characters in which `pattern` is found. Raises Unmatched."""
    try:
        # A server that is mounted here may have written it: what no text of a caller meets is not parsed either.
        compile_pattern(pattern)
        tree: Any = parser.parse(pattern)
        for repeats in range(min(at_least, MOST) + 1):
            text = _all(tree, repeats)
            if len(text) >= at_least and search_pattern(pattern, text):
                return text
    except (PatternProblem, re.error, RecursionError, OverflowError, KeyError, StopIteration, ValueError) as error:
        raise Unmatched(pattern) from error
    raise Unmatched(pattern)


def _all(items: Any, repeats: int) -> str:
    text = ""
    for kind, value in items:
        text += PARTS[kind](value, repeats)
        _refuse_long(len(text))
    return text


def _refuse_long(length: int) -> None:
    if length > MAX_MADE:
        raise Unmatched(f"a text of {length} characters")


def _repeated(value: Any, repeats: int) -> str:
    least, most, items = value
    text, times = _all(items, repeats), min(max(least, repeats), int(most), max(least, MOST))
    _refuse_long(len(text) * times)
    return text * times


def _one_of(items: Any, repeats: int) -> str:
    wanted = not any(kind is kinds.NEGATE for kind, _ in items)
    return next(letter for letter in _candidates(items) if any(_fits(k, v, letter) for k, v in items) is wanted)


def _candidates(items: Any) -> Iterator[str]:
    yield from PLAIN
    for kind, value in items:
        if kind is kinds.LITERAL:
            yield chr(value)
        elif kind is kinds.RANGE:
            yield chr(value[0])


def _fits(kind: Any, value: Any, letter: str) -> bool:
    if kind is kinds.LITERAL:
        return ord(letter) == value
    if kind is kinds.RANGE:
        return value[0] <= ord(letter) <= value[1]
    return kind is kinds.CATEGORY and re.fullmatch(CATEGORIES[value], letter, re.ASCII) is not None


CATEGORIES: Final[dict[Any, str]] = {
    kinds.CATEGORY_DIGIT: r"\d",
    kinds.CATEGORY_NOT_DIGIT: r"\D",
    kinds.CATEGORY_WORD: r"\w",
    kinds.CATEGORY_NOT_WORD: r"\W",
    kinds.CATEGORY_SPACE: r"\s",
    kinds.CATEGORY_NOT_SPACE: r"\S",
}
# Assertions and references to groups are missing here: patterns with them get no example.
PARTS: Final[dict[Any, Callable[[Any, int], str]]] = {
    kinds.LITERAL: lambda value, repeats: chr(value),
    kinds.NOT_LITERAL: lambda value, repeats: next(letter for letter in PLAIN if ord(letter) != value),
    kinds.ANY: lambda value, repeats: "a",
    kinds.AT: lambda value, repeats: "",
    kinds.IN: _one_of,
    kinds.CATEGORY: lambda value, repeats: _one_of([(kinds.CATEGORY, value)], repeats),
    kinds.BRANCH: lambda value, repeats: _all(value[1][0], repeats),
    kinds.SUBPATTERN: lambda value, repeats: _all(value[3], repeats),
    kinds.MAX_REPEAT: _repeated,
    kinds.MIN_REPEAT: _repeated,
    kinds.POSSESSIVE_REPEAT: _repeated,
    kinds.ATOMIC_GROUP: _all,
}
