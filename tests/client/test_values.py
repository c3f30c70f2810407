from __future__ import annotations

from typing import Any

import pytest

from defserve.client.replies import extract_result_value, parse_text_by_schema
from defserve.errors import PeerError, ToolError
from tests.rows import for_each_row


def text(*texts: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts], **more}


@for_each_row(
    ("written", "schema", "value"),
    [
        ("3", {"type": "integer"}, 3),
        ("2.5", {"type": "number"}, 2.5),
        ("true", {"type": "boolean"}, True),
        ("null", {"type": "null"}, None),
        ("3", {"type": "string"}, "3"),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
        ("null", {"type": ["integer", "null"]}, None),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "3"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("7", {"const": 7}, 7),
        ("about 3", {"type": "integer"}, "about 3"),
        ("3", {}, "3"),
    ],
)
def test_text_is_read_as_the_type_its_tool_returns(written: str, schema: dict[str, Any], value: Any):
    read = parse_text_by_schema(written, schema)
    assert (read, type(read)) == (value, type(value))


def test_structured_content_comes_before_text():
    assert extract_result_value(text("{}", structuredContent={"a": 1}), None) == {"a": 1}


def test_structured_null_is_a_value():
    assert extract_result_value(text("null", structuredContent=None), None) is None


def test_a_lone_text_is_a_string_when_its_type_is_not_published():
    assert extract_result_value(text("3"), None) == "3"


def test_several_blocks_stay_blocks():
    assert extract_result_value(text("a", "b"), {"type": "integer"}) == text("a", "b")["content"]


def test_no_content_is_none():
    assert extract_result_value({"content": []}, None) is None
    assert extract_result_value({"content": []}, {"type": "integer"}) is None


def test_a_failed_tool_raises_its_text_and_data():
    with pytest.raises(ToolError) as caught:
        extract_result_value(text("bad", "worse", isError=True, structuredContent={"code": "x"}), None)
    assert (caught.value.message, caught.value.data) == ("bad\nworse", {"code": "x"})


@for_each_row("content", [5, "text", {"a": 1}, ["text"], [None]])
def test_content_that_is_no_list_of_blocks_is_an_error_of_the_peer(content: Any):
    with pytest.raises(PeerError, match="no list of blocks"):
        extract_result_value({"content": content}, None)


@for_each_row("schema", ["string", {"anyOf": 5}, {"anyOf": ["x"]}, {"type": [{}]}, {"enum": 3}])
def test_a_type_that_is_no_schema_leaves_the_text_as_it_is(schema: Any):
    assert extract_result_value(text("5"), schema) == "5"
