"""The MCP servers of the OpenAI Agents SDK, as its agents use them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from telling import PLAN, drive, texts


class AgentsSdk:
    version = None

    def __init__(self, server: Any):
        self.server = server

    async def names(self) -> list[str]:
        return [tool.name for tool in await self.server.list_tools()]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        result = await self.server.call_tool(tool, arguments)
        return texts(result.content), getattr(result, "structuredContent", None) or getattr(
            result, "structured_content", None
        )

    async def read(self, uri: str) -> str:
        return (await self.server.read_resource(uri)).contents[0].text

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        return [message.role for message in (await self.server.get_prompt(name, arguments)).messages]


def server(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        return MCPServerStreamableHttp({"url": url or PLAN["url"], "headers": headers})
    if PLAN["transport"] == "sse":
        return MCPServerSse({"url": PLAN["sse"]})
    command, *args = PLAN["command"]
    return MCPServerStdio({"command": command, "args": args})


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[AgentsSdk]:
    async with server(url, headers) as connected:
        yield AgentsSdk(connected)


drive(opened)
