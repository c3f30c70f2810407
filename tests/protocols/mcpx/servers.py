"""A small server for topics, and how it joins one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from defserve import Context, Server
from defserve.protocols.mcpx.extension import TopicCarrier
from tests.protocols.mcpx.gateways import Json, TinyGateway


def calculator() -> Server:
    server = Server("calculator", "1")

    @server.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @server.tool
    async def announce(text: str, ctx: Context) -> str:
        """Say something to everyone."""
        await ctx.chat(text)
        return "said"

    @server.resource("note://one")
    def note() -> str:
        return "a note"

    return server


@asynccontextmanager
async def joined(server: Server, gateway: TinyGateway, name: str = "worker") -> AsyncGenerator[TopicCarrier]:
    async with server.join(f"mcpx+{gateway.url}", token=name):
        yield server.mcpx.carriers[-1]


def call(name: str, **arguments: Any) -> Json:
    return {"name": name, "arguments": arguments}
