"""TOML edited as text: the tables of one name put or taken out, everything else left as it was, to the letter.

Every edit is read back with `tomllib` before it is given out, so what this module does not understand it refuses.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from defserve.tooling.clients.jsonc import BrokenDocument, NotEditable
from defserve.wire.jsonvalue import is_array, is_mapping, is_object

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED: Final = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)


class Statement(NamedTuple):
    """A header or a `key = value`, with the lines it covers. `path` is the whole way from the root."""

    start: int
    end: int
    path: tuple[str, ...]
    is_header: bool


def parse(text: str) -> dict[str, Any]:
    """Raises BrokenDocument."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        problem = re.sub(r" \(at .*\)$", "", str(error))
        raise BrokenDocument(problem, int(line[1]) if line else text.count("\n") + 1) from None


def put(text: str, path: Sequence[str], value: Mapping[str, Any]) -> str:
    """The text with the table `value` at `path`. Raises BrokenDocument or NotEditable."""
    whole = parse(text)
    if _at(whole, path) == value:
        return text
    text, at = _without(text, path)
    newline = "\r\n" if "\r\n" in text else "\n"
    table = newline.join(_table(path, value)) + newline
    before, behind = text[:at], text[at:]
    if before and not before.endswith("\n"):
        before += newline
    if before.strip() and not before.endswith(newline * 2):
        before += newline
    if behind.strip() and not behind.startswith(newline):
        table += newline
    return _checked(before + table + behind, _with(whole, path, dict(value)))


def remove(text: str, path: Sequence[str]) -> str:
    """The text without what is at `path`; the same text if there is nothing. Raises BrokenDocument or NotEditable."""
    whole = parse(text)
    if _at(whole, path) is None:
        return text
    left = _without(text, path)[0]
    if text.endswith("\n") and left.endswith(("\n\n", "\n\r\n")):
        left = left.removesuffix("\n").removesuffix("\r")
    return _checked(left, _with(whole, path, None))


def _at(whole: Any, path: Sequence[str]) -> Any:
    for depth, key in enumerate(path):
        if not is_object(whole):
            raise NotEditable(f"{'.'.join(path[:depth])} is not a table")
        whole = whole.get(key)
        if whole is None:
            return None
    return whole


def _with(whole: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    copy = dict(whole)
    if len(path) > 1:
        copy[path[0]] = _with(copy.get(path[0], {}), path[1:], value)
    elif value is None:
        copy.pop(path[0], None)
    else:
        copy[path[0]] = value
    return copy


def _pruned(value: Any) -> Any:
    """Without empty tables: whether a header is left over or not, nothing is meant by it."""
    if not is_object(value):
        return value
    pruned = {key: _pruned(item) for key, item in value.items()}
    return {key: item for key, item in pruned.items() if item != {}}


def _checked(text: str, expected: dict[str, Any]) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = None
    if _pruned(found) != _pruned(expected):
        raise NotEditable("it is written in a way that cannot be edited safely")
    return text


# -- reading ---------------------------------------------------------------------------------------------


def _without(text: str, path: Sequence[str]) -> tuple[str, int]:
    """The text without every statement at or below `path`, and the place where a table may go instead."""
    wanted = tuple(path)
    kept, cut, place = list[str](), 0, -1
    for is_wanted, run in groupby(_statements(text), lambda statement: statement.path[: len(wanted)] == wanted):
        if not is_wanted:
            continue
        # Comments between two of them go with them.
        first, last = _ends(run)
        kept.append(text[cut : first.start])
        cut = last.end
        if place < 0 and first.is_header:
            place = sum(map(len, kept))
        cut += _needless_blank("".join(kept), text[cut:])
    left = "".join(kept) + text[cut:]
    return left, place if place >= 0 else len(left)


def _ends(run: Iterator[Statement]) -> tuple[Statement, Statement]:
    statements = list(run)
    return statements[0], statements[-1]


def _needless_blank(before: str, behind: str) -> int:
    """How long the blank line is that would be the second of two."""
    blank = re.match(r"\r?\n", behind)
    return blank.end() if blank and (not before or before.endswith(("\n\n", "\n\r\n"))) else 0


def _statements(text: str) -> Iterator[Statement]:
    at, table = 0, tuple[str, ...]()
    while at < len(text):
        line = text[at : _line_end(text, at)]
        if not line.strip() or line.lstrip().startswith("#"):
            at += len(line)
            continue
        end = _statement_end(text, at)
        source = text[at:end]
        if source.lstrip().startswith("["):
            table = _path(source)
            yield Statement(at, end, table, True)
        else:
            yield Statement(at, end, (*table, *_key(source)), False)
        at = end


def _statement_end(text: str, at: int) -> int:
    """Behind the line on which a statement ends: strings and brackets may go over several."""
    depth = 0
    while at < len(text):
        letter = text[at]
        if letter in "\"'":
            quoted = _QUOTED.match(text, at)
            at = quoted.end() if quoted else at + 1
            continue
        if letter == "#":
            at = _line_end(text, at)
            at -= text[at - 1] == "\n"
            continue
        depth += (letter in "[{") - (letter in "]}")
        at += 1
        if letter == "\n" and depth <= 0:
            break
    return at


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _path(header: str) -> tuple[str, ...]:
    return _only_path(tomllib.loads(header))


def _key(statement: str) -> tuple[str, ...]:
    """The dotted key of a statement, without its value."""
    at = 0
    while statement[at] != "=":
        quoted = _QUOTED.match(statement, at)
        at = quoted.end() if quoted else at + 1
    return _only_path(tomllib.loads(f"{statement[:at]}= 0"))


def _only_path(value: Any) -> tuple[str, ...]:
    path: list[str] = []
    while value:
        inner: Any = value[0] if is_array(value) else value
        if not is_object(inner) or not inner:
            break
        key, value = next(iter(inner.items()))
        path.append(key)
    return tuple(path)


# -- writing ---------------------------------------------------------------------------------------------


def _table(path: Sequence[str], value: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a table: plain values first, tables below it as tables of their own."""
    yield f"[{'.'.join(map(_written_key, path))}]"
    for key, item in value.items():
        if not is_mapping(item):
            yield f"{_written_key(key)} = {_written(item)}"
    for key, item in value.items():
        if is_mapping(item):
            yield ""
            yield from _table((*path, key), item)


def _written_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _written(key)


def _written(value: Any) -> str:
    if is_array(value):
        return f"[{', '.join(map(_written, value))}]"
    # JSON's strings, numbers and booleans are TOML's, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
