"""Requests that are sent before the answers are read: all are answered in order, and only a few are taken early."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from defserve import Server
from tests.listening import Listening, listening, request
from tests.raw import PREFIX, STATELESS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COUNT = 500
MEGABYTE = 1024 * 1024
# What the two kernels, and one read of the server, may take of a client.
TAKEN = 12 * MEGABYTE


def parrot() -> Server:
    server = Server("parrot", "1")

    @server.tool
    def echo(text: str) -> str:  # in a thread: the request waits, and listens for the end of its client
        return text

    return server


def a_call(text: str, id: int = 1) -> bytes:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"name": "echo", "arguments": {"text": text}, "_meta": meta}
    about = f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/call", "mcp-name: echo"
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()
    return request("accept: application/json, text/event-stream", *about, body=body)


async def test_many_calls_in_one_write_are_answered_in_order():
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        writer.write(b"".join(a_call("x" * 300, id) for id in range(COUNT)))
        for id in range(COUNT):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["id"] == id
        writer.close()


async def test_calls_whose_answers_nobody_reads_stay_in_the_network():
    async with listening(parrot()) as where:
        assert await _taken(where, a_call("a" * 100) * 200) < TAKEN


async def _taken(where: Listening, piece: bytes) -> int:
    """Send without an end, and read nothing. How many bytes were taken before no more were."""
    loop, taken = asyncio.get_running_loop(), 0
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, (where.address.host, where.address.port))
        try:
            while taken <= TAKEN:
                async with asyncio.timeout(1):
                    await loop.sock_sendall(client, piece)
                taken += len(piece)
        except (TimeoutError, ConnectionError):
            pass
    return taken
