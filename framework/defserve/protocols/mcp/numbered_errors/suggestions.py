"""What to try instead, made from the constraint that was broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from defserve.errors import Problem
from defserve.wire.jsonvalue import is_array

MOST_SUGGESTIONS = 10

_Found = re.Match[str]

# What a problem says of the constraint → what to do about it. The first match counts.
RULES: tuple[tuple[str, Callable[[str, _Found], Iterable[str]]], ...] = (
    (r"missing", lambda field, _: [f"Provide {field}"]),
    (r"unknown field", lambda field, _: [f"Leave out {field}"]),
    (r'unknown argument (?P<name>".*"); did you mean (?P<known>".*")\?', lambda _, m: [f"Use {m['known']}"]),
    (r'unknown argument (?P<name>".*"); known: (?P<known>.+)', lambda _, m: [f"Use one of: {m['known']}"]),
    (r'unknown argument (?P<name>".*"); there are none', lambda _, m: [f"Leave out {m['name']}"]),
    (r"must match the pattern (?P<pattern>.+)", lambda _, m: _for_pattern(m["pattern"])),
    (r"must have (?P<bound>at (?:least|most) .+)", lambda _, m: [f"Use {m['bound']}"]),
    (r"must have no item twice", lambda _, m: ["Use every item once"]),
    (r"must be (?P<bound>(?:at least|at most|greater than|less than) .+)", lambda _, m: [f"Use a value {m['bound']}"]),
    (r"must be (?P<multiple>a multiple of .+)", lambda _, m: [f"Use {m['multiple']}"]),
    (r'expected (?P<choices>["\d-].*)', lambda _, m: [f"Use {m['choices']}"]),
    (r"expected (?P<type>.+)", lambda _, m: [f"Use a value of type {m['type']}"]),
)

# Inside the brackets of a simple pattern → what it lets through.
CHARACTERS: Mapping[str, str] = {
    "A-Z": "uppercase letters",
    "a-z": "lowercase letters",
    "0-9": "digits",
    r"\d": "digits",
    r"\w": "letters, digits and _",
}
# One class of characters from start to end: ^[A-Z]{1,5}$, ^\d+$.
SIMPLE = r"\^(?:\[(?P<several>(?:[A-Za-z0-9_.,:@/ -]|\\[dw.-])+)\]|(?P<one>\\[dw]))(?P<times>\{\d+(?:,\d*)?\}|[+*])?\$"


def for_problems(problems: Iterable[Problem]) -> list[str]:
    """One or two suggestions for each problem, without repeats."""
    return _distinct(suggestion for problem in problems for suggestion in _for_problem(problem))


def for_hints(hints: Mapping[str, Any]) -> list[str]:
    """What a guard says would be allowed: `allowed imports: json, math`."""
    listed = ((key, ", ".join(map(str, value)) if is_array(value) else value) for key, value in hints.items())
    return _distinct(f"{key.replace('_', ' ')}: {value}" for key, value in listed)


def _for_problem(problem: Problem) -> Iterable[str]:
    # The given value comes last and may hold anything; it is not part of the constraint.
    constraint = problem.reason.partition(", got ")[0]
    for rule, suggest in RULES:
        if found := re.fullmatch(rule, constraint, re.DOTALL):
            return suggest(problem.field, found)
    return [f"Change {problem.field}: {constraint}"] if problem.field else []


def _for_pattern(pattern: str) -> Iterator[str]:
    if (found := re.fullmatch(SIMPLE, pattern)) is None:
        yield f"Match the pattern {pattern}"
        return
    yield f"Use {_spelt(found['several'] or found['one'])} only"
    if found["times"] not in (None, "+", "*"):
        least, comma, most = found["times"].strip("{}").partition(",")
        length = f"{least}-{most}" if most else f"at least {least}" if comma else least
        yield f"Length must be {length} characters"


def _spelt(characters: str) -> str:
    """`A-Z0-9_` → `uppercase letters, digits, _`."""
    parts: list[str] = re.findall(r"A-Z|a-z|0-9|.-.|\\.|.", characters)
    return ", ".join(dict.fromkeys(CHARACTERS.get(part, part.removeprefix("\\")) for part in parts))


def _distinct(suggestions: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(suggestions))[:MOST_SUGGESTIONS]
