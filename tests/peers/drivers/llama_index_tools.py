"""LlamaIndex: the tools of a server as those of its agents. It makes a pydantic model of each input schema."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from llama_index.tools.mcp import BasicMCPClient, McpToolSpec
from telling import PLAN, drive


class LlamaIndex:
    version = None

    def __init__(self, tools: dict[str, Any]):
        self.tools = tools

    async def names(self) -> list[str]:
        return list(self.tools)

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        checked = self.tools[tool].metadata.fn_schema(**arguments).model_dump(exclude_unset=True)
        result = (await self.tools[tool].acall(**checked)).raw_output
        return " ".join(block.text for block in result.content), result.structured_content

    async def read(self, uri: str) -> str:
        raise NotImplementedError("its tools read no resources")

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        raise NotImplementedError("its tools get no prompts")


def make_client(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        return BasicMCPClient(url or PLAN["url"], headers=headers)
    if PLAN["transport"] == "sse":
        return BasicMCPClient(PLAN["sse"])
    command, *args = PLAN["command"]
    return BasicMCPClient(command, args=args)


@asynccontextmanager
async def open_client(url: str | None, headers: dict[str, str]) -> AsyncGenerator[LlamaIndex]:
    tools = await McpToolSpec(client=make_client(url, headers)).to_tool_list_async()
    yield LlamaIndex({tool.metadata.name: tool for tool in tools})


drive(open_client)
