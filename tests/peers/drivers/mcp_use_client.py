"""mcp-use: its client made from a configuration, as its users do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.types import CreateMessageResult, ElicitResult, TextContent
from mcp_use import MCPClient
from telling import GUEST, PLAN, drive, texts


class McpUse:
    version = None

    def __init__(self, session: Any):
        self.session = session

    async def names(self) -> list[str]:
        return [tool.name for tool in await self.session.list_tools()]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        result = await self.session.call_tool(tool, arguments)
        return texts(result.content), result.structuredContent

    async def read(self, uri: str) -> str:
        return (await self.session.read_resource(uri)).contents[0].text

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        return [message.role for message in (await self.session.get_prompt(name, arguments)).messages]


async def elicited(*_: Any) -> Any:
    return ElicitResult(action="accept", content=GUEST)


async def sampled(*_: Any) -> Any:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="short"), model="m")


def configured(url: str | None, headers: dict[str, str]) -> dict[str, Any]:
    if url or PLAN["transport"] == "http":
        return {"url": url or PLAN["url"], "headers": headers}
    if PLAN["transport"] == "sse":
        return {"url": PLAN["sse"], "transport": "sse"}
    command, *args = PLAN["command"]
    return {"command": command, "args": args}


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[McpUse]:
    config = {"mcpServers": {"shop": configured(url, headers)}}
    client = MCPClient.from_dict(config, elicitation_callback=elicited, sampling_callback=sampled)
    try:
        yield McpUse(await client.create_session("shop"))
    finally:
        await client.close_all_sessions()


drive(opened)
