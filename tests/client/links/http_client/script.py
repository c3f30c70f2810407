"""A server on a loopback socket that is one function of a connection: nothing about HTTP is done for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Wire:
    """One connection, as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> bytes:
        """The next request, head and body. Raises IncompleteReadError at the end of the connection."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return head + (await self.reader.readexactly(int(length[0].partition(b":")[2])) if length else b"")

    async def say(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    def reset(self) -> None:
        """End the connection as a crash does: without the end of a stream."""
        self.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )
        self.writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the client has closed the connection."""
        while await self.reader.read(65536):
            pass


class Script:
    def __init__(self, url: str) -> None:
        self.url = url
        self.connections = 0
        self.requests: list[bytes] = []


@asynccontextmanager
async def script(
    serve: Callable[[Wire, Script], Awaitable[None]], host: str = "127.0.0.1", **options: Any
) -> AsyncGenerator[Script]:
    """Run `serve` for every connection, for as long as the block runs."""
    wires: list[Wire] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        wires.append(wire)
        told.connections += 1
        try:
            await serve(wire, told)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, host, 0, **options)
    port = server.sockets[0].getsockname()[1]
    named = f"[{host}]" if ":" in host else host
    told = Script(f"{'https' if 'ssl' in options else 'http'}://{named}:{port}/mcp")
    try:
        yield told
    finally:
        server.close()
        for wire in wires:
            wire.writer.transport.abort()
        await asyncio.sleep(0)
