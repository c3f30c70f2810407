"""What plainly never ends, or prints without a bound, in a script. Other loops end with the time a command is given."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_HEAD = 400
"""How many characters behind a bracket are looked at."""

_SPEC = re.compile(r"%([^A-Za-z%]*+)")
_LARGE = re.compile(r"\d{9}|\d[eE]\+?(?:[7-9]|\d\d)")


def is_wide(text: str) -> bool:
    """Whether a format (`%5d`) asks for a width of four digits or more, or takes its width from elsewhere (`%*d`)."""
    return any("*" in found[1] or re.search(r"\d{4}", found[1]) for found in _SPEC.finditer(text))


def is_large(text: str) -> bool:
    """Whether a number of nine digits or more stands in this text."""
    return _LARGE.search(text) is not None


def is_true(condition: str) -> bool:
    """Whether a condition is always true: `1`, `!0`, `"a"`, `x == x`."""
    condition = condition.strip()
    left, equal, right = condition.partition("==")
    if equal:
        return left.strip() == right.strip()
    return condition in ("!0", "! 0", "true", '""') or (condition.isdigit() and int(condition) != 0)


def calls(script: str, *names: str) -> Iterator[tuple[str, str]]:
    """Each of these names that is followed by a bracket, and what stands in the bracket."""
    for found in re.finditer(r"\b([A-Za-z_]\w*+)\s{0,9}\(", script):
        if found[1] in names:
            yield found[1], inside(script, found.end(), "(", ")")


def inside(script: str, at: int, opening: str, closing: str) -> str:
    """The text from `at`, which is behind an opening bracket, to its partner."""
    depth = 1
    for end in range(at, min(len(script), at + MAX_HEAD)):
        depth += (script[end] == opening) - (script[end] == closing)
        if not depth:
            return script[at:end]
    return script[at : at + MAX_HEAD]
