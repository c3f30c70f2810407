from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from defserve import Server
from tests.raw import ERAS, raw, text_of

pytestmark = pytest.mark.anyio


# -- descriptions


def google(a: int, b: str = "x") -> str:
    """Do it.

    Args:
        a: The first.
        b: The second.
    """
    return b * a


def numpy(a: int, b: str = "x") -> str:
    """Do it.

    Parameters
    ----------
    a : int
        The first.
    b : str
        The second.
    """
    return b * a


def rest(a: int, b: str = "x") -> str:
    """Do it.

    :param a: The first.
    :param b: The second.
    """
    return b * a


def epydoc(a: int, b: str = "x") -> str:
    """Do it.

    @param a: The first.
    @param b: The second.
    """
    return b * a


class Order(BaseModel):
    """What is ordered."""

    qty: int = Field(gt=0, description="How many.")


@pytest.mark.req("MCP-6.2")
@pytest.mark.parametrize("function", [google, numpy, rest, epydoc])
async def test_four_styles_of_docstring_describe_tool_and_parameters(function: Any):
    server = Server("s", "1")
    server.add_tool(function)
    server.add_prompt(function)
    async with raw(server) as peer:
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert tool["description"] == "Do it."
        described = {name: schema["description"] for name, schema in tool["inputSchema"]["properties"].items()}
        assert described == {"a": "The first.", "b": "The second."}
        (prompt,) = (await peer.ask("prompts/list"))["result"]["prompts"]
        assert prompt["description"] == "Do it."
        assert prompt["arguments"] == [
            {"name": "a", "required": True, "description": "The first."},
            {"name": "b", "required": False, "description": "The second."},
        ]


async def test_annotations_written_as_text_are_understood():
    # This file has `from __future__ import annotations`: every annotation is text until it is read.
    class Local(BaseModel):
        n: int

    server = Server("s", "1")

    @server.tool
    def buy(order: Order, local: Local, note: Annotated[str, Field(max_length=5, description="Short.")] = "") -> Order:
        return order

    async with raw(server) as peer:
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        properties = tool["inputSchema"]["properties"]
        assert properties["note"] == {"type": "string", "maxLength": 5, "description": "Short.", "default": ""}
        assert tool["inputSchema"]["required"] == ["order", "local"]
        result = await peer.call("buy", {"order": {"qty": 2}, "local": {"n": 1}})
        assert result["structuredContent"] == {"qty": 2}
        refused = await peer.call("buy", {"order": {"qty": 0}, "local": {"n": 1}, "note": "too long"})
        assert refused["isError"] and "order.qty: must be greater than 0" in text_of(refused)
