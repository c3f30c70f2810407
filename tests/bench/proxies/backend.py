"""The server behind every proxy: `backend.py PORT FILE`, or `stdio:` for PORT.

FILE grows by a byte for each conversation that is opened.
"""

import asyncio
import sys
from typing import Any

from defserve import Server

server = Server("backend", instructions="It adds.")
opened = open(sys.argv[2], "ab", buffering=0)  # noqa: SIM115  as long as the process


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def hang() -> None:
    """Never answer."""
    await asyncio.Event().wait()


async def count(call: Any, params: Any, next: Any) -> Any:
    opened.write(b".")
    return await next(call, params)


for opening in ("initialize", "server/discover"):
    server.around(opening)(count)

if __name__ == "__main__":
    where = sys.argv[1]
    server.run(on=f"http://127.0.0.1:{where}/mcp" if where.isdigit() else where)
