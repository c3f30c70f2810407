"""Pydantic AI: an agent with the server as a toolset calls tools, with a function in the place of the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp.client import Client
from fastmcp_parts import elicited, sampled, transport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from telling import PLAN, STATELESS, drive


class Pydantic:
    def __init__(self, toolset: Any, client: Any, steps: list[float]):
        self.toolset = toolset
        self.steps = steps
        self.version = client.session.protocol_version

    async def names(self) -> list[str]:
        return [tool.name for tool in await self.toolset.list_tools()]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        """The model asks for the tool, and ends when it has seen what came of that."""
        self.steps.clear()
        seen: list[Any] = []

        async def model(messages: list[Any], info: Any) -> ModelResponse:
            last = messages[-1].parts[-1]
            if getattr(last, "tool_name", None) != tool:
                return ModelResponse(parts=[ToolCallPart(tool, arguments)])
            seen.append(last.content)
            return ModelResponse(parts=[TextPart("done")])

        run = await Agent(FunctionModel(model), toolsets=[self.toolset]).run("go")
        returned = [p for m in run.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
        steps += self.steps
        return str(seen[-1]), returned[-1].content if returned else None

    async def read(self, uri: str) -> str:
        return await self.toolset.read_resource(uri)

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        return [message.role for message in (await self.toolset.get_prompt(name, arguments)).messages]


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Pydantic]:
    steps: list[float] = []

    async def note(progress: float, *_: Any) -> None:
        steps.append(progress)

    handlers = {"elicitation_handler": elicited, "sampling_handler": sampled, "progress_handler": note}
    mode = "auto" if PLAN["version"] == STATELESS else "legacy"
    client = Client(transport(url, headers), mode=mode, **handlers)
    async with MCPToolset(client) as toolset:
        yield Pydantic(toolset, client, steps)


drive(opened)
