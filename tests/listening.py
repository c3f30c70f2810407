"""A server on a real socket of this process, with the deadlines and caps that `run` gives it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast

from defserve import Server
from defserve.auth.local_token import publish_local_key
from defserve.serve.address import Address
from defserve.serve.http.app import HttpApp
from defserve.serve.http1.connection import HttpConnection, TlsHandshake
from defserve.serve.network import Listener
from defserve.serve.session_opener import SessionOpener
from defserve.serve.sockets import bind_sockets
from defserve.server import web
from tests.raw import until

UPGRADE = (
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==",
)
"""The head of a request for a WebSocket."""


class Listening:
    """Where the server is, and the app it is made of."""

    def __init__(self, app: HttpApp, address: Address, listener: Any) -> None:
        self.app, self.address, self.listener = app, address, listener
        self.received = 0
        """Bytes that came on HTTP connections, all together."""

    @property
    def connections(self) -> int:
        return len(self.listener.state.connections)

    @property
    def authority(self) -> str:
        return f"{self.address.host}:{self.address.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which nothing is said yet."""
        if self.address.scheme == "unix":
            return await asyncio.open_unix_connection(self.address.host)
        return await asyncio.open_connection(self.address.host, self.address.port)

    async def write(self, writer: asyncio.StreamWriter, *pieces: bytes) -> None:
        """Send pieces, each of which is read before the next is sent. Nobody else may be sending."""
        for piece in pieces:
            expected = self.received + len(piece)
            writer.write(piece)
            await until(lambda expected=expected: self.received >= expected)

    async def ask(self, *lines: str, body: bytes = b"", verb: str = "POST", path: str = "/mcp") -> bytes:
        """The whole response to one request, on a connection of its own; `lines` are its headers."""
        reader, writer = await self.connect()
        writer.write(request(*lines, "connection: close", body=body, verb=verb, path=path))
        try:
            return await reader.read()
        finally:
            writer.close()


def request(*lines: str, body: bytes = b"", verb: str = "POST", path: str = "/mcp") -> bytes:
    """The bytes of a request; what it has to say and does not is filled in."""
    usual = {"host": "localhost"}
    if body:
        usual |= {"content-length": str(len(body)), "content-type": "application/json"}
    said = {line.partition(":")[0] for line in lines}
    about = [f"{name}: {value}" for name, value in usual.items() if name not in said]
    return "\r\n".join([f"{verb} {path} HTTP/1.1", *about, *lines, "", ""]).encode() + body


@asynccontextmanager
async def listening(server: Server, on: str = "http://127.0.0.1:0/mcp", **options: Any) -> AsyncIterator[Listening]:
    """Serve for as long as the block runs; who is still connected at its end is cut off."""
    address, given = Address.parse(on), cast(Any, options)
    local = options.get("local_token", False)
    with (
        bind_sockets(address) as sockets,
        publish_local_key(web.list_bound_addresses(sockets)) if local else nullcontext() as key,
    ):
        app = web.make_http_app(SessionOpener(server.composition), server.mcp, server.auth, given, address, key)
        listener: Any = Listener(app, address, web.make_network_options(given), server.limits, app.drain)
        if address.scheme != "unix":
            address = replace(address, port=sockets[0].getsockname()[1])
        where = Listening(app, address, listener)
        servers = [await _accept(where, one) for one in sockets]
        try:
            yield where
        finally:
            await _end(listener, servers)
            await app.provider.stop()


async def _accept(where: Listening, one: socket.socket) -> asyncio.Server:
    class CountedConnection(HttpConnection):
        def data_received(self, data: bytes) -> None:
            where.received += len(data)
            super().data_received(data)

    listener = where.listener

    def make() -> asyncio.Protocol:
        connection, certificate = CountedConnection(listener.state), listener._certificate
        return connection if certificate is None else TlsHandshake(connection, certificate.context)

    return await asyncio.get_running_loop().create_server(make, sock=one)


async def _end(listener: Any, servers: list[asyncio.Server]) -> None:
    for one in servers:
        one.close()
    for connection in list(listener.state.connections):
        connection.transport.abort()
    tasks = list(listener.state.tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await listener.state.close()
    await asyncio.sleep(0)


def find_free_port() -> int:
    """A port for a program that is not given port 0. The system gives it to nobody while that program is away."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as opened, suppress(OSError):
            opened.bind(("127.0.0.1", port))
            return port
    raise OSError("there is no free port")
