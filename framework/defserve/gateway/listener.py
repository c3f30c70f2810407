"""A gateway on sockets (websockets): the handshake, one connection per participant, and plain HTTP requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from defserve.auth.bearer_tokens import is_well_formed_token
from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.live_credentials import CREDENTIAL_ENDED_REASON, LiveCredentials
from defserve.auth.rates import FailedTokens
from defserve.base.concurrency import BackgroundTasks
from defserve.errors import UsageError
from defserve.gateway.api import API_PATH_PREFIX, TopicApi
from defserve.gateway.config import GatewayConfig
from defserve.gateway.gateway import (
    CLOSE_POLICY_VIOLATION,
    CLOSE_TRY_AGAIN_LATER,
    UNCHECKED_TOKEN_REASON,
    AdmissionRefused,
    Gateway,
)
from defserve.gateway.policy import Admission, TopicCredential
from defserve.gateway.requests import (
    GatewayRequest,
    GatewayResponse,
    RequestReader,
    answer_plain_request,
    make_problem_response,
)
from defserve.serve.http.request_heads import HostOriginGate
from defserve.serve.sockets import (
    MAX_SMALL_FRAGMENTS,
    SMALL_FRAGMENT_BYTES,
    TOO_MANY_FRAGMENTS,
    drain_unless_stalled,
    get_client_network,
)

try:
    from websockets import Headers
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Request, Response
    from websockets.protocol import Event, State
except ImportError:
    raise UsageError("a gateway needs websockets, which is not installed", fix='pip install "defserve[http]"') from None

TOO_BIG: Final = 1009
SERVICE_RESTART: Final = 1012
REPLACE: Final = "replace"
IF_TAKEN: Final = (REPLACE, "wait")
MESSAGE: Final = frozenset((Opcode.TEXT, Opcode.BINARY, Opcode.CONT))
FINAL_TEXT: Final = 0x81

# The library's own log of failed connections. It is kept quiet: the gateway logs one line of JSON for each.
_websockets_log = logging.getLogger("defserve.gateway.websockets")


def text_frame(data: bytes) -> bytes:
    """One text frame (RFC 6455 §5.2). Without masks and extensions, it is the same for all receivers."""
    length = len(data)
    if length < 126:
        return bytes((FINAL_TEXT, length)) + data
    if length < 1 << 16:
        return bytes((FINAL_TEXT, 126)) + length.to_bytes(2, "big") + data
    return bytes((FINAL_TEXT, 127)) + length.to_bytes(8, "big") + data


class GatewayConnection(ServerConnection):
    """One connection. Once it is open, the gateway sends by it; a request other than GET is answered at once."""

    def __init__(self, endpoint: GatewayEndpoint, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._endpoint = endpoint
        self._head: bytes | None = b""
        self._plain: RequestReader | None = None
        self._parts: list[bytes] = []
        self._small_parts = 0
        self._early: list[bytes] = []
        self._held: deque[bytes] = deque()
        self._listener: Callable[[bytes], float | None] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self.credential: TopicCredential | None = None

    def list_credentials(self) -> tuple[TopicCredential, ...]:
        return (self.credential,) if self.credential is not None else ()

    def credential_ended(self, key: Any) -> None:
        self._listener = lambda data: None  # it may go on sending until it has answered the close
        self.start_closing(CLOSE_POLICY_VIOLATION, CREDENTIAL_ENDED_REASON)

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            super().data_received(data)
            return
        if self._plain is not None:
            self._read_plain(self._plain, data)
            return
        self._head += data
        if self._head.startswith(b"GET "):
            data, self._head = self._head, None
            super().data_received(data)
        elif not b"GET ".startswith(self._head):
            self._plain = RequestReader()
            self._read_plain(self._plain, self._head)

    def _read_plain(self, reader: RequestReader, data: bytes) -> None:
        request = reader.feed(data)
        if isinstance(request, GatewayResponse):
            self._reply(request)
        elif request is not None and self.transport.is_reading():
            self.transport.pause_reading()
            self._endpoint.tasks.start(self._answer(request))

    async def _answer(self, request: GatewayRequest) -> None:
        self._reply(await self._endpoint.answer_request(self._endpoint.with_address(request, self.remote_address)))

    def _reply(self, response: GatewayResponse) -> None:
        self.transport.write(response.encode())
        self.transport.close()

    def process_event(self, event: Event) -> None:
        # Messages are handled where they are read: a queue and a task to empty it cost more than all the rules.
        if not isinstance(event, Frame) or event.opcode not in MESSAGE:
            super().process_event(event)
        elif event.fin and not self._parts:
            self._message(bytes(event.data))
        elif self._small_parts <= MAX_SMALL_FRAGMENTS:
            self._take_part(event)

    def _take_part(self, fragment: Frame) -> None:
        self._parts.append(bytes(fragment.data))
        self._small_parts += len(fragment.data) < SMALL_FRAGMENT_BYTES
        if self._small_parts > MAX_SMALL_FRAGMENTS:
            # Nothing more is read from it, not even its answer to the close.
            self.protocol.fail(TOO_BIG, TOO_MANY_FRAGMENTS)
            self.send_data()
            self.start_closing(TOO_BIG, TOO_MANY_FRAGMENTS)
        elif fragment.fin:
            whole = b"".join(self._parts)
            self._parts.clear()
            self._small_parts = 0
            self._message(whole)

    def _message(self, data: bytes) -> None:
        if self._held:
            self._held.append(data)
        elif self._listener is not None:
            if wait := self._listener(data):
                # The sender notices it by itself: what it writes is not taken. A few frames may have been read with it.
                self._held.append(data)
                self.transport.pause_reading()
                asyncio.get_running_loop().call_later(wait, self._release)
        else:
            # The message came before the member was admitted.
            self._early.append(data)
            self.transport.pause_reading()

    def listen(self, listener: Callable[[bytes], float | None]) -> None:
        """Pass every message to the listener, from the first one on. One for which it wants to wait comes again."""
        self._listener = listener
        early, self._early = self._early, []
        for data in early:
            self._message(data)
        if not self._held:
            self.transport.resume_reading()

    def _release(self) -> None:
        while self._held and self._listener is not None:
            if wait := self._listener(self._held[0]):
                asyncio.get_running_loop().call_later(wait, self._release)
                return
            self._held.popleft()
        if not self.transport.is_closing():
            self.transport.resume_reading()

    async def drain(self) -> None:
        await drain_unless_stalled(self, super().drain, self._endpoint.gateway.limits.ping)

    # -- a wire ------------------------------------------------------------------------------------------

    def queue_frame(self, frame: bytes, limit: float) -> bool:
        if self.count_waiting_bytes() > limit:
            return False
        if not self._out:
            self._endpoint.needs_flush(self)
        self._out.append(frame)
        self._out_bytes += len(frame)
        return True

    def count_waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + self._out_bytes

    def flush(self) -> None:
        """Write everything that was offered, at once."""
        frames, self._out, self._out_bytes = self._out, [], 0
        if self.protocol.state is State.OPEN:
            self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def start_closing(self, code: int, reason: str) -> None:
        self._endpoint.tasks.start(self.close(code, reason))


class GatewayEndpoint:
    """A gateway at a path: who may connect to it, and what becomes of each connection."""

    def __init__(self, config: GatewayConfig, path: str, gate: HostOriginGate) -> None:
        self.gateway = Gateway(
            config.policy, config.limits, framed=text_frame, strict=config.strict, history=config.history
        )
        self._api = TopicApi(self.gateway, config.admins, config.issued, self._count_failure)
        self._tokens_in_urls = config.tokens_in_urls
        self._admins, self._path, self._gate = config.admins, path or "/", gate
        self._failures = FailedTokens(trusted_proxy=config.trusted_proxy, counted_as=get_client_network)
        self._trusted_proxy = config.trusted_proxy
        self.live = LiveCredentials()
        self.tasks = BackgroundTasks()
        self._to_flush: list[GatewayConnection] = []

    def needs_flush(self, connection: GatewayConnection) -> None:
        """Write to it after everything that arrived together was read: a burst is one write per receiver."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush()

    async def answer_request(self, request: GatewayRequest) -> GatewayResponse:
        """The response to a plain request."""
        if (refusal := self._check_gate(request)) is not None:
            return refusal
        try:
            if urlsplit(request.target).path.startswith(API_PATH_PREFIX):
                return await self._api.answer_request(request)
            return await answer_plain_request(self.gateway, self._admins, request)
        except IssuerUnavailable:
            return make_problem_response(HTTPStatus.SERVICE_UNAVAILABLE, UNCHECKED_TOKEN_REASON, ("Retry-After", "2"))

    def with_address(self, request: GatewayRequest, address: Any) -> GatewayRequest:
        """The request with the address that it came from."""
        forwarded_for = request.headers.get("x-forwarded-for", []) if self._trusted_proxy else []
        # The last address is the one that the proxy itself has seen.
        host = forwarded_for[-1].rpartition(",")[2].strip() if forwarded_for else str(address[0]) if address else ""
        return request._replace(address=host)

    async def process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Called for every GET, before it becomes a WebSocket."""
        incoming = self._incoming(connection, request)
        response = (
            self._check_gate(incoming)
            if (urlsplit(request.path).path == self._path)
            else await self.answer_request(incoming)
        )
        if response is None:
            return None
        return Response(response.status.value, response.status.phrase, Headers(response.fields()), response.body)

    def _incoming(self, connection: ServerConnection, request: Request) -> GatewayRequest:
        headers = {name.lower(): request.headers.get_all(name) for name in request.headers}
        return self.with_address(GatewayRequest("GET", request.path, headers), connection.remote_address)

    def _check_gate(self, request: GatewayRequest) -> GatewayResponse | None:
        refusal = self._gate.check(*map(request.join_header, ("host", "origin", "sec-fetch-site")))
        return make_problem_response(HTTPStatus(refusal.status), refusal.text) if refusal is not None else None

    async def serve_connection(self, connection: ServerConnection) -> None:
        """Serve one open WebSocket to its end."""
        assert isinstance(connection, GatewayConnection) and connection.request is not None
        request = self._incoming(connection, connection.request)
        query = parse_qs(urlsplit(request.target).query)
        topic, token = _only_value(query, "topic"), self._token(request, query)
        admission = (
            token if isinstance(token, AdmissionRefused) else await self._admit_request(request, topic, token, query)
        )
        if isinstance(admission, AdmissionRefused):
            await connection.close(*admission)
            return
        assert not isinstance(token, AdmissionRefused)
        connection.credential = TopicCredential(self.gateway.policy, token, topic, admission)
        member = self.gateway.join_topic(topic, admission, connection, replaces=_if_taken(query) == REPLACE)
        if isinstance(member, AdmissionRefused):
            await connection.close(*member)
            return
        seconds_left = None if admission.expires is None else admission.expires - time.time()
        self.live.watch_holder(connection)
        try:
            connection.listen(partial(self.gateway.relay_frame, member))
            async with asyncio.timeout(seconds_left):
                await connection.wait_closed()
        except TimeoutError:
            await connection.close(CLOSE_POLICY_VIOLATION, "the token has expired")
        finally:
            self.live.unwatch_holder(connection)
            self.gateway.leave_topic(member)

    async def _admit_request(
        self, request: GatewayRequest, topic: str, token: str | None, query: Mapping[str, list[str]]
    ) -> Admission | AdmissionRefused:
        if _if_taken(query) not in IF_TAKEN:
            return AdmissionRefused(CLOSE_POLICY_VIOLATION, f"if_taken is one of {', '.join(IF_TAKEN)}")
        asked = query.get("routing")
        admission = await self.gateway.admit(token, topic, asked[0] if asked else None)
        if (
            isinstance(admission, AdmissionRefused)
            and admission.code != CLOSE_TRY_AGAIN_LATER
            and self._count_failure(request)
        ):
            return AdmissionRefused(CLOSE_TRY_AGAIN_LATER, "too many bad tokens")
        return admission

    def _token(self, request: GatewayRequest, query: Mapping[str, list[str]]) -> str | AdmissionRefused | None:
        """The token of a connection: in its header, or in its URL where the operator allows that."""
        if "authorization" in request.headers or "token" not in query:
            return request.token()
        if not self._tokens_in_urls:
            return AdmissionRefused(
                CLOSE_POLICY_VIOLATION, "tokens in URLs are off here (tokens_in_urls); send an Authorization header"
            )
        token = _only_value(query, "token")
        return token if is_well_formed_token(token) else None

    def _count_failure(self, request: GatewayRequest) -> float:
        forwarded_for = request.headers.get("x-forwarded-for", []) if self._trusted_proxy else []
        return self._failures.count_failure(
            request.address, (value.encode("latin-1", "replace") for value in forwarded_for)
        )


@asynccontextmanager
async def serve_gateway(
    config: GatewayConfig, sockets: Sequence[socket.socket], path: str, *, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[GatewayEndpoint]:
    """Serve on bound sockets while the block runs. Then everyone is told to come back later (1012)."""
    host, port = sockets[0].getsockname()[:2] if sockets[0].family != socket.AF_UNIX else ("127.0.0.1", None)
    endpoint = GatewayEndpoint(
        config, path, HostOriginGate(config.allowed_hosts, config.allowed_origins, config.trusted_proxy, host, port)
    )
    limits = config.limits
    servers = [
        await serve(
            endpoint.serve_connection,
            sock=one,
            ssl=tls,
            process_request=endpoint.process_request,
            compression=None,
            server_header=None,
            max_size=limits.message,
            open_timeout=limits.opening,
            close_timeout=limits.farewell,
            ping_interval=limits.ping,
            ping_timeout=limits.ping,
            logger=_websockets_log,
            create_connection=partial(GatewayConnection, endpoint),  # pyright: ignore[reportArgumentType]
        )
        for one in sockets
    ]
    try:
        yield endpoint
    finally:
        endpoint.live.close()
        for server in servers:
            for connection in server.connections:
                endpoint.tasks.start(connection.close(SERVICE_RESTART, "the gateway is shutting down"))
            server.close()
        for server in servers:
            await server.wait_closed()


def _only_value(query: Mapping[str, list[str]], name: str) -> str:
    """A value of the URL; empty, which is neither a topic nor a token, unless it is given exactly once."""
    given = query.get(name, [])
    return given[0] if len(given) == 1 else ""


def _if_taken(query: Mapping[str, list[str]]) -> str:
    return query.get("if_taken", [REPLACE])[0]
