"""The author's list of commands: whole lines, programs with their first words, programs with any arguments."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

Allowed: TypeAlias = Mapping[str, Sequence[str] | None] | Collection[str]


@dataclass(frozen=True, slots=True)
class AllowList:
    """What was listed, ready to be asked."""

    lines: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    """Whole command lines."""
    firsts: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Program → the words that may follow it. Of a program without rules, also the flags it may have."""
    open: set[str] = field(default_factory=set[str])
    """Programs with any arguments that pass their rules."""

    def names(self, program: str) -> bool:
        return program in self.open or program in self.firsts or any(line[0] == program for line in self.lines)

    def readable(self) -> dict[str, list[str] | str]:
        """The list as a hint: what a caller may write."""
        shown: dict[str, list[str] | str] = {name: sorted(words) for name, words in self.firsts.items()}
        shown |= dict.fromkeys(self.open, "any arguments")
        return shown | {shlex.join(line): "exactly" for line in self.lines}


def allow_list(allowed: Allowed) -> AllowList:
    """Read `{"git": ["status"], "ls": None, "python3 --version": None}` or `{"ls", "python3 --version"}`."""
    found = AllowList()
    for key, values in _pairs(allowed):
        program, *rest = _split(key) or [""]
        if rest:
            found.lines.add((program, *rest))
        elif not values:
            found.open.add(program)
        for value in values:
            _add(found, program, _split(value))
    return found


def _add(found: AllowList, program: str, line: list[str]) -> None:
    if len(line) == 1:
        found.firsts.setdefault(program, set()).add(line[0])
    else:
        found.lines.add((program, *line))


def _pairs(allowed: Allowed) -> list[tuple[str, Sequence[str]]]:
    if isinstance(allowed, str):
        return [(allowed, ())]
    if isinstance(allowed, Mapping):
        listed = cast("Mapping[str, Sequence[str] | None]", allowed)
        return [(name, [values] if isinstance(values, str) else values or ()) for name, values in listed.items()]
    return [(name, ()) for name in allowed]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]
