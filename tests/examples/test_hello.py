from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from defserve.errors import PeerError, ToolError

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio


@pytest.mark.req("MCP-5.1s", "MCP-6.2", "MCP-9.4", "GGEN-M1")
async def test_the_calculator_is_listed_adds_and_explains_what_it_cannot_do(connect_to: ConnectTo):
    async with connect_to("hello") as client:
        assert client.server_info == {"name": "calculator", "version": "1.0.0"}
        add, divide = await client.tools()
        assert (add["name"], add["description"]) == ("add", "Add two numbers.")
        assert add["inputSchema"] == {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first number."},
                "b": {"type": "integer", "description": "The second number."},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        assert divide["name"] == "divide"
        assert await client.call("add", a=2, b=3) == 5
        assert await client.call("divide", dividend=1, divisor=4) == 0.25
        with pytest.raises(ToolError, match="^cannot divide by zero: give another divisor$"):
            await client.call("divide", dividend=1, divisor=0)
        with pytest.raises(ToolError, match='b: expected integer, got "three"'):
            await client.call("add", a=2, b="three")


@pytest.mark.req("MCP-5.1e")
async def test_an_unknown_tool_is_a_broken_request_and_a_failing_one_a_result(connect_to: ConnectTo):
    async with connect_to("hello") as client:
        with pytest.raises(PeerError) as unknown:
            await client.call_raw("subtract", {"a": 1, "b": 2})
        assert unknown.value.code == -32602
        assert (await client.call_raw("divide", {"dividend": 1, "divisor": 0}))["isError"] is True
        assert "isError" not in await client.call_raw("add", {"a": 1, "b": 2})
