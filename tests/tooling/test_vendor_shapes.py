"""Tools as each vendor's API is sent them: the shape, its cost, what is lost, and what would be refused."""

from __future__ import annotations

from typing import Any

from defserve.tooling.vendor_shapes import VENDOR_SHAPES, estimate_json_tokens, shape_tool, shape_tools
from tests.rows import for_each_row

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OUTPUT = {"type": "object", "properties": {"found": {"type": "integer"}}}
TOOL: dict[str, Any] = {
    "name": "find",
    "title": "Finder",
    "description": "Find things.",
    "inputSchema": SCHEMA,
    "outputSchema": OUTPUT,
    "annotations": {"readOnlyHint": True},
}
SHAPES: dict[str, Any] = {
    "openai": [
        {"type": "function", "name": "find", "description": "Find things.", "parameters": SCHEMA, "strict": False}
    ],
    "openai-chat": [
        {"type": "function", "function": {"name": "find", "description": "Find things.", "parameters": SCHEMA}}
    ],
    "anthropic": [{"name": "find", "description": "Find things.", "input_schema": SCHEMA}],
    "gemini": [
        {
            "functionDeclarations": [
                {
                    "name": "find",
                    "description": "Find things.",
                    "parametersJsonSchema": SCHEMA,
                    "responseJsonSchema": OUTPUT,
                }
            ]
        }
    ],
}


@for_each_row("vendor", VENDOR_SHAPES)
def test_a_tool_has_the_shape_of_each_api(vendor: str):
    assert shape_tools(vendor, [TOOL]) == SHAPES[vendor]


@for_each_row("vendor", VENDOR_SHAPES)
def test_what_has_no_place_in_a_shape_is_named(vendor: str):
    lost = ("title", "annotations") if vendor == "gemini" else ("title", "outputSchema", "annotations")
    shaped = shape_tool(vendor, TOOL)
    assert shaped.lost == lost and shaped.problems == ()
    assert shape_tool(vendor, {"name": "find"}).lost == ()
    assert shaped.tokens == estimate_json_tokens(shaped.value)


def test_a_tool_without_arguments_still_says_that_they_are_an_object():
    assert shape_tools("anthropic", [{"name": "now"}]) == [
        {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    ]


def test_what_an_api_would_refuse_is_told():
    dotted = {"name": "shop.find", "inputSchema": {"type": "object", "anyOf": [{}]}}
    for vendor in ("openai", "openai-chat", "anthropic"):
        name, schema = shape_tool(vendor, dotted).problems
        assert name.startswith("the name is refused") and schema == "the schema is refused: no anyOf at its top"
    assert shape_tool("gemini", dotted).problems == ()
    assert len(shape_tool("anthropic", {"name": "a" * 65}).problems) == 0
    assert len(shape_tool("openai", {"name": "a" * 65}).problems) == 1
