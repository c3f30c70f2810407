"""Input schemas: `properties` is always there. Some clients read it unasked, and lose the whole server without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from defserve import Server
from defserve.protocols.mgp import meta_tools, server_discovery
from defserve.search import Search
from tests.openapi.apis import document, operation
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def with_a_tool(**options: Any) -> Server:
    server = Server("t", **options)

    @server.tool
    def roll() -> int:
        """Roll a die."""
        return 4

    return server


def with_an_own_schema() -> Server:
    server = Server("t")

    @server.tool(schema={"type": "object"})
    def roll(**rest: Any) -> int:
        """Roll a die."""
        return 4

    return server


def of_openapi() -> Server:
    return Server.from_openapi(document({"/roll": {"get": operation(operationId="roll")}}))


def mounting() -> Server:
    server = Server("front")
    server.mount(with_a_tool(), prefix="back")
    return server


async def listed(make: Callable[[], Server]) -> list[dict[str, Any]]:
    async with make().connect() as client:
        return [dict(tool) for tool in await client.tools()]


@for_each_row(
    "make",
    [
        with_a_tool,
        with_an_own_schema,
        of_openapi,
        mounting,
        lambda: with_a_tool(code_mode=True),
        lambda: with_a_tool(search="always"),
        lambda: with_a_tool(search=Search(level="L3")),
    ],
)
async def test_every_listed_tool_has_properties(make: Callable[[], Server]):
    tools = await listed(make)
    assert tools and all(isinstance(tool["inputSchema"]["properties"], dict) for tool in tools), tools


def test_the_tools_of_a_kernel_and_of_a_search_have_properties():
    schemas = [*meta_tools.SCHEMAS.values(), *(spec.schema for spec in server_discovery.DISCOVERY_TOOL_SPECS.values())]
    assert schemas and all("properties" in schema for schema in schemas)
