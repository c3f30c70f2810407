"""A server whose workers share sessions: `SHARED=redis://… defserve run server.py --workers N`.

Its leases are short, so that the others soon know that a worker was killed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from itertools import count as counted

from defserve import Context, Limits, Server
from defserve.live import Channel, Event, ReceivedMessage, everyone
from defserve.stores.shared import worker_link

LEASE = 2.0
worker_link.LEASE, worker_link.BEAT = LEASE, LEASE / 5  # type: ignore[misc]

limits = Limits(sessions=100_000, sessions_per_address=100_000, rate=100_000, burst=100_000)
server = Server("shared", "1", store=os.environ["SHARED"], limits=limits)
announced: list[str] = []
live = server.feature_set("live", "Events and messages", uses=["pushEvents"])
rooms = server.channels("room", feature_set=live)
BEGAN, TICK_SECONDS = float(os.environ["BEGAN"]), 0.2


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


# -- for hosts that speak MCPL -----------------------------------------------------------------------------


@live.events
async def ticks() -> AsyncIterator[Event]:
    """A number now and then, from the first one again in whichever process goes on with them."""
    for number in counted():
        await asyncio.sleep(max(0.0, BEGAN + number * TICK_SECONDS - time.time()))
        yield Event("tick", id=f"tick {number}")


@live.tool
async def push(token: str, total: int) -> str:
    """Push events to who calls; the inferences that its receipts name."""
    receipts = [await live.push(token, id=f"{token} {number}") for number in range(total)]
    return "\n".join(str(receipt.inference_id) for receipt in receipts)


@live.tool
async def push_to_all(token: str, total: int) -> str:
    for number in range(total):
        await live.push(token, id=f"{token} {number}", to=everyone)
    return token


@rooms.open
async def open_room(address: str) -> Channel:
    return Channel(f"room:{address}", address=address)


@live.tool
async def say(address: str, token: str, total: int) -> str:
    """Say something in the room of who calls; the conversations that its receipts name."""
    said = [ReceivedMessage(f"room:{address}", token, author="u1", id=f"{token} {number}") for number in range(total)]
    receipts = [receipt for some in (said[:2], said[2:]) if some for receipt in await rooms.incoming(some)]
    return "\n".join(str(receipt.conversation_id) for receipt in receipts)
