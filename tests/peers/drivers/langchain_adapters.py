"""LangChain's MCP adapters: the server's tools as LangChain tools, called as an agent calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult
from telling import GUEST, PLAN, drive


class LangChain:
    version = None

    def __init__(self, client: Any, tools: dict[str, Any], steps: list[float]):
        self.client = client
        self.tools = tools
        self.steps = steps

    async def names(self) -> list[str]:
        return list(self.tools)

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        self.steps.clear()
        request = {"name": tool, "args": arguments, "id": "1", "type": "tool_call"}
        message = await self.tools[tool].ainvoke(request)
        steps += self.steps
        blocks = message.content if isinstance(message.content, list) else [{"text": message.content}]
        return " ".join(block["text"] for block in blocks), (message.artifact or {}).get("structured_content")

    async def read(self, uri: str) -> str:
        return (await self.client.get_resources("shop", uris=[uri]))[0].as_string()

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        roles = {"human": "user", "ai": "assistant"}
        return [roles[message.type] for message in await self.client.get_prompt("shop", name, arguments=arguments)]


async def elicited(*_: Any) -> Any:
    return ElicitResult(action="accept", content=GUEST)


def connection(url: str | None, headers: dict[str, str]) -> dict[str, Any]:
    if url or PLAN["transport"] == "http":
        return {"transport": "streamable_http", "url": url or PLAN["url"], "headers": headers}
    if PLAN["transport"] == "sse":
        return {"transport": "sse", "url": PLAN["sse"]}
    command, *args = PLAN["command"]
    return {"transport": "stdio", "command": command, "args": args}


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[LangChain]:
    steps: list[float] = []

    async def note(progress: float, *_: Any) -> None:
        steps.append(progress)

    callbacks = Callbacks(on_progress=note, on_elicitation=elicited)
    client = MultiServerMCPClient({"shop": connection(url, headers)}, callbacks=callbacks)  # pyright: ignore
    yield LangChain(client, {tool.name: tool for tool in await client.get_tools()}, steps)


drive(opened)
