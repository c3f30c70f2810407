"""Texts of backends are shown without characters that cannot be seen; names and choices with such are not offered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.base.hidden_characters import has_hidden_characters
from defserve.proxying.boundary import find_hidden_character_in_names, sanitize_listed_item
from defserve.proxying.mounted import find_tool_name_problem
from tests.rows import for_each_row

ODD = ["\u202e", "\u3164", "\ufe0f", "\U000e0100", "\U000e0041", "\u200b", "\u2066", "\x1b"]
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "property": lambda odd: {"properties": {f"path{odd}": {"type": "string"}}},
    "enum": lambda odd: {"properties": {"how": {"enum": ["safe", f"safe{odd}"]}}},
    "const": lambda odd: {"properties": {"how": {"const": f"safe{odd}"}}},
    "definition": lambda odd: {"$defs": {f"Path{odd}": {}}},
    "inner": lambda odd: {"properties": {"all": {"items": {"properties": {f"{odd}x": {}}}}}},
    "a property called _meta": lambda odd: {"properties": {"_meta": {"enum": ["safe", f"safe{odd}"]}}},
    "properties of that name": lambda odd: {"properties": {"enum": {"properties": {f"{odd}x": {}}}}},
}


@for_each_row(("place", "odd"), [(place, odd) for place in PLACES for odd in ODD])
def test_a_schema_whose_names_or_choices_hide_something_is_not_offered(place: str, odd: str) -> None:
    raw = sanitize_listed_item({"name": "wipe", "inputSchema": {"type": "object", **PLACES[place](odd)}})
    assert find_hidden_character_in_names(raw) is not None


def test_an_argument_of_a_prompt_whose_name_hides_something_is_not_offered() -> None:
    assert find_hidden_character_in_names({"name": "ask", "arguments": [{"name": "topic\ufe0f"}]}) is not None


@for_each_row(
    "raw",
    [
        {"name": "a", "inputSchema": {"properties": {"größe": {"enum": ["👩\u200d🔬", "a\nb", "日本"]}}}},
        {"name": "a", "_meta": {"blob\u200b": "\u202e"}},
        {"name": "a", "arguments": [{"name": "topic", "description": "x\u202e"}]},
    ],
)
def test_what_hides_nothing_is_offered(raw: dict[str, Any]) -> None:
    assert find_hidden_character_in_names(raw) is None


@for_each_row("odd", ODD)
def test_defaults_titles_examples_and_whatever_else_is_shown_are_cleaned(odd: str) -> None:
    text = f"a{odd}b"
    schema = {"title": text, "default": text, "examples": [text], "$comment": text, "description": text}
    raw = {
        "name": "a", "title": text, "annotations": {"title": text}, "icons": [{"src": text}],
        "inputSchema": {"properties": {"p": schema, "default": schema}, **schema},
    }  # fmt: skip
    clean = sanitize_listed_item(raw)
    assert odd not in str(clean).encode().decode("unicode_escape", "replace") and text not in repr(clean)
    assert clean["inputSchema"]["properties"]["p"]["default"] == "ab"


VALUES = st.recursive(
    st.text(st.characters() | st.sampled_from(ODD), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["title", "properties", "enum", "x", "y\u3164", "default"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(VALUES)
def test_whatever_is_offered_shows_every_character_of_it(schema: Any) -> None:
    raw = sanitize_listed_item({"name": "a", "inputSchema": schema})
    if find_hidden_character_in_names(raw) is not None:
        return
    assert not [text for text in texts(raw) if has_hidden_characters("".join(c for c in text if c not in "\r\n\t"))]


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in (name, *texts(inner))]  # pyright: ignore
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]  # pyright: ignore
    return [value] if isinstance(value, str) else []


@for_each_row(
    "name", ["notes_wipe\ufe0f", "wipe\u3164", "wipe\U000e0100", "wіpe", "ｗipe", "list notes", "a:b", "a\nb", "ä", ""]
)
def test_a_name_outside_mcps_alphabet_is_not_listed(name: str) -> None:
    assert find_tool_name_problem(name) is not None


@for_each_row("name", ["wipe", "Notes.wipe-2", "a/b", "A_1"])
def test_a_name_of_mcps_alphabet_is_listed(name: str) -> None:
    assert find_tool_name_problem(name) is None
