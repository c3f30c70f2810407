"""dspy: the tools of a server as those of its agents. It resolves the references of each input schema itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import dspy
import httpx2
import mcp
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from telling import PLAN, drive


class Dspy:
    version = None

    def __init__(self, tools: dict[str, list[Any]]):
        self.tools = tools

    async def names(self) -> list[str]:
        return list(self.tools)

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        # A tool of dspy gives one of the two, so there is one for each.
        text, structured = self.tools[tool]
        return str(await text.acall(**arguments)), await structured.acall(**arguments)

    async def read(self, uri: str) -> str:
        raise NotImplementedError("its tools read no resources")

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        raise NotImplementedError("its tools get no prompts")


def make_transport(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        return streamable_http_client(url or PLAN["url"], http_client=httpx2.AsyncClient(headers=headers))
    if PLAN["transport"] == "sse":
        return sse_client(PLAN["sse"])
    command, *args = PLAN["command"]
    return stdio_client(StdioServerParameters(command=command, args=args))


@asynccontextmanager
async def open_client(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Dspy]:
    async with mcp.Client(make_transport(url, headers)) as client:
        listed = (await client.list_tools()).tools
        modes = ("text", "structured")
        yield Dspy(
            {tool.name: [dspy.Tool.from_mcp_tool(client, tool, result_mode=mode) for mode in modes] for tool in listed}
        )


drive(open_client)
