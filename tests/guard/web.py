"""A pretended internet: names with addresses, and one real server that every public address leads to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpcore2
import pytest

Handler = Callable[["Heard"], bytes | Awaitable[bytes]]

PUBLIC, OTHER, SIXTH = "8.8.8.8", "9.9.9.9", "2606:4700::1111"


class Heard:
    """One request as the server got it."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode().rstrip().split("\r\n")
        self.method, self.path, _ = first.split(" ")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = body


class Web:
    """`names` maps a host to its addresses, or to a list of such answers, one for each time it is asked."""

    def __init__(self, handler: Handler, names: dict[str, Any]) -> None:
        self.handler, self.names = handler, names
        self.port = 0
        self.heard: list[Heard] = []
        self.asked: list[str] = []
        self.dialled: list[str] = []
        self.unreachable: set[str] = set()
        self.server_name: str | None = None

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        known = self.names[host]
        if isinstance(known, list):
            known = known.pop(0)
        if isinstance(known, BaseException):
            raise known
        return known

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heard = Heard(head, b"")
                heard.body = await reader.readexactly(int(heard.headers.get("content-length", 0)))
                self.heard.append(heard)
                answer = self.handler(heard)
                writer.write(answer if isinstance(answer, bytes) else await answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(body: bytes = b"ok", *lines: str, status: str = "200 OK") -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", f"content-length: {len(body)}", *lines))
    return head.encode() + b"\r\n" + body


def moved(to: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"location: {to}", status=status)


@asynccontextmanager
async def web(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, names: dict[str, Any], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Web]:
    """Public addresses are dialled at the local server; every other one at itself."""
    net = Web(handler, names)
    dial = httpcore2.AnyIOBackend.connect_tcp  # pyright: ignore

    async def connect_tcp(self: Any, host: str, port: int, *rest: Any, **named: Any) -> Any:
        net.dialled.append(host)
        if host in net.unreachable:
            raise httpcore2.ConnectError("unreachable")
        public = host in (PUBLIC, OTHER, SIXTH)
        return await dial(self, "127.0.0.1" if public else host, net.port if public else port, *rest, **named)

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect_tcp)
    if tls is not None:
        tls.sni_callback = lambda sock, name, context: setattr(net, "server_name", name)
    server = await asyncio.start_server(net.serve, "127.0.0.1", 0, ssl=tls)
    net.port = server.sockets[0].getsockname()[1]
    try:
        yield net
    finally:
        server.close()
