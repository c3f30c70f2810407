"""Lists whose items have members of wrong types are refused in a sentence; what passes can be shown."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.cli.content import format_signature, get_first_description_line
from defserve.errors import PeerError
from defserve.tooling.lint.definitions import read_listed_definitions
from defserve.tooling.listing import ServerListing, check_listed_items
from tests.rows import for_each_row

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["a", "array", "object"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["a", "type", "properties", "required", "enum", "anyOf", "items"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
MEMBERS = ["title", "description", "inputSchema", "annotations", "_meta", "arguments", "security"]


@for_each_row(
    ("kind", "item", "problem"),
    [
        ("tools", {"name": 5}, "in number 1, name is not a string"),
        ("tools", {"title": "x"}, "name is missing"),
        ("tools", {"name": "a", "inputSchema": []}, "in 'a', inputSchema is not an object"),
        ("tools", {"name": "a", "inputSchema": None}, "inputSchema is not an object"),
        ("tools", {"name": "a", "inputSchema": {"properties": {"p": 5}}}, "a property of inputSchema is not a schema"),
        ("tools", {"name": "a", "inputSchema": {"required": "p"}}, "required of inputSchema is not a list of names"),
        ("tools", {"name": "a", "_meta": 3}, "_meta is not an object"),
        ("prompts", {"name": "a", "arguments": [None]}, "an argument has no name"),
        ("resources", {"name": "a"}, "uri is missing"),
    ],
)
def test_a_wrong_type_is_named(kind: str, item: dict[str, Any], problem: str) -> None:
    with pytest.raises(PeerError, match=problem):
        check_listed_items(kind, [item])


def test_null_is_no_description() -> None:
    item = {"name": "a", "description": None, "_meta": None, "inputSchema": {"properties": {"p": True}}}
    assert check_listed_items("tools", [item]) == [item]
    assert format_signature(item) == "a(p: any = …)"


@given(st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=4))
def test_what_passes_can_be_shown_and_checked(members: dict[str, Any]) -> None:
    with suppress(PeerError):
        for item in check_listed_items("tools", [{"name": "a", **members}]):
            assert format_signature(item).startswith("a(")
            get_first_description_line(item)
            read_listed_definitions(ServerListing({}, tools=[item], resources=[], templates=[], prompts=[]))
