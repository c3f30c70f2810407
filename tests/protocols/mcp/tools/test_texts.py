"""`text=`: what stands beside structured content. Some clients give their model only the one, some only the other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from defserve import Context, Server, ToolError
from defserve.errors import UsageError
from tests.rows import for_each_row
from tests.tooling.lint.reading import only, read

pytestmark = pytest.mark.anyio


class Order(BaseModel):
    number: int
    total: float
    note: str = Field("", exclude=True)


def make_server(**options: Any) -> Server:
    server = Server("shop", "1")

    @server.tool(**options)
    def order(number: int) -> Order:
        """Order."""
        return Order(number=number, total=2.5, note="soon")

    return server


async def ask(server: Server, version: str = "2026-07-28", **arguments: Any) -> tuple[list[str], Any]:
    """The texts and the structured content of a call of its only tool."""
    async with server.connect(version) as client:
        (tool,) = await client.tools()
        result = await client.request("tools/call", {"name": tool["name"], "arguments": arguments})
    return [block["text"] for block in result["content"]], result.get("structuredContent")


DATA = {"number": 7, "total": 2.5}
COPY = '{"number":7,"total":2.5}'


@for_each_row(
    ("options", "texts"),
    [
        ({}, [COPY]),
        ({"text": "Order {number}: {total:.2f}"}, ["Order 7: 2.50"]),
        ({"text": lambda order: f"{order.number}, {order.note}"}, ["7, soon"]),
        ({"text": False}, []),
    ],
    ids=str,
)
async def test_a_copy_a_template_a_function_or_nothing_stands_beside_the_data(options: Any, texts: list[str]):
    assert await ask(make_server(**options), number=7) == (texts, DATA)


@for_each_row("option", [False, "Order {number}"], ids=str)
async def test_a_client_that_knows_no_structured_content_gets_the_copy(option: Any):
    assert await ask(make_server(text=option), "2025-03-26", number=7) == ([COPY], None)


async def test_a_template_names_a_list_by_the_key_under_which_it_is_sent():
    server = Server("shop", "1")

    @server.tool(text="Found {result[0]} first.")
    def find() -> list[str]:
        """Find."""
        return ["tea", "cup"]

    assert await ask(server) == (["Found tea first."], {"result": ["tea", "cup"]})


async def test_what_was_emitted_stays_before_the_text():
    server = Server("shop", "1")

    @server.tool(text=False)
    def order(ctx: Context) -> Order:
        """Order."""
        ctx.emit("looking")
        return Order(number=7, total=2.5)

    assert await ask(server) == (["looking"], DATA)


async def test_a_tool_under_another_name_keeps_its_text():
    outer = Server("mall", "1")
    outer.mount(make_server(text="Order {number}"), prefix="shop")
    assert await ask(outer, number=7) == (["Order 7"], DATA)


async def test_a_text_that_cannot_be_made_fails_the_call():
    server = make_server(text=lambda order: order.number)
    async with server.connect() as client:
        with pytest.raises(ToolError):
            await client.call("order", number=7)


@for_each_row(
    ("text", "problem"),
    [
        ("{nothing}", r"its text has \{nothing\}"),
        ("{note}", r"its text has \{note\}"),
        ("{number", "is no template"),
        (3, "text=3 is not possible"),
        (True, "text=True is not possible"),
    ],
    ids=str,
)
def test_a_text_that_no_result_can_have_is_refused_when_it_is_declared(text: Any, problem: str):
    with pytest.raises(UsageError, match=problem):
        make_server(text=text)


def test_a_text_is_for_structured_content_alone():
    server = Server("shop", "1")
    with pytest.raises(UsageError, match="text= is for structured content"):

        @server.tool(text="Hello")
        def greet() -> str:
            """Greet."""
            return ""


# -- The rule of `defserve check`.


def test_a_text_that_tells_more_than_the_data_is_reported():
    (found,) = only(read(make_server(text=lambda order: f"{order.number}, {order.note}")), "text-beside-data")
    assert "its text tells 'note'" in found.finding.problem


def test_content_emitted_beside_data_is_reported_with_its_line():
    server = Server("shop", "1")

    @server.tool
    def order(ctx: Context) -> Order:
        """Order."""
        ctx.emit("looking")
        return Order(number=7, total=2.5)

    (found,) = only(read(server), "text-beside-data")
    assert "emits content" in found.finding.problem and found.finding.where.rpartition(":")[2].isdecimal()


@for_each_row("option", [None, False, "Order {number}"], ids=str)
def test_a_text_of_the_data_alone_is_fine(option: Any):
    server = make_server() if option is None else make_server(text=option)
    assert only(read(server), "text-beside-data") == []


async def test_a_template_may_name_any_member_of_a_dict():
    server = Server("shop", "1")

    @server.tool(text="{name} costs {price}")
    def find() -> dict[str, str]:
        """Find."""
        return {"name": "tea", "price": "3"}

    assert await ask(server) == (["tea costs 3"], {"name": "tea", "price": "3"})
