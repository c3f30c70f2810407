"""JSON with comments, edited as text: one member is added or removed, and everything else stays as it is.

Comments, trailing commas, a byte order mark, the order of keys and line endings stay. Every edit is read back before it
is returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

DEEPEST: Final = 200
MARK: Final = "\ufeff"

_TRIVIA: Final = re.compile(r"(?:[ \t\r\n]++|//[^\r\n]*+|/\*(?>.*?\*/))++", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR: Final = re.compile(r"(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.+-])")

# What may follow a member on its line: blanks, whole comments, a comment to the end.
_REST_OF_LINE: Final = re.compile(r"(?:[ \t]++|/\*(?>[^\r\n]*?\*/))*+(?://[^\r\n]*+)?")


class JsonNode(NamedTuple):
    """A value and its place in the text. `members` is None unless it is an object."""

    start: int
    end: int
    value: Any
    members: list[JsonMember] | None = None


@dataclass(slots=True)
class JsonMember:
    """A member of an object. `comma` is the place behind its comma, or 0 if it has none."""

    key: str
    start: int
    node: JsonNode
    comma: int = 0


def parse(text: str) -> Any:
    """The value of the text; an empty text is an empty object. Raises BrokenDocument."""
    return _parse_document(text).value


def set_value(text: str, path: Sequence[str], value: Any) -> str:
    """The text with `value` at `path`; missing objects on the way are made. Raises BrokenDocument or NotEditable."""
    mark, text = _split_byte_order_mark(text)
    root = _parse_document(text)
    if not _TRIVIA.sub("", text):
        text = text + ("" if not text or text.endswith("\n") else "\n") + "{}\n"
        root = _parse_document(text)
    target, members, depth = _deepest(root, path)
    expected = copy_with_value(root.value, path, value)
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    known = [member for member in members if member.key == path[depth]]
    if known:
        edited = _replace_node(text, known[-1].node, value)
    else:
        edited = _insert_member(text, target, members, path[depth], value)
    return mark + _check_meaning(edited, expected)


def remove(text: str, path: Sequence[str]) -> str:
    """The text without what is at `path`; the same text if there is nothing. Raises BrokenDocument or NotEditable."""
    mark, text = _split_byte_order_mark(text)
    root = _parse_document(text)
    _, members, depth = _deepest(root, path)
    if depth < len(path) - 1 or all(member.key != path[-1] for member in members):
        return mark + text
    expected = copy_with_value(root.value, path, REMOVED_VALUE)
    while True:
        _, members, _ = _deepest(_parse_document(text), path)
        places = [place for place, member in enumerate(members) if member.key == path[-1]]
        if not places:
            return mark + _check_meaning(text, expected)
        text = _without(text, members, places[-1])


# -- reading ---------------------------------------------------------------------------------------------
def _split_byte_order_mark(text: str) -> tuple[str, str]:
    return (MARK, text[1:]) if text.startswith(MARK) else ("", text)


def _parse_document(text: str) -> JsonNode:
    _, text = _split_byte_order_mark(text)
    start = _skip(text, 0)
    if start == len(text):
        return JsonNode(start, start, {}, [])
    node = _value(text, start, 0)
    end = _skip(text, node.end)
    if end != len(text):
        _fail(text, end, "there is more text after the end of the value")
    return node


def _skip(text: str, at: int) -> int:
    found = _TRIVIA.match(text, at)
    at = found.end() if found else at
    if text.startswith("/*", at):
        _fail(text, at, "a comment is not closed")
    return at


def _value(text: str, at: int, depth: int) -> JsonNode:
    if depth > DEEPEST:
        _fail(text, at, f"it is nested deeper than {DEEPEST} levels")
    if text.startswith("{", at):
        return _object(text, at, depth)
    if text.startswith("[", at):
        return _array(text, at, depth)
    if text.startswith('"', at):
        string, end = _string(text, at)
        return JsonNode(at, end, string)
    found = _SCALAR.match(text, at)
    if found is None:
        _fail(text, at, f"expected a value, found {_describe_character(text, at)}")
    return JsonNode(at, found.end(), json.loads(found[0]))


def _object(text: str, start: int, depth: int) -> JsonNode:
    members: list[JsonMember] = []
    at = _skip(text, start + 1)
    while not text.startswith("}", at):
        if not text.startswith('"', at):
            _fail(text, at, f"expected a name in quotes, found {_describe_character(text, at)}")
        key, end = _string(text, at)
        colon = _skip(text, end)
        if not text.startswith(":", colon):
            _fail(text, colon, f"expected a colon after {key!r}, found {_describe_character(text, colon)}")
        member = JsonMember(key, at, _value(text, _skip(text, colon + 1), depth + 1))
        members.append(member)
        at, member.comma = _separator(text, member.node.end, "}")
    return JsonNode(start, at + 1, {member.key: member.node.value for member in members}, members)


def _array(text: str, start: int, depth: int) -> JsonNode:
    items: list[Any] = []
    at = _skip(text, start + 1)
    while not text.startswith("]", at):
        node = _value(text, at, depth + 1)
        items.append(node.value)
        at, _ = _separator(text, node.end, "]")
    return JsonNode(start, at + 1, items)


def _separator(text: str, at: int, closing: str) -> tuple[int, int]:
    """Where the next item begins after a value, and the place behind the comma, or 0 without one."""
    at = _skip(text, at)
    if text.startswith(",", at):
        return _skip(text, at + 1), at + 1
    if not text.startswith(closing, at):
        _fail(text, at, f"expected a comma or {closing!r}, found {_describe_character(text, at)}")
    return at, 0


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    if found is None:
        _fail(text, at, "a string is not closed on its line")
    try:
        return json.loads(found[0]), found.end()
    except ValueError:
        _fail(text, at, "a string has an unknown escape")


def _describe_character(text: str, at: int) -> str:
    return repr(text[at]) if at < len(text) else "the end of the file"


def _fail(text: str, at: int, problem: str) -> NoReturn:
    raise BrokenDocument(problem, text.count("\n", 0, at) + 1)


# -- writing ---------------------------------------------------------------------------------------------
def _deepest(root: JsonNode, path: Sequence[str]) -> tuple[JsonNode, list[JsonMember], int]:
    """The innermost object that exists on the way to `path`, its members, and how many keys lead to it.

    At least one key is left.
    """
    node, depth = root, 0
    while True:
        if node.members is None:
            raise NotEditable(f"{'.'.join(path[:depth]) or 'the whole file'} is not an object")
        inside = [member for member in node.members if member.key == path[depth]]
        if not inside or depth == len(path) - 1:
            return node, node.members, depth
        node, depth = inside[-1].node, depth + 1


def _check_meaning(text: str, expected: Any) -> str:
    if parse(text) != expected:
        raise NotEditable("it is written in a way that cannot be edited safely")
    return text


def _replace_node(text: str, node: JsonNode, value: Any) -> str:
    if node.value == value:
        return text
    return text[: node.start] + _dump(text, value, _indent_at(text, node.start)) + text[node.end :]


def _insert_member(text: str, target: JsonNode, members: list[JsonMember], key: str, value: Any) -> str:
    if not members:
        return _insert_first_member(text, target, key, value)
    first, last = members[0], members[-1]
    end = last.comma or last.node.end
    if "\n" not in text[target.start : first.start]:
        member = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        return f"{text[:end]}{' ' if last.comma else ', '}{member}{',' if last.comma else ''}{text[end:]}"
    indent = _indent_at(text, first.start)
    member = f"{_line_end(text)}{indent}{_member(text, key, value, indent)}{',' if last.comma else ''}"
    rest = _REST_OF_LINE.match(text, end)
    behind = rest.end() if rest else end
    return text[:end] + ("" if last.comma else ",") + text[end:behind] + member + text[behind:]


def _insert_first_member(text: str, target: JsonNode, key: str, value: Any) -> str:
    """The first member of an object, which may hold comments."""
    base, newline = _indent_at(text, target.start), _line_end(text)
    inside = text[target.start + 1 : target.end - 1].rstrip()
    indent = base + _unit(text)
    member = f"{newline}{indent}{_member(text, key, value, indent)}{newline}{base}"
    return text[: target.start + 1] + inside + member + text[target.end - 1 :]


def _without(text: str, members: list[JsonMember], place: int) -> str:
    member, is_last = members[place], place == len(members) - 1
    start, end = member.start, member.comma or member.node.end
    line = text.rfind("\n", 0, start) + 1
    if not text[line:start].strip():
        # It has its lines to itself, so they go as a whole.
        following = re.compile(r"[ \t]*(\r?\n|$)").match(text, end)
        if following:
            start, end = line, following.end()
    else:
        start = len(text[:start].rstrip(" \t")) if is_last else start
        end = end if is_last else end + len(text[end:]) - len(text[end:].lstrip(" \t"))
    before = text[:start]
    if is_last and place and not member.comma:
        # The comma before it would be left behind.
        comma = members[place - 1].comma
        before = before[: comma - 1] + before[comma:]
    return before + text[end:]


def _member(text: str, key: str, value: Any, indent: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: {_dump(text, value, indent)}"


def _dump(text: str, value: Any, indent: str) -> str:
    return json.dumps(value, ensure_ascii=False, indent=_unit(text)).replace("\n", _line_end(text) + indent)


def _indent_at(text: str, at: int) -> str:
    """The blanks at the beginning of the line."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """One step of indentation, as the text does it."""
    found = re.search(r"^(\t|[ ]{1,8})(?=\")", text, re.MULTILINE)
    return found[1] if found else "  "


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# -- What the editors of JSON and TOML share: what can go wrong, and what an edit has to mean.


REMOVED_VALUE: Final = object()
"""The value of a member that is to be removed."""


class BrokenDocument(ValueError):
    """The text cannot be parsed. `line` is where that shows."""

    def __init__(self, problem: str, line: int) -> None:
        self.problem, self.line = problem, line
        super().__init__(f"line {line}: {problem}")


class NotEditable(ValueError):
    """The text can be parsed, but the edit cannot be made in it."""


def copy_with_value(whole: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of a document with `value` at `path`."""
    copy = dict(whole)
    if len(path) > 1:
        copy[path[0]] = copy_with_value(copy.get(path[0], {}), path[1:], value)
    elif value is REMOVED_VALUE:
        del copy[path[0]]
    else:
        copy[path[0]] = value
    return copy
