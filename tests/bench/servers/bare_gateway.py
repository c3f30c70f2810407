"""The yardstick of a gateway: what comes in goes out to everyone, by the broadcast that websockets brings. No rules."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve

everyone: set[ServerConnection] = set()


async def attend(connection: ServerConnection) -> None:
    everyone.add(connection)
    try:
        async for message in connection:
            broadcast(everyone, message)
    finally:
        everyone.discard(connection)


async def main() -> None:
    # The clients answer no pings.
    async with serve(attend, "127.0.0.1", int(sys.argv[1]), compression=None, ping_interval=None) as server:
        await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
