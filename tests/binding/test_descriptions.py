from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from defserve import Server
from tests.raw import raw, text_of
from tests.rows import for_each_row

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
@for_each_row("function", [google, numpy, rest, epydoc])
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


@pytest.mark.req("GGEN-SCH-2", "GGEN-SCH-3")
async def test_constraints_and_defaults_reach_the_schema_and_what_has_no_default_is_required():
    server = Server("s", "1")

    @server.tool
    def order(
        code: Annotated[str, Field(min_length=2, max_length=4, pattern="^[A-Z]+$")],
        qty: Annotated[int, Field(ge=1, le=9)],
        colour: Literal["red", "blue"],
        share: Annotated[float, Field(gt=0, lt=1)] = 0.5,
        urgent: bool = False,
    ) -> str:
        return code

    async with raw(server) as peer:
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert tool["inputSchema"] == {
            "type": "object",
            "properties": {
                "code": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[A-Z]+$"},
                "qty": {"type": "integer", "minimum": 1, "maximum": 9},
                "colour": {"type": "string", "enum": ["red", "blue"]},
                "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.5},
                "urgent": {"type": "boolean", "default": False},
            },
            "required": ["code", "qty", "colour"],
            "additionalProperties": False,
        }
        good = {"code": "AB", "qty": 1, "colour": "red"}
        assert text_of(await peer.call("order", good)) == "AB"
        for wrong in ({"code": "A"}, {"code": "ab"}, {"qty": 10}, {"colour": "green"}, {"share": 1}):
            assert (await peer.call("order", {**good, **wrong}))["isError"] is True
        for name in good:
            missing = await peer.call("order", {key: value for key, value in good.items() if key != name})
            assert text_of(missing) == f"{name}: missing"
