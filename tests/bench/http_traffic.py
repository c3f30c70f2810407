"""Requests over keep-alive connections for a while, and how long each took. Sockets and epoll, to stay light."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any, NamedTuple

from .http_process import HttpServer
from .processes import HANDSHAKE_VERSION, STATELESS_META, STATELESS_VERSION
from .traffic import Timing

# Ids of one length, so that a request's Content-Length is known beforehand.
FIRST_ID = 1_000_000
HEAD = (
    "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json, text/event-stream\r\n"
    "Content-Type: application/json\r\nUser-Agent: bench\r\n{more}Content-Length: {length}\r\n\r\n"
)
CHUNKED_END = b"0\r\n\r\n"
LENGTH = b"content-length: "
NODES_LENGTH = b"Content-Length: "
SESSION = re.compile(rb"mcp-session-id: (\S+)")


class HttpRequest(NamedTuple):
    """A request encoded but for its id, which is put between the two parts."""

    before_id: bytes
    after_id: bytes

    @classmethod
    def of(cls, port: int, message: dict[str, Any], headers: dict[str, str]) -> HttpRequest:
        body = json.dumps({"jsonrpc": "2.0", "id": FIRST_ID, **message}, separators=(",", ":"))
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        whole = HEAD.format(port=port, more=more, length=len(body)) + body
        before, _, after = whole.rpartition(f'"id":{FIRST_ID}')
        return cls(f'{before}"id":'.encode(), after.encode())

    def numbered(self, id: int) -> bytes:
        return self.before_id + b"%d" % id + self.after_id


class Connection:
    """One keep-alive connection, with a request on it or none."""

    __slots__ = ("socket", "request", "sent_at", "reply")

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.request = HttpRequest(b"", b"")
        self.sent_at = 0.0
        self.reply = b""


@contextmanager
def connected(server: HttpServer, count: int) -> Generator[list[Connection]]:
    with ExitStack() as stack:
        made: list[Connection] = []
        for _ in range(count):
            opened = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.append(Connection(opened))
        yield made


def call(
    server: HttpServer, tool: str, arguments: dict[str, Any], session: str | None, more: dict[str, str] | None = None
) -> HttpRequest:
    """A tools/call in a session, or, with None, one that stands alone; `more` headers."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if session is not None:
        headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": HANDSHAKE_VERSION}
    else:
        params["_meta"] = STATELESS_META
        headers = {"MCP-Protocol-Version": STATELESS_VERSION, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    return HttpRequest.of(server.port, {"method": "tools/call", "params": params}, {**headers, **(more or {})})


def open_session(server: HttpServer, connection: Connection, capabilities: dict[str, Any] | None = None) -> str:
    """Shake hands; the id of the session."""
    client = {"name": "bench", "version": "1"}
    params = {"protocolVersion": HANDSHAKE_VERSION, "capabilities": capabilities or {}, "clientInfo": client}
    opening = HttpRequest.of(server.port, {"method": "initialize", "params": params}, {})
    head = exchange(server, connection, opening.numbered(FIRST_ID)).partition(b"\r\n\r\n")[0]
    found = SESSION.search(head)
    if found is None:
        raise server.failed(f"initialize answered {head!r}")
    session = found[1].decode()
    body = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
    more = f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {HANDSHAKE_VERSION}\r\n"
    exchange(server, connection, (HEAD.format(port=server.port, more=more, length=len(body)) + body).encode())
    return session


def exchange(server: HttpServer, connection: Connection, request: bytes) -> bytes:
    """One request and its whole reply, whatever else waits."""
    connection.socket.setblocking(True)
    connection.socket.sendall(request)
    reply = b""
    while not is_whole(reply):
        data = connection.socket.recv(65536)
        if not data:
            raise server.failed("the connection ended")
        reply += data
    if not reply.startswith(b"HTTP/1.1 2"):
        raise server.failed(f"a request answered {reply[:500]!r}")
    return reply


def is_whole(reply: bytes) -> bool:
    """Whether a reply has arrived to its end."""
    head = reply.find(b"\r\n\r\n")
    if head < 0:
        return False
    at = reply.find(LENGTH, 0, head)
    if at < 0:
        at = reply.find(NODES_LENGTH, 0, head)
    if at < 0:
        return reply.endswith(CHUNKED_END)
    digits = reply[at + len(LENGTH) : reply.index(b"\r\n", at)]
    return len(reply) >= head + 4 + int(digits)


def drive(server: HttpServer, connections: Sequence[Connection], seconds: float, first_id: int = FIRST_ID) -> Timing:
    """Keep one request on each connection for about `seconds`, then wait for the last. Raises ServerFailed."""
    poll = select.epoll()
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    latencies: list[float] = []
    id, open_ = first_id, len(connections)
    began = now = perf_counter()
    deadline = began + seconds
    for descriptor, connection in by_descriptor.items():
        connection.socket.setblocking(False)
        poll.register(descriptor, select.EPOLLIN)
        connection.reply, connection.sent_at = b"", perf_counter()
        connection.socket.send(connection.request.numbered(id))
        id += 1
    while open_:
        for descriptor, _ in poll.poll(20):
            connection = by_descriptor[descriptor]
            data = connection.socket.recv(65536)
            if not data:
                raise server.failed("the connection ended")
            connection.reply = reply = connection.reply + data if connection.reply else data
            if not is_whole(reply):
                continue
            now = perf_counter()
            latencies.append(now - connection.sent_at)
            if now < deadline:
                connection.reply, connection.sent_at = b"", now
                connection.socket.send(connection.request.numbered(id))
                id += 1
            else:
                open_ -= 1
    poll.close()
    for connection in connections:
        _check(server, connection.reply)
    return Timing(len(latencies) / (now - began), latencies)


def _check(server: HttpServer, reply: bytes) -> None:
    """Look at the last replies only: a server that fails one of these requests fails them all."""
    if not reply.startswith(b"HTTP/1.1 200") or b'"text":"42"' not in reply.replace(b" ", b"") or b'"error"' in reply:
        raise server.failed(f"a request answered {reply[:500]!r}")
