"""Run by the command, on the port of its argument: connections of a bare `asyncio.Protocol`, to compare memory with."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class BareConnection(asyncio.Protocol):
    """Answers each piece of data, and is otherwise idle."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's is no subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        self.transport.write(RESPONSE)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(BareConnection, "127.0.0.1", int(sys.argv[1]), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
