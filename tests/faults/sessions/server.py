"""A server whose workers share sessions: `SHARED=redis://… defserve run server.py --workers N`.

Its leases are short, so that the others soon know that a worker was killed.
"""

from __future__ import annotations

import asyncio
import os

from defserve import Context, Limits, Server
from defserve.stores.shared import link

LEASE = 2.0
link.LEASE, link.BEAT = LEASE, LEASE / 5  # type: ignore[misc]

limits = Limits(sessions=100_000, sessions_per_address=100_000, rate=100_000, burst=100_000)
server = Server("shared", "1", store=os.environ["SHARED"], limits=limits)
announced: list[str] = []


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
async def count(total: int, token: str, ctx: Context) -> str:
    """Say the numbers up to a total, one after the other."""
    for number in range(total):
        ctx.log.info(f"{token} {number}")
        await asyncio.sleep(0.02)
    return f"{total} counted"


@server.tool
async def ask(token: str, ctx: Context) -> str:
    return await ctx.ask(token, str)


@server.tool
async def touch(uri: str) -> str:
    server.resource_updated(uri)
    return uri


def greet() -> str:
    return "hello"


@server.tool
async def announce(token: str) -> str:
    """Change the list of prompts, once."""
    if announced:
        server.remove_prompt(announced.pop())
    else:
        announced.append(name := token.replace("/", "."))
        server.add_prompt(greet, name=name)
    return token


@server.resource("memo://{name}/{number}")
async def memo(name: str, number: str) -> str:
    return name + number
