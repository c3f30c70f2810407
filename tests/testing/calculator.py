"""A server of ours that uses what the fixtures script and collect."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from defserve import Context, Server

server = Server("calculator", "1.0", instructions="Count on me.")

cancelled = asyncio.Event()


class Name(BaseModel):
    name: str


class Point(BaseModel):
    x: int
    y: int = 0


@server.tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def half(of: float) -> float | None:
    """Half of a number; nothing of nothing."""
    return of / 2 if of else None


@server.tool
def names() -> list[str]:
    """Two names."""
    return ["Ann", "Bo"]


@server.tool
def mirror(point: Point) -> Point:
    """Swap the coordinates."""
    return Point(x=point.y, y=point.x)


@server.tool
def broken() -> str:
    """Fail."""
    raise RuntimeError("a secret")


@server.tool
async def greet(ctx: Context) -> str:
    """Greet whoever answers."""
    return f"hello {(await ctx.ask('Who?', Name)).name}"


@server.tool
async def work(ctx: Context) -> str:
    """Report progress and log."""
    for step in range(3):
        ctx.progress(step, 3)
    ctx.log.info("working")
    return "done"


@server.tool
async def wait() -> str:
    """Wait until called off."""
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()
    return "never"


@server.tool
def touch() -> None:
    """Say that the note has changed."""
    server.resource_updated("note://today")


@server.resource("note://today")
def note() -> str:
    """A note."""
    return "buy milk"


@server.prompt
def hi(name: str) -> str:
    """Say hi."""
    return f"hi {name}"


if __name__ == "__main__":
    server.main()
