"""A server of ours whose tools give their results piece by piece, for a host to read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from defserve import Context, Image, Server
from defserve.errors import ToolError

server = Server("flowing", "1.0", server_id="test.flowing")

PNG = b"\x89PNG\r\n\x1a\n"


@server.tool
async def words() -> AsyncIterator[str]:
    """Three words."""
    for word in ("one ", "two ", "three"):
        yield word


@server.tool
def numbers(upto: int) -> Iterator[str]:
    """Numbers, from a thread."""
    for number in range(upto):
        yield f"{number},"


@server.tool
async def blocks(count: int) -> AsyncIterator[str]:
    """Large pieces."""
    for _ in range(count):
        yield "x" * 8_000


@server.tool
async def forever() -> AsyncIterator[str]:
    """Count until somebody says stop."""
    number = 0
    while True:
        number += 1
        yield f"{number} "
        await asyncio.sleep(0.001)


@server.tool
async def pictured() -> AsyncIterator[str | Image]:
    """A text and a picture."""
    yield "look: "
    yield Image(PNG)


@server.tool
async def broken() -> AsyncIterator[str]:
    """Fail half-way."""
    yield "one "
    raise ToolError("no more words")


@server.tool
async def asking(ctx: Context) -> str:
    """Ask half-way."""
    ctx.emit("one ")
    answer = await ctx.confirm("Go on?")
    ctx.emit("two ")
    return f"{answer}"


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers, and nothing on the way."""
    return a + b


@server.health_check
def has_words() -> bool:
    return True


@server.health_check
def has_ink() -> str:
    return "the well is dry"
