"""The floor over HTTP: a plain `asyncio.Protocol` on httptools, with the JSON work of one call and nothing else.

No ASGI, no task for a call, no header looked at, no limits. The tool is awaited as a coroutine that never waits: this
server can do no other.
"""

from __future__ import annotations

import asyncio
import sys

import httptools
import uvloop
from bare_http import reply_to
from pydantic_core import from_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RawConnection(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport, self.body = transport, b""
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        try:
            reply_to(from_json(body)).send(None)
        except StopIteration as done:
            status, headers, answer = done.value
        else:
            raise RuntimeError("the tool waits, and this server cannot")
        more = b"".join(b"%b: %b\r\n" % header for header in headers)
        head = b"HTTP/1.1 %d OK\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, more, len(answer)) + answer)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(RawConnection, "127.0.0.1", int(sys.argv[1]), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
