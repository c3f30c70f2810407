"""On which line of a TOML file a value stands. `tomllib` does not tell, and an operator wants to know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from defserve.kernel.config.settings import Path

_PART: Final = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')"
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADING: Final = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]")
_MEMBER: Final = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_LONG_TEXT: Final = re.compile(r"\"\"\"|'''")


def lines_of(text: str) -> dict[Path, int]:
    """The first line of each heading and each member. Members of inline tables are not in it."""
    found: dict[Path, int] = {}
    counts: dict[tuple[str, ...], int] = {}
    table: Path = ()
    for number, line in _outside_long_texts(text):
        if heading := _HEADING.match(line):
            names = _names(heading[2])
            if heading[1] == "[[":
                counts[names] = counts.get(names, -1) + 1
            table = _numbered(names, counts)
            found.setdefault(table, number)
        elif member := _MEMBER.match(line):
            found.setdefault((*table, *_names(member[1])), number)
    return found


def line_at(lines: Mapping[Path, int], path: Path) -> int:
    """The line of the nearest place around `path` that is known. 1 if there is none."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), 1)


def _outside_long_texts(text: str) -> Iterator[tuple[int, str]]:
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not inside:
            yield number, line
        for mark in _LONG_TEXT.findall(line):
            inside = "" if mark == inside else inside or mark


def _names(key: str) -> tuple[str, ...]:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_PART, key))


def _numbered(names: tuple[str, ...], counts: Mapping[tuple[str, ...], int]) -> Path:
    """The path of a heading: behind the name of a list of tables stands the number of the latest one."""
    path: Path = ()
    for length, name in enumerate(names, 1):
        number = counts.get(names[:length])
        path = (*path, name) if number is None else (*path, name, number)
    return path
