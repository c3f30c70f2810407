"""A server for the tests of HTTP, with tools that wait, talk and ask as a test tells them to."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field

from defserve import Context, Limits, Server
from tests.asgi import Exchange
from tests.raw import turns, until


class Tools:
    """The server under test, and the handles by which a test steers its tools."""

    def __init__(self, shared: str | None = None, **limits: Any) -> None:
        self.server = Server("web", "1", limits=Limits(**limits), shared=shared, secret="s" * 32)
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.finished = asyncio.Event()
        self.server.tool(self.add)
        self.server.tool(self.wait)
        self.server.tool(self.chat)
        self.server.tool(self.region)
        self.server.tool(self.ask)
        self.server.tool(self.everything)
        self.server.resource("memo://a")(self.memo)

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def wait(self, ctx: Context) -> str:
        """Say nothing until the test lets go."""
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.finished.set()
        return "waited"

    async def chat(self, ctx: Context, messages: int = 1) -> str:
        """Log, then wait until the test lets go."""
        self.begun.set()
        for number in range(messages):
            ctx.log.info("message", number=number)
        await self.go.wait()
        return "chatted"

    async def region(self, region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        return region

    async def ask(self, ctx: Context) -> str:
        return f"hello {await ctx.ask('Your name?', str)}"

    async def everything(self, ctx: Context) -> str:
        sample = await ctx.sample("Write a line.")
        roots = await ctx.roots()
        return f"{sample.text} {roots[0].uri}"

    async def memo(self) -> str:
        return "a"


async def settled(app: Any) -> None:
    """Until everything that was said is in the logs of its sessions."""
    await turns()
    link = getattr(app.streamable.logs, "link", None)
    if link is not None:  # in memory it is at once
        await until(lambda: link.has_read_own_updates and link.handled_news == link.last_read_update_id)
        await until(lambda: link.is_written)
        await turns()


def is_json(exchange: Exchange) -> bool:
    return exchange.headers["content-type"] == "application/json"


def is_stream(exchange: Exchange) -> bool:
    return exchange.headers["content-type"] == "text/event-stream"
