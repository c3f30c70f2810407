"""One member goes in or out; every other byte, comments too, stays where it was."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.tooling import jsonc
from defserve.tooling.jsonc import BrokenDocument, NotEditable
from tests.effort import examples
from tests.rows import for_each_row

PATH = ("mcpServers", "calc")
ENTRY = {"command": "python", "args": ["-m", "calc"]}

COMMENTED = """// top
{
  "theme": "dark", // mine
  "mcpServers": {
    // theirs
    "files": {"command": "npx"} // keep
  }, /* the end */
}
"""


def test_a_member_goes_behind_the_last_and_its_comment() -> None:
    assert jsonc.set_value(COMMENTED, PATH, {"url": "x"}) == COMMENTED.replace(
        '{"command": "npx"} // keep\n', '{"command": "npx"}, // keep\n    "calc": {\n      "url": "x"\n    }\n'
    )


def test_putting_in_and_taking_out_again_gives_the_same_text() -> None:
    assert jsonc.remove(jsonc.set_value(COMMENTED, PATH, ENTRY), PATH) == COMMENTED


@for_each_row("text", ["", "\n", "// nothing yet\n", "{}", "{ }\n", "{\n  // nothing yet\n}\n", "\ufeff{}"])
def test_an_empty_file_is_filled(text: str) -> None:
    edited = jsonc.set_value(text, PATH, ENTRY)
    assert jsonc.parse(edited) == {"mcpServers": {"calc": ENTRY}}
    assert ("// nothing yet" in edited) == ("// nothing yet" in text)
    assert edited.startswith("\ufeff") == text.startswith("\ufeff")


def test_a_known_member_is_replaced_in_its_place() -> None:
    before = '{\n\t"mcpServers": {\n\t\t"calc": 1, // old\n\t\t"b": 2\n\t}\n}\n'
    after = '{\n\t"mcpServers": {\n\t\t"calc": {\n\t\t\t"a": []\n\t\t}, // old\n\t\t"b": 2\n\t}\n}\n'
    assert jsonc.set_value(before, PATH, {"a": []}) == after


def test_the_same_member_again_changes_nothing() -> None:
    once = jsonc.set_value(COMMENTED, PATH, ENTRY)
    assert jsonc.set_value(once, PATH, ENTRY) == once


def test_the_ends_of_lines_are_the_file_s_own() -> None:
    edited = jsonc.set_value('{\r\n    "a": 1\r\n}\r\n', PATH, ENTRY)
    assert re.findall(r"(?<!\r)\n", edited) == []
    assert '\r\n    "mcpServers": {\r\n        "calc"' in edited


def test_a_file_of_one_line_stays_one() -> None:
    assert jsonc.set_value('{"a": 1}', ("b",), 2) == '{"a": 1, "b": 2}'
    assert jsonc.set_value('{"a": 1,}', ("b",), 2) == '{"a": 1, "b": 2,}'


@for_each_row(
    ("text", "left"),
    [
        ('{"a": 1, "b": 2}', '{"a": 1}'),
        ('{"b": 2, "a": 1}', '{"a": 1}'),
        ('{"b": 2}', "{}"),
        ('{\n  "b": 2, // two\n  "a": 1\n}', '{\n   // two\n  "a": 1\n}'),
        ('{\n  "a": 1, // one\n  "b": 2\n}\n', '{\n  "a": 1 // one\n}\n'),
        ('{\n  "a": 1,\n  "b": 2,\n}\n', '{\n  "a": 1,\n}\n'),
        ('{"a": 1 // x\n,"b": 2}', '{"a": 1 // x\n}'),
        ('{"b": 1, "a": 1, "b": 2}', '{"a": 1}'),
        ('{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_member_goes_with_its_comma(text: str, left: str) -> None:
    assert jsonc.remove(text, ("b",)) == left


@for_each_row(
    ("text", "line"),
    [
        ("{", 1),
        ('{"a" 1}', 1),
        ('{\n"a": 1\n"b": 2}', 3),
        ('{\n\n"a": tru}', 3),
        ("{'a': 1}", 1),
        ('{"a": "x\n"}', 1),
        ("{} {}", 1),
        ("/* never ends", 1),
        ('{"a": 01}', 1),
        ('{"a": "\\x"}', 1),
        ('{"a": NaN}', 1),
        ("[" * 1000, 1),
    ],
)
def test_what_is_broken_is_named_with_its_line(text: str, line: int) -> None:
    for edit in (
        lambda: jsonc.set_value(text, PATH, ENTRY),
        lambda: jsonc.remove(text, PATH),
        lambda: jsonc.parse(text),
    ):
        with pytest.raises(BrokenDocument) as caught:
            edit()
        assert caught.value.line == line


@for_each_row("text", ["[]", "1", '{"mcpServers": []}', '{"mcpServers": "x"}'])
def test_what_stands_in_the_way_is_not_replaced(text: str) -> None:
    with pytest.raises(NotEditable, match="is not an object"):
        jsonc.set_value(text, PATH, ENTRY)


# -- any JSON, written in any way, with comments anywhere ------------------------------------------------

names = st.text(max_size=6) | st.sampled_from(["mcpServers", "calc", "//", "/*", '"', "\\", ",}"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
trivia = st.lists(
    st.sampled_from(["", " ", "\n", "\t", "\r\n", "/* c */", "/*,}*/", "// c\n", '// "\n', "/**/"]), max_size=2
).map("".join)


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """A JSON value as somebody might have typed it."""

    def gap() -> str:
        return draw(trivia)

    def write(value: Any) -> str:
        if isinstance(value, dict):
            members = [f"{gap()}{json.dumps(k)}{gap()}:{gap()}{write(v)}{gap()}" for k, v in value.items()]
            return "{" + ",".join(members) + ("," if members and draw(st.booleans()) else "") + gap() + "}"
        if isinstance(value, list):
            items = [f"{gap()}{write(item)}{gap()}" for item in value]
            return "[" + ",".join(items) + ("," if items and draw(st.booleans()) else "") + gap() + "]"
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    return gap() + write(value) + gap()


def comments(text: str) -> list[str]:
    """The comments of a text, in order."""
    return re.findall(r'"(?:[^"\\]|\\.)*"|(//[^\r\n]*|/\*.*?\*/)', text, re.DOTALL)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    value = draw(st.dictionaries(names, values, max_size=4))
    servers = draw(st.none() | st.dictionaries(names, values, max_size=3))
    if servers is None:
        value.pop("mcpServers", None)
    else:
        value["mcpServers"] = servers
    return draw(written(value)), value


@given(files(), values, st.sampled_from(["calc", "a b", 'q"', "\\"]))
@settings(max_examples=examples(8))
def test_any_file_keeps_all_but_the_one_member(file: tuple[str, dict[str, Any]], entry: Any, name: str) -> None:
    text, value = file
    assert jsonc.parse(text) == value
    servers = value.get("mcpServers", {})
    was = [*filter(None, comments(text))] if name not in servers else None

    edited = jsonc.set_value(text, ("mcpServers", name), entry)
    assert jsonc.parse(edited) == {**value, "mcpServers": {**servers, name: entry}}
    if was is not None:
        assert [*filter(None, comments(edited))] == was

    left = jsonc.remove(edited, ("mcpServers", name))
    assert jsonc.parse(left) == {**value, "mcpServers": {k: v for k, v in servers.items() if k != name}}
    if was is not None:
        assert [*filter(None, comments(left))] == was


@given(st.text(max_size=40) | st.text('{}[]",:/* \n1a', max_size=40))
def test_any_text_is_edited_or_refused(text: str) -> None:
    try:
        edited = jsonc.set_value(text, PATH, ENTRY)
    except (BrokenDocument, NotEditable):
        return
    assert jsonc.parse(edited)["mcpServers"]["calc"] == ENTRY
