"""Run by the scenarios as a process of its own: a server with tools for them, which counts its asyncio tasks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from defserve import Context, Limits, Server

VITALS = Path(os.environ["SOAK_VITALS"])


async def count_tasks() -> None:
    new = VITALS.with_suffix(f".{os.getpid()}")
    while True:
        new.write_text(str(len(asyncio.all_tasks())))
        new.replace(VITALS)
        await asyncio.sleep(0.5)


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[None]:
    counting = asyncio.create_task(count_tasks())
    yield
    counting.cancel()


limits = Limits(
    idle=float(os.environ.get("SOAK_IDLE", "1800")), sessions_per_address=10_000, question=5, tasks=100_000, rate=1e9
)
server = Server("soak", "1", lifespan=lifespan, limits=limits, store=os.environ.get("SOAK_STORE"))
ticking = server.feature_set("soak.ticking", "Tell the time", uses=["pushEvents"])


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "slept"


@server.tool
async def count(n: int, ctx: Context) -> str:
    """Report progress n times, with some text."""
    for number in range(n):
        ctx.progress(number, n, "x" * 200)
        await asyncio.sleep(0)
    return "counted"


@server.tool(task="required", ttl=5)
async def job(seconds: float) -> str:
    """A task."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool
async def tick(n: int) -> str:
    """Push n events."""
    for number in range(n):
        await ticking.push(f"tick {number}")
    return "ticked"


if __name__ == "__main__":
    server.main()
