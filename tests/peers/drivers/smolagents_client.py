"""smolagents: the tools of a server as those of an agent. Its client runs in a thread, so calls are made in one too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp import StdioServerParameters
from smolagents import MCPClient
from telling import PLAN, drive


class Smolagents:
    version = None

    def __init__(self, tools: dict[str, Any]):
        self.tools = tools

    async def names(self) -> list[str]:
        return list(self.tools)

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        result = await asyncio.to_thread(self.tools[tool].forward, **arguments)
        return str(result), result

    async def read(self, uri: str) -> str:
        raise NotImplementedError("smolagents reads no resources")

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        raise NotImplementedError("smolagents gets no prompts")


def parameters(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        return {"url": url or PLAN["url"], "transport": "streamable-http", "headers": headers}
    if PLAN["transport"] == "sse":
        return {"url": PLAN["sse"], "transport": "sse"}
    command, *args = PLAN["command"]
    return StdioServerParameters(command=command, args=args)


@asynccontextmanager
async def open_client(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Smolagents]:
    client = await asyncio.to_thread(
        MCPClient, parameters(url, headers), adapter_kwargs={"connect_timeout": 30}, structured_output=True
    )
    try:
        yield Smolagents({tool.name: tool for tool in client.get_tools()})
    finally:
        await asyncio.to_thread(client.disconnect)


drive(open_client)
