from __future__ import annotations

from typing import Any

from defserve.inspector.panels.resources import contents_of, list_named_items
from tests.rows import for_each_row

NOTHING = {"audience": [], "priority": None, "lastModified": None}


def test_members_of_a_wrong_type_are_left_out():
    item = {"uri": "a://b", "name": 5, "title": {}, "description": "d", "mimeType": None, "size": "9", "annotations": 3}
    assert list_named_items([item], "uri") == [{"uri": "a://b", "description": "d", "annotations": NOTHING}]


def test_what_is_right_stays():
    notes = {"audience": ["user", 5], "priority": 0.5, "lastModified": "2026-01-02"}
    [told] = list_named_items([{"uri": "a://b", "size": 9, "annotations": notes}], "uri")
    assert told == {"uri": "a://b", "size": 9, "annotations": {**notes, "audience": ["user"]}}


@for_each_row("items", [[None, 5, "x", [], {}], [{"uri": 5}], [{"uri": None}]])
def test_what_has_no_name_is_left_out(items: list[Any]):
    assert list_named_items(items, "uri") == []


def test_a_name_comes_once():
    assert [
        each.get("title")
        for each in list_named_items([{"name": "a", "title": "1"}, {"name": "a", "title": "2"}], "name")
    ] == ["1"]


def test_the_arguments_of_a_prompt_are_read_too():
    asked = [{"name": "a", "required": True, "description": 5}, {"name": 7}, None, {"name": "b", "required": "yes"}]
    [told] = list_named_items([{"name": "p", "arguments": asked}], "name")
    assert [(each["name"], each.get("required")) for each in told["arguments"]] == [("a", True), ("b", None)]
    [other] = list_named_items([{"name": "p", "arguments": "x"}], "name")
    assert "arguments" not in other


@for_each_row(
    ("contents", "told"),
    [
        ([{"uri": "a", "text": "t", "blob": 5}, None, {"text": {}}], [{"uri": "a", "text": "t"}, {}]),
        ("x", []),
        (None, []),
    ],
)
def test_contents_are_texts_and_base64(contents: Any, told: Any):
    assert contents_of(contents) == told
