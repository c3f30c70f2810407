"""FastMCP's client, 2.x and 4.x, with its own handlers, errors and values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any

from fastmcp import Client
from fastmcp_parts import elicited, sampled, transport
from telling import PLAN, STATELESS, attempt, drive, texts
from touring import eventually, tour

IS_OLD = version("fastmcp").startswith("2.")


LISTS = {"tools": "list_tools", "templates": "list_resource_templates"}


class Prefect:
    def __init__(self, client: Any, heard: list[tuple[str, str]]):
        self.client = client
        self.heard = heard
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

    async def prompted(self, name: str, arguments: dict[str, str]) -> str:
        return texts(message.content for message in (await self.client.get_prompt(name, arguments)).messages)

    async def listed(self, kind: str) -> list[str]:
        items = await getattr(self.client, LISTS[kind])()
        return [item.name if kind == "tools" else item.uriTemplate if IS_OLD else item.uri_template for item in items]

    async def complete(self, ref: dict[str, str], argument: str, value: str) -> list[str]:
        types = import_module("mcp.types" if IS_OLD else "mcp_types")
        wanted = {"name": argument, "value": value}
        return (await self.client.complete(types.PromptReference(**ref), wanted)).values

    async def give_up(self, tool: str, arguments: dict[str, Any]) -> None:
        steps: list[float] = []
        calling = asyncio.create_task(self.call(tool, arguments, steps))
        await eventually(lambda: bool(steps) or calling.done())
        if IS_OLD:
            await self.client.cancel(self.client.session._request_id - 1)
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling


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
    heard: list[tuple[str, str]] = []

    async def logged(message: Any) -> None:
        heard.append(("log", str(message.data)))

    answers = {"elicitation_handler": elicited, "sampling_handler": sampled, "roots": [PLAN["root"]]}
    async with Client(transport(url, headers), log_handler=logged, **answers, **era) as client:
        prefect = Prefect(client, heard)
        yield prefect
        if url is None:
            if PLAN["version"] != STATELESS:
                await client.set_logging_level("debug")
            await tour(prefect)
            await attempt("values", lambda: values(client))
            await attempt("several servers", through_config)


drive(opened)
