"""What the editors of JSON and TOML share: what can go wrong, and what an edit has to mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

GONE: Final = object()
"""The value of a member that is to be removed."""


class BrokenDocument(ValueError):
    """The text cannot be parsed. `line` is where that shows."""

    def __init__(self, problem: str, line: int) -> None:
        self.problem, self.line = problem, line
        super().__init__(f"line {line}: {problem}")


class NotEditable(ValueError):
    """The text can be parsed, but the edit cannot be made in it."""


def changed(whole: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of a document with `value` at `path`."""
    copy = dict(whole)
    if len(path) > 1:
        copy[path[0]] = changed(copy.get(path[0], {}), path[1:], value)
    elif value is GONE:
        del copy[path[0]]
    else:
        copy[path[0]] = value
    return copy
