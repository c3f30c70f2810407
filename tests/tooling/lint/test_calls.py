from __future__ import annotations

from typing import Any

import pytest

from defserve.tooling.lint.definitions import parse_tool_call, problems
from defserve.tooling.listing import server_listing
from tests.export import shop
from tests.rows import for_each_row


def tools() -> list[dict[str, Any]]:
    found = server_listing(shop.server.composition)
    assert found is not None
    return found.tools


@pytest.mark.req("MCP-10.3")
@for_each_row(
    ("name", "arguments", "said"),
    [
        ("price", {"ticker": "ABC", "days": 3}, []),
        ("greet", {}, []),
        ("prices", {}, ["there is no tool 'prices'; did you mean 'price'?"]),
        ("price", {}, ["'ticker' is a required property"]),
        ("price", {"ticker": "ABC", "days": 0}, ["days: 0 is less than the minimum of 1"]),
        ("order", {"order": {"items": [{"name": ""}]}}, ["order.items[0].name: '' should be non-empty"]),
    ],
)
def test_a_call_is_checked_against_the_list_alone(name: str, arguments: dict[str, Any], said: list[str]):
    assert problems(tools(), name, arguments) == said


@pytest.mark.req("MCP-10.3")
def test_what_a_schema_does_not_name_does_not_exist():
    listed = [{"name": "add", "inputSchema": {"type": "object", "properties": {"count": {}}}}]
    assert problems(listed, "add", {"cuont": 1}) == ["cuont: unknown; did you mean 'count'?"]
    listed[0]["inputSchema"]["additionalProperties"] = True
    assert problems(listed, "add", {"cuont": 1}) == []


def test_a_schema_that_leads_nowhere_is_a_problem_of_every_call():
    (said,) = problems([{"name": "add", "inputSchema": {"$ref": "#/$defs/gone"}}], "add", {})
    assert "cannot be used" in said


@for_each_row(
    ("value", "call"),
    [
        ({"name": "add"}, ("add", {})),
        ({"name": "add", "arguments": {"a": 1}}, ("add", {"a": 1})),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add"}}, ("add", {})),
        ({"arguments": {}}, None),
        ({"name": "add", "arguments": [1]}, None),
        ([], None),
    ],
)
def test_a_call_is_read_as_it_is_written_down(value: Any, call: Any):
    assert parse_tool_call(value) == call
