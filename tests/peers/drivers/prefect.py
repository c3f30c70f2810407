"""FastMCP's client, 2.x and 4.x, with its own handlers, errors and values."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastmcp import Client
from fastmcp_parts import elicited, sampled, transport
from telling import PLAN, STATELESS, attempt, drive, texts

IS_OLD = version("fastmcp").startswith("2.")


class Prefect:
    def __init__(self, client: Any):
        self.client = client
        self.version = client.initialize_result.protocolVersion if IS_OLD else client.session.protocol_version

    async def names(self) -> list[str]:
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        result = await self.client.call_tool(tool, arguments, progress_handler=note)
        return texts(result.content), result.structured_content

    async def read(self, uri: str) -> str:
        return (await self.client.read_resource(uri))[0].text

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        return [message.role for message in (await self.client.get_prompt(name, arguments)).messages]


async def values(client: Any) -> list[Any]:
    """What it makes of structured content by the schema: an object whose `result` is the value."""
    return [(await client.call_tool("primes")).data.result, (await client.call_tool("find", {"name": "x"})).data.result]


async def through_config() -> Any:
    """Its client for several servers, which has a proxy of its own in between."""
    servers = {name: {"url": PLAN["url"], "transport": "http"} for name in ("first", "second")}
    async with Client({"mcpServers": servers}) as client:
        return (await client.call_tool("first_primes")).structured_content


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Prefect]:
    era = {} if IS_OLD else {"mode": "auto" if PLAN["version"] == STATELESS else "legacy"}
    async with Client(transport(url, headers), elicitation_handler=elicited, sampling_handler=sampled, **era) as client:
        yield Prefect(client)
        if url is None:
            await attempt("values", lambda: values(client))
            await attempt("several servers", through_config)


drive(opened)
