"""Run by the command, on the port of its argument: a server with room for thousands of connections."""

from __future__ import annotations

import gc
import sys

from defserve import Limits, Server

ROOM = 30_000
server = Server(
    "load",
    "1",
    limits=Limits(connections=ROOM, sessions=ROOM, sessions_per_address=ROOM, subscriptions=ROOM, rate=1e9),
)


@server.tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@server.tool
async def write_text(length: int) -> str:
    """A text so long that its reader has to come back for the rest."""
    return "x" * length


@server.tool(inline=True)
def collect_garbage() -> int:
    """Collect garbage, so that memory can be weighed."""
    return gc.collect()


if __name__ == "__main__":
    server.run(f"http://127.0.0.1:{sys.argv[1]}/mcp")
