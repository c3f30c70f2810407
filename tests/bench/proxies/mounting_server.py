"""A tool of our own beside mounted servers: `mounting_server.py PORT COUNT URL`."""

import sys

from defserve import Server

server = Server("mounting")
count = int(sys.argv[2])
for number in range(count):
    server.mount(sys.argv[3], prefix=f"s{number}")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(inline=True)
def connected() -> int:
    """How many of the mounted servers are connected."""
    return count and sum(backend.state == "connected" for backend in server.mounts.backends.values())


if __name__ == "__main__":
    server.run(on=f"http://127.0.0.1:{sys.argv[1]}/mcp")
