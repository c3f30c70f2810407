"""The official Python client, of either major version: `ClientSession` of 1.x, `Client` of 2.x."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

import mcp
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from telling import GUEST, PLAN, STATELESS, drive, texts

IS_OLD = version("mcp").startswith("1.")
types = import_module("mcp.types" if IS_OLD else "mcp_types")
httpx = import_module("httpx" if IS_OLD else "httpx2")


class Official:
    def __init__(self, session: Any, version: str | None):
        self.session = session
        self.version = version

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        result = await self.session.call_tool(tool, arguments, progress_callback=note)
        return texts(result.content), result.structuredContent if IS_OLD else result.structured_content

    async def read(self, uri: str) -> str:
        return (await self.session.read_resource(uri)).contents[0].text

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        return [message.role for message in (await self.session.get_prompt(name, arguments)).messages]


async def elicited(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content=GUEST)


async def sampled(context: Any, params: Any) -> Any:
    content = types.TextContent(type="text", text="short")
    return types.CreateMessageResult(role="assistant", content=content, model="m")


ANSWERS = {"elicitation_callback": elicited, "sampling_callback": sampled}


def transport(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        client = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(30, read=60))
        return streamable_http_client(url or PLAN["url"], http_client=client)
    if PLAN["transport"] == "sse":
        return sse_client(PLAN["sse"])
    command, *args = PLAN["command"]
    return stdio_client(StdioServerParameters(command=command, args=args))


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Official]:
    way = transport(url, headers)
    if IS_OLD:
        async with way as streams, mcp.ClientSession(*streams[:2], **ANSWERS) as session:
            yield Official(session, (await session.initialize()).protocolVersion)
    else:
        mode = "auto" if PLAN["version"] == STATELESS else "legacy"
        async with mcp.Client(way, mode=mode, **ANSWERS) as client:
            yield Official(client, client.protocol_version)


drive(opened)
