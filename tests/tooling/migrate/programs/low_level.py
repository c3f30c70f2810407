"""The low level of the official SDK, version 1."""

import asyncio

import mcp.types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

server = Server("prices")


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    return [
        types.Tool(
            name="price",
            description="The price of an item.",
            inputSchema={"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
        ),
        types.Tool(name="currency", description="What prices are in.", inputSchema={"type": "object"}),
    ]


@server.call_tool()
async def call_tool(name: str, arguments: dict) -> list[types.TextContent]:
    if name == "price":
        return [types.TextContent(type="text", text=f"{arguments['item']}: 2.5")]
    return [types.TextContent(type="text", text="EUR")]


async def main() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
