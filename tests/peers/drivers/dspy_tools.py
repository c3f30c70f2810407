"""dspy: the tools of a server as those of its agents. It resolves the references of each input schema itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import dspy
from mcp import ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from telling import PLAN, drive


class Dspy:
    version = None

    def __init__(self, tools: dict[str, Any]):
        self.tools = tools

    async def names(self) -> list[str]:
        return list(self.tools)

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        # It gives agents the text alone; of structured content that is the copy.
        text = str(await self.tools[tool].acall(**arguments))
        return text, json.loads(text) if text.startswith("{") else None

    async def read(self, uri: str) -> str:
        raise NotImplementedError("its tools read no resources")

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        raise NotImplementedError("its tools get no prompts")


def make_transport(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        return streamablehttp_client(url or PLAN["url"], headers=headers)
    if PLAN["transport"] == "sse":
        return sse_client(PLAN["sse"])
    command, *args = PLAN["command"]
    return stdio_client(StdioServerParameters(command=command, args=args))


@asynccontextmanager
async def open_client(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Dspy]:
    async with AsyncExitStack() as stack:
        streams = await stack.enter_async_context(make_transport(url, headers))
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await session.initialize()
        listed = (await session.list_tools()).tools
        yield Dspy({tool.name: dspy.Tool.from_mcp_tool(session, tool) for tool in listed})


drive(open_client)
