"""A gateway on sockets (websockets): the handshake, one connection each participant, and plain requests beside them."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from defserve.auth.bearer import MalformedToken, bearer
from defserve.auth.buckets import FAILED_AUTH, Buckets
from defserve.auth.urls import is_loopback
from defserve.errors import UsageError
from defserve.gateway.config import GatewayConfig
from defserve.gateway.gateway import POLICY, TRY_LATER, Gateway, TurnedAway
from defserve.gateway.policy import Admission
from defserve.gateway.requests import GatewayRequest, GatewayResponse, answer, problem, read_request
from defserve.transports.http.gate import Gate

try:
    from websockets import Headers
    from websockets.asyncio.server import Server, ServerConnection, serve
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Request, Response
    from websockets.protocol import Event, State
except ImportError:
    raise UsageError("a gateway needs websockets, which is not installed", fix='pip install "defserve[http]"') from None

SERVICE_RESTART: Final = 1012
MESSAGE: Final = frozenset((Opcode.TEXT, Opcode.BINARY, Opcode.CONT))
FINAL_TEXT: Final = 0x81

# What the library says of connections that fail is for its authors; ours is one line of JSON each.
_quiet = logging.getLogger("defserve.gateway.websockets")


def framed(data: bytes) -> bytes:
    """One text frame (RFC 6455 §5.2). A server's are not masked and no extension is agreed: it is the same for all."""
    length = len(data)
    if length < 126:
        return bytes((FINAL_TEXT, length)) + data
    if length < 1 << 16:
        return bytes((FINAL_TEXT, 126)) + length.to_bytes(2, "big") + data
    return bytes((FINAL_TEXT, 127)) + length.to_bytes(8, "big") + data


class GatewayConnection(ServerConnection):
    """One connection: a `Wire` of the gateway once it is open, unless what came in is a request that is no GET."""

    def __init__(self, site: GatewayEndpoint, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._site = site
        self._head: bytes | None = b""
        self._parts: list[bytes] = []
        self._early: list[bytes] = []
        self._listener: Callable[[bytes], None] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            super().data_received(data)
            return
        self._head += data
        if self._head.startswith(b"GET "):
            data, self._head = self._head, None
            super().data_received(data)
        elif not b"GET ".startswith(self._head):
            self._read_plain(self._head)

    def _read_plain(self, data: bytes) -> None:
        request = read_request(data)
        if isinstance(request, GatewayResponse):
            self._reply(request)
        elif request is not None and self.transport.is_reading():
            self.transport.pause_reading()
            self._site.begin(self._answer(request))

    async def _answer(self, request: GatewayRequest) -> None:
        self._reply(await self._site.answer(request))

    def _reply(self, response: GatewayResponse) -> None:
        self.transport.write(response.encode())
        self.transport.close()

    def process_event(self, event: Event) -> None:
        # Messages are taken where they are read: a queue and a task to empty it cost more than all the rules.
        if not isinstance(event, Frame) or event.opcode not in MESSAGE:
            super().process_event(event)
        elif not event.fin or self._parts:
            self._parts.append(bytes(event.data))
            if event.fin:
                whole = b"".join(self._parts)
                self._parts.clear()
                self._message(whole)
        else:
            self._message(bytes(event.data))

    def _message(self, data: bytes) -> None:
        if self._listener is not None:
            self._listener(data)
        else:
            # It speaks before it is let in.
            self._early.append(data)
            self.transport.pause_reading()

    def listen(self, listener: Callable[[bytes], None]) -> None:
        """Hand over every message from the first on."""
        for data in self._early:
            listener(data)
        self._early.clear()
        self._listener = listener
        self.transport.resume_reading()

    # -- a wire ------------------------------------------------------------------------------------------

    def offer(self, frame: bytes, limit: float) -> bool:
        if self.transport.get_write_buffer_size() + self._out_bytes > limit:
            return False
        if not self._out:
            self._site.has_news(self)
        self._out.append(frame)
        self._out_bytes += len(frame)
        return True

    def flush(self) -> None:
        """Write what was offered, in one go."""
        frames, self._out, self._out_bytes = self._out, [], 0
        if self.protocol.state is State.OPEN:
            self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def end(self, code: int, reason: str) -> None:
        self._site.begin(self.close(code, reason))


class GatewayEndpoint:
    """A gateway at a path: who may speak to it, and what each connection becomes."""

    def __init__(self, config: GatewayConfig, path: str, gate: Gate) -> None:
        self.gateway = Gateway(config.policy, config.limits, framed=framed, strict=config.strict)
        self._admins, self._path, self._gate = config.admins, path or "/", gate
        self._failures = Buckets(FAILED_AUTH)
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: list[GatewayConnection] = []

    def has_news(self, door: GatewayConnection) -> None:
        """Write to it when all that came in together has been read: a burst is one write for each receiver."""
        if not self._news:
            asyncio.get_running_loop().call_soon(self._flush)
        self._news.append(door)

    def _flush(self) -> None:
        doors, self._news = self._news, []
        for door in doors:
            door.flush()

    def begin(self, work: Any) -> None:
        """Do something beside; the loop alone would forget it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def answer(self, request: GatewayRequest) -> GatewayResponse:
        """A plain request."""
        refusal = self._gate.check(*map(request.joined, ("host", "origin", "sec-fetch-site")))
        if refusal is not None:
            return problem(HTTPStatus(refusal.status), refusal.text)
        return await answer(self.gateway, self._admins, request)

    async def process_request(self, door: ServerConnection, request: Request) -> Response | None:
        """Every GET before it becomes a WebSocket, if it may and wants to."""
        headers = {name.lower(): request.headers.get_all(name) for name in request.headers}
        incoming = GatewayRequest("GET", request.path, headers)
        if urlsplit(request.path).path == self._path:
            refusal = self._gate.check(*map(incoming.joined, ("host", "origin", "sec-fetch-site")))
            said = problem(HTTPStatus(refusal.status), refusal.text) if refusal else None
        else:
            said = await self.answer(incoming)
        return None if said is None else _response(said)

    async def attend(self, door: ServerConnection) -> None:
        """One open WebSocket, to its end."""
        assert isinstance(door, GatewayConnection) and door.request is not None
        admission = await self._admitted(door.request, door.remote_address)
        if isinstance(admission, TurnedAway):
            await door.close(*admission)
            return
        name = _topic(door.request)
        member = self.gateway.join(name, admission, door)
        if isinstance(member, TurnedAway):
            await door.close(*member)
            return
        lasts = None if admission.expires is None else admission.expires - time.time()
        try:
            door.listen(partial(self.gateway.receive, member))
            async with asyncio.timeout(lasts):
                await door.wait_closed()
        except TimeoutError:
            await door.close(POLICY, "the token has expired")
        finally:
            self.gateway.leave(member)

    async def _admitted(self, request: Request, address: Any) -> Admission | TurnedAway:
        host = str(address[0]) if address else ""
        # Everyone on this machine has the same address: one that errs must not shut out the others.
        counted = bool(host) and not is_loopback(host)
        if counted and self._failures.peek(host):
            return TurnedAway(TRY_LATER, "too many bad tokens")
        token = bearer(value.encode("latin-1", "replace") for value in request.headers.get_all("Authorization"))
        asked = parse_qs(urlsplit(request.path).query).get("routing")
        shown = None if isinstance(token, MalformedToken) else token
        admission = await self.gateway.admit(shown, _topic(request), asked[0] if asked else None)
        if counted and isinstance(admission, TurnedAway):
            self._failures.take(host)
        return admission


@asynccontextmanager
async def listening(
    config: GatewayConfig, sockets: Sequence[socket.socket], path: str, *, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[GatewayEndpoint]:
    """Serve on bound sockets for as long as the block runs. Then everyone is told to come back later (1012)."""
    host, port = sockets[0].getsockname()[:2] if sockets[0].family != socket.AF_UNIX else ("127.0.0.1", None)
    gate = Gate(config.allowed_hosts, config.allowed_origins, config.trusted_proxy, host, port)
    site = GatewayEndpoint(config, path, gate)
    servers = [await _served(site, config, one, tls) for one in sockets]
    try:
        yield site
    finally:
        for server in servers:
            for door in server.connections:
                site.begin(door.close(SERVICE_RESTART, "the gateway is shutting down"))
            server.close()
        for server in servers:
            await server.wait_closed()


async def _served(
    site: GatewayEndpoint, config: GatewayConfig, one: socket.socket, tls: ssl.SSLContext | None
) -> Server:
    limits = config.limits

    def door(*args: Any, **options: Any) -> GatewayConnection:
        return GatewayConnection(site, *args, **options)

    return await serve(
        site.attend,
        sock=one,
        ssl=tls,
        process_request=site.process_request,
        compression=None,
        server_header=None,
        max_size=limits.message,
        open_timeout=limits.opening,
        close_timeout=limits.farewell,
        ping_interval=limits.ping,
        ping_timeout=limits.ping,
        logger=_quiet,
        create_connection=door,  # pyright: ignore[reportArgumentType]
    )


def _topic(request: Request) -> str:
    """The topic a connection is for; empty, which is none, unless it names exactly one."""
    named = parse_qs(urlsplit(request.path).query).get("topic", [])
    return named[0] if len(named) == 1 else ""


def _response(said: GatewayResponse) -> Response:
    headers = Headers([("Content-Type", said.media_type), ("Content-Length", str(len(said.body)))])
    for name, value in (("Connection", "close"), ("Cache-Control", "no-store"), *said.headers):
        headers[name] = value
    return Response(said.status.value, said.status.phrase, headers, said.body)
