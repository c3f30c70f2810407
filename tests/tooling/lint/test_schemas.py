from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import Base64Bytes, BaseModel

from defserve import Server
from defserve.guard import Upload
from tests.rows import for_each_row
from tests.tooling.lint.reading import broken, only, read, wire


def nested(levels: int) -> dict[str, Any]:
    """Arguments with so many objects inside one another."""
    schema: dict[str, Any] = {"type": "string", "description": "The innermost."}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"below": schema}, "description": "One level."}
    return {"type": "object", "properties": {"top": schema}}


@pytest.mark.req("MCP-6.3")
@for_each_row(("levels", "deep"), [(0, False), (1, False), (2, False), (3, True), (5, True)])
def test_flat_schemas_are_advised(levels: int, deep: bool):
    found = only(wire({"name": "place_order", "inputSchema": nested(levels)}), "deep-schema")
    assert bool(found) is deep
    if deep:
        assert f"{levels} levels" in found[0].finding.problem


@pytest.mark.req("MCP-6.3")
def test_an_argument_of_bytes_is_pointed_to_upload():
    server = Server("files", "1")

    @server.tool
    def store_page(content: bytes | None = None, parts: list[bytes] = []) -> str:  # noqa: B006
        """Store a page."""
        return ""

    @server.tool
    async def store_file(file: Upload, seal: Base64Bytes, name: str) -> str:
        """Store a file."""
        return ""

    found = only(read(server), "bytes-argument")
    assert [each.finding.subject for each in found] == ["tool 'store_page'"] * 2
    assert "write content: Upload" in found[0].finding.fix


class Line(BaseModel):
    words: list[str]


class Page(BaseModel):
    lines: list[Line]


class Branch(BaseModel):
    branches: list[Branch] = []


@pytest.mark.req("MCP-6.3")
def test_depth_is_seen_through_references_and_unions():
    server = Server("deep", "1")

    @server.tool
    def print_page(page: Page | None = None) -> str:
        """Print a page."""
        return ""

    @server.tool
    def draw_tree(tree: Branch) -> str:
        """Draw a tree."""
        return ""

    branch = {"type": "object", "properties": {"branches": {"type": "array", "items": {"$ref": "#/$defs/Branch"}}}}
    schema = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/Branch"}}, "$defs": {"Branch": branch}}

    @server.tool(schema=schema)
    def fell_tree(tree: Any = None) -> str:
        """Fell a tree."""
        return ""

    page, drawn, felled = only(read(server), "deep-schema")
    assert "4 levels" in page.finding.problem
    assert "7 levels" in drawn.finding.problem, "what is listed is unrolled"
    assert "without end" in felled.finding.problem


def test_many_arguments_are_too_many():
    properties = {f"part_{n}": {"type": "string", "description": "A part."} for n in range(9)}
    tool = {"name": "place_order", "inputSchema": {"type": "object", "properties": properties}}
    assert broken(wire(tool)) == ["too-many-parameters"]
    del properties["part_0"]
    assert broken(wire(tool)) == []


@for_each_row(
    ("schema", "problem"),
    [
        ({"type": "array"}, "is not of type object"),
        ({}, "is not of type object"),
        ({"type": "object", "properties": {"a": {"type": "number of things"}}}, "is not valid"),
        ({"type": "object", "properties": {"a": {"description": "x", "items": {"$ref": "#/$defs/A"}}}}, "#/$defs/A"),
        ({"type": "object", "$defs": {"A": {"$ref": "https://example.com/a"}}}, "https://example.com/a"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_an_error(schema: dict[str, Any], problem: str):
    (found,) = only(wire({"name": "place_order", "inputSchema": schema}), "invalid-schema")
    assert problem in found.finding.problem
    assert found.level == "error"


def test_the_cost_of_the_list_is_estimated_and_says_so():
    tools = [{"name": f"tool_number_{n}", "description": f"{n} " + "x" * 900} for n in range(50)]
    (found,) = only(wire(*tools), "token-cost")
    assert re.search(r"about 1\d,\d{3} tokens .*\(estimate: characters/4\)", found.finding.problem)
    assert only(wire(*tools[:20]), "token-cost") == []


def test_a_token_is_four_characters_of_what_models_are_given():
    tool = {"name": "n" * 10, "description": "d" * 50, "inputSchema": {"type": "object"}, "_meta": {"x": "y" * 1000}}
    text = '{"name":"nnnnnnnnnn","description":"' + "d" * 50 + '","inputSchema":{"type":"object"}}'
    assert wire(tool).tokens == -(-len(text) // 4)
