"""TOML edited as text: the tables of one name are added or removed, and every other line stays as it is.

`tomlkit` finds and writes the tables. Every edit is read back with `tomllib` before it is returned, so an edit that
would change anything else is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from defserve.core.json_values import is_object
from defserve.tooling.jsonc import REMOVED_VALUE, BrokenDocument, NotEditable, copy_with_value

UNSAFE: Final = "it is written in a way that cannot be edited safely"
_ARRAY: Final = re.compile(r"^[ \t]*\[\[[^\[\],\r\n]+\]\](?=[ \t]*(?:#|\r?$))", re.MULTILINE)
_HIDDEN: Final = "defserve-hidden-array-"
_BLANK_OR_COMMENT: Final = re.compile(r"\s*(#.*)?$")


def parse(text: str) -> dict[str, Any]:
    """Raises BrokenDocument."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        problem = re.sub(r" \(at .*\)$", "", str(error))
        raise BrokenDocument(problem, int(line[1]) if line else text.count("\n") + 1) from None


def set_value(text: str, path: Sequence[str], value: Mapping[str, Any]) -> str:
    """The text with the table `value` at `path`. Raises BrokenDocument or NotEditable."""
    whole = parse(text)
    if _at(whole, path) == value:
        return text
    return _choose_candidate(_candidates(text, path, value), copy_with_value(whole, path, value))


def remove(text: str, path: Sequence[str]) -> str:
    """The text without the table at `path`; the same text if there is none. Raises BrokenDocument or NotEditable."""
    whole = parse(text)
    if _at(whole, path) is None:
        return text
    lines, _ = _without(text, path)
    if len(lines) > 1 and not lines[-1].strip() and text.endswith("\n"):
        lines.pop()
    return _choose_candidate(["".join(lines)], copy_with_value(whole, path, REMOVED_VALUE))


def _at(whole: Any, path: Sequence[str]) -> Any:
    for depth, key in enumerate(path):
        if not is_object(whole):
            raise NotEditable(f"{'.'.join(path[:depth])} is not a table")
        whole = whole.get(key)
        if whole is None:
            return None
    return whole


def _choose_candidate(candidates: Iterator[str] | list[str], expected: dict[str, Any]) -> str:
    """The first text that has the expected meaning. Raises NotEditable."""
    for text in candidates:
        try:
            if _prune_empty_tables(tomllib.loads(text)) == _prune_empty_tables(expected):
                return text
        except tomllib.TOMLDecodeError:
            continue
    raise NotEditable(UNSAFE)


def _prune_empty_tables(value: Any) -> Any:
    """Without empty tables: it does not matter whether the header of one is left."""
    if not is_object(value):
        return value
    return {key: pruned for key, item in value.items() if (pruned := _prune_empty_tables(item)) != {}}


def _candidates(text: str, path: Sequence[str], value: Mapping[str, Any]) -> Iterator[str]:
    """Ways to write it, best first: where it was, at the end, inside the value that holds its siblings."""
    import tomlkit

    table: Any = value
    for key in reversed(path):
        table = {key: table}
    lines, place = _without(text, path)
    newline = "\r\n" if "\r\n" in text else "\n"
    block = tomlkit.dumps(table).replace("\n", newline)
    for at in (place, len(lines)):
        before, behind = "".join(lines[:at]), "".join(lines[at:])
        if before and not before.endswith("\n"):
            before += newline
        if at == len(lines) and before.strip() and lines[-1].strip():
            before += newline
        yield before + block + (newline if behind and lines[at].strip() else "") + behind
    document = _document(text)
    _holder(document, path)[path[-1]] = value
    yield document.as_string()


def _without(text: str, path: Sequence[str]) -> tuple[list[str], int]:
    """The lines without the table at `path`, and the place among them where it began: the end if it has no header."""
    if path[-1] not in _holder(parse(text), path):
        lines = text.splitlines(keepends=True)
        return lines, len(lines)
    arrays = [found[0] for found in _ARRAY.finditer(text)]
    numbers = iter(range(len(arrays)))
    # Arrays of tables are hidden from tomlkit, which moves tables that stand on both sides of one.
    hidden = _ARRAY.sub(lambda _: f"[{_HIDDEN}{next(numbers)}]", text)
    document = _document(hidden)
    del _holder(document, path)[path[-1]]
    old, new = hidden.splitlines(keepends=True), document.as_string().splitlines(keepends=True)
    kept, place = list[str](), -1
    for change, start, end, from_, to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if change == "delete":
            place = len(kept) if place < 0 else place
            kept += _comments_behind(old[start:end], is_spaced=not kept or not kept[-1].strip())
        kept += new[from_:to]
    shown = [re.sub(rf"\[{_HIDDEN}(\d+)\]", lambda found: arrays[int(found[1])], line) for line in kept]
    return shown, place if place >= 0 else len(shown)


def _document(text: str) -> Any:
    """The text as a tomlkit document. Raises NotEditable if tomlkit would not write it back unchanged."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
    except TOMLKitError:
        raise NotEditable(UNSAFE) from None
    if document.as_string() != text:
        raise NotEditable(UNSAFE)
    return document


def _comments_behind(lines: list[str], *, is_spaced: bool) -> list[str]:
    """To tomlkit, the comments above a table belong to the table before it. These are the ones to keep."""
    cut = len(lines)
    while cut and _BLANK_OR_COMMENT.match(lines[cut - 1]):
        cut -= 1
    while is_spaced and cut < len(lines) and not lines[cut].strip():
        cut += 1
    return lines[cut:]


def _holder(document: Any, path: Sequence[str]) -> Any:
    for key in path[:-1]:
        document = document.get(key, {})
    return document
