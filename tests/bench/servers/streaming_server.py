"""defserve with a tool that streams and one that sleeps; a port as argument serves HTTP, none stdio."""

import sys
import time
from collections.abc import AsyncIterator

from defserve import Server

server = Server("bench")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def count(chunks: int) -> AsyncIterator[str]:
    """Give numbers, one at a time."""
    for number in range(chunks):
        yield f"{number},"


@server.tool
def nap(seconds: float) -> str:
    """Hold a worker thread."""
    time.sleep(seconds)
    return "rested"


if __name__ == "__main__":
    server.run(on="stdio:" if sys.argv[1] == "stdio" else f"http://127.0.0.1:{sys.argv[1]}/mcp")
