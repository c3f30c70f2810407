"""One of several servers in a house: they share a Redis and a secret, and nothing else. HOUSE_NAME says which it is."""

from __future__ import annotations

import asyncio
import os

from defserve import Context, Server, safe

server = Server(
    os.environ["HOUSE_NAME"],
    "1",
    store=os.environ["HOUSE_REDIS"],
    secret="one secret for everything in this house",
)


@server.tool
@safe
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
@safe
async def greet(ctx: Context) -> str:
    """Has an effect, and then asks."""
    done = await ctx.once("effect", lambda: f"an effect at {server.name}")
    return f"{done}, {await ctx.ask('Your name?', str, key='name')}"


@server.tool(task="required")
@safe
async def wait() -> str:
    """A task without an end."""
    await asyncio.Event().wait()
    return ""
