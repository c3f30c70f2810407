"""A gateway on sockets (websockets): the handshake, one connection per participant, and the paths of plain HTTP."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from pydantic_core import from_json

from defserve.auth.bearer_tokens import TokenVerifier, is_well_formed_token
from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.live_credentials import CREDENTIAL_ENDED_REASON, LiveCredentials
from defserve.auth.oauth import BearerError, format_bearer_challenge
from defserve.auth.rates import FailedTokenCounts, Rate, RateBuckets
from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import encode
from defserve.errors import UsageError
from defserve.gateway.gateway import (
    CLOSE_POLICY_VIOLATION,
    CLOSE_TRY_AGAIN_LATER,
    UNCHECKED_TOKEN_REASON,
    AdmissionRefusal,
    Gateway,
)
from defserve.gateway.policy import (
    PARTICIPANT_NAME_FIX,
    Admission,
    GatewayConfig,
    GuestRules,
    IssuedTokenPolicy,
    TopicCredential,
    is_matched_by_pattern,
    is_participant_name,
    is_topic_name,
)
from defserve.gateway.requests import (
    MAX_CAPABILITIES,
    GatewayRequest,
    GatewayResponse,
    RequestReader,
    answer_plain_request,
    make_method_not_allowed,
    make_problem_response,
    make_too_many_response,
)
from defserve.protocols.mcpx.envelope import CAPABILITY_PROFILES, is_gateway_only_kind
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
_websockets_log = get_logger("gateway.websockets")
log = get_logger("gateway")


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
        self.close_in_background(CLOSE_POLICY_VIOLATION, CREDENTIAL_ENDED_REASON)

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
            self._reply(request, is_head=reader.is_head)
        elif request is not None and self.transport.is_reading():
            self.transport.pause_reading()
            self._endpoint.tasks.start(self._answer(request))

    async def _answer(self, request: GatewayRequest) -> None:
        request = self._endpoint.with_address(request, self.remote_address)
        try:
            response = await self._endpoint.answer_request(request)
        except Exception:
            # An author's verifier may raise the token itself: a KeyError, for instance.
            log.exception("a request to the gateway failed", extra={"secrets": [request.token() or ""]})
            response = make_problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the gateway could not answer")
        self._reply(response, is_head=request.verb == "HEAD")

    def _reply(self, response: GatewayResponse, *, is_head: bool) -> None:
        self.transport.write(response.encode(is_head=is_head))
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
            self.close_in_background(TOO_BIG, TOO_MANY_FRAGMENTS)
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

    def close_in_background(self, code: int, reason: str) -> None:
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
        self._failures = FailedTokenCounts(trusted_proxy=config.trusted_proxy, counted_as=get_client_network)
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
            if request.url.path.startswith(API_PATH_PREFIX):
                return await self._api.answer_request(request)
            return await answer_plain_request(self.gateway, self._admins, request, self._count_failure)
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
            self._check_gate(incoming) if (incoming.url.path == self._path) else await self.answer_request(incoming)
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
        query = parse_qs(request.url.query)
        topic, token = _only_value(query, "topic"), self._token(request, query)
        admission = (
            token if isinstance(token, AdmissionRefusal) else await self._admit_request(request, topic, token, query)
        )
        if isinstance(admission, AdmissionRefusal):
            await connection.close(*admission)
            return
        assert not isinstance(token, AdmissionRefusal)
        connection.credential = TopicCredential(self.gateway.policy, token, topic, admission)
        member = self.gateway.join_topic(topic, admission, connection, replaces=_if_taken(query) == REPLACE)
        if isinstance(member, AdmissionRefusal):
            await connection.close(*member)
            return
        seconds_left = None if admission.expires is None else admission.expires - time.time()
        self.live.keep_verifying_holder(connection)
        try:
            connection.listen(partial(self.gateway.relay_frame, member))
            async with asyncio.timeout(seconds_left):
                await connection.wait_closed()
        except TimeoutError:
            await connection.close(CLOSE_POLICY_VIOLATION, "the token has expired")
        finally:
            self.live.stop_verifying_holder(connection)
            self.gateway.leave_topic(member)

    async def _admit_request(
        self, request: GatewayRequest, topic: str, token: str | None, query: Mapping[str, list[str]]
    ) -> Admission | AdmissionRefusal:
        if _if_taken(query) not in IF_TAKEN:
            return AdmissionRefusal(CLOSE_POLICY_VIOLATION, f"if_taken is one of {', '.join(IF_TAKEN)}")
        asked = query.get("routing")
        admission = await self.gateway.admit(token, topic, asked[0] if asked else None)
        if (
            isinstance(admission, AdmissionRefusal)
            and admission.code != CLOSE_TRY_AGAIN_LATER
            and self._count_failure(request)
        ):
            return AdmissionRefusal(CLOSE_TRY_AGAIN_LATER, "too many bad tokens")
        return admission

    def _token(self, request: GatewayRequest, query: Mapping[str, list[str]]) -> str | AdmissionRefusal | None:
        """The token of a connection: in its header, or in its URL where the operator allows that."""
        if "authorization" in request.headers or "token" not in query:
            return request.token()
        if not self._tokens_in_urls:
            return AdmissionRefusal(
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


# -- The HTTP paths of the reference gateway, `/v0.1/…`: a token, the topics, who is in one, what was said, how often.


API_PATH_PREFIX: Final = "/v0.1/"
MAX_HISTORY: Final = 1_000
ISSUING: Final = Rate(per_second=1, burst=20)

_IN_TOPIC: Final = re.compile(r"/v0\.1/topics/([^/]+)/(participants|history|rate-limit)")


class TopicApi:
    """Answers requests below `/v0.1/`. `failed` counts a bad token and returns the seconds its sender has to wait."""

    def __init__(
        self,
        gateway: Gateway,
        admins: TokenVerifier | None,
        issued: IssuedTokenPolicy | None,
        failed: Callable[[GatewayRequest], float],
    ) -> None:
        self._gateway, self._admins, self._issued, self._failed = gateway, admins, issued, failed
        self._pace = RateBuckets(ISSUING)

    async def answer_request(self, request: GatewayRequest) -> GatewayResponse:
        path = request.url.path
        if path == f"{API_PATH_PREFIX}auth/token":
            return await self._token(request) if request.verb == "POST" else make_method_not_allowed("POST")
        found = _IN_TOPIC.fullmatch(path)
        if found is None and path != f"{API_PATH_PREFIX}topics":
            return make_problem_response(HTTPStatus.NOT_FOUND, "there is nothing here")
        if request.verb != "GET":
            return make_method_not_allowed("GET")
        if found is None:
            return await self._topics(request)
        topic = unquote(found[1])
        admission = await self._admit_request(request, topic)
        return (
            admission if isinstance(admission, GatewayResponse) else _PAGES[found[2]](self, topic, admission, request)
        )

    # -- a topic -----------------------------------------------------------------------------------------

    async def _topics(self, request: GatewayRequest) -> GatewayResponse:
        """The topics with somebody in them that the token may enter."""
        if (token := request.token()) is None:
            return _make_unauthorized_response("a token is needed", None)
        admit = self._gateway.policy.admit
        names = [name for name in sorted(self._gateway.topics) if await admit(token, name) is not None]
        if not names and (wait := self._failed(request)):
            return make_too_many_response(wait)
        return GatewayResponse(HTTPStatus.OK, encode({"topics": names}))

    async def _admit_request(self, request: GatewayRequest, topic: str) -> Admission | GatewayResponse:
        if (token := request.token()) is None:
            return _make_unauthorized_response("a token is needed", None)
        admission = await self._gateway.policy.admit(token, topic) if is_topic_name(topic) else None
        if admission is not None:
            return admission
        if wait := self._failed(request):
            return make_too_many_response(wait)
        # The same answer for a bad token and a wrong topic: nobody learns which topics exist.
        return make_problem_response(HTTPStatus.FORBIDDEN, "invalid token or topic")

    def _participants(self, topic: str, admission: Admission, request: GatewayRequest) -> GatewayResponse:
        found = self._gateway.topics.get(topic)
        members = found.members.values() if found is not None else ()
        shown = [{"id": member.id, "capabilities": member.capabilities.patterns} for member in members]
        return GatewayResponse(HTTPStatus.OK, encode({"participants": shown}))

    def _history(self, topic: str, admission: Admission, request: GatewayRequest) -> GatewayResponse:
        """Newest first. `before` is the id or the `ts` of a message; `limit` is 100 unless given."""
        query = parse_qs(request.url.query)
        limit, before = query.get("limit", ["100"])[0], query.get("before", [""])[0]
        if not limit.isdecimal() or not limit.isascii() or len(limit) > 6 or not 0 < int(limit) <= MAX_HISTORY:
            return make_problem_response(HTTPStatus.BAD_REQUEST, f"limit is a number from 1 to {MAX_HISTORY}")
        found = self._gateway.topics.get(topic)
        kept = [(frame, from_json(frame)) for frame in found.history] if found is not None else []
        if before:
            ends = [place for place, (_, each) in enumerate(kept) if before in (each["id"], each.get("ts"))]
            kept = kept[: ends[0]] if ends else kept
        if admission.routing == "directed":
            mine = admission.participant
            kept = [(frame, each) for frame, each in kept if not each.get("to") or mine in (*each["to"], each["from"])]
        frames = [frame for frame, _ in kept[-int(limit) :]]
        return GatewayResponse(HTTPStatus.OK, b'{"history":[%b]}' % b",".join(reversed(frames)))

    def _rate_limit(self, topic: str, admission: Admission, request: GatewayRequest) -> GatewayResponse:
        """How many messages the caller has sent in this minute, and when counting begins anew."""
        found = self._gateway.topics.get(topic)
        member = found.members.get(admission.participant) if found is not None else None
        if member is None:
            return make_problem_response(
                HTTPStatus.NOT_FOUND, f"{admission.participant} is not in the topic; connect to it first"
            )
        now = self._gateway.clock()
        member.reset_expired_window(now)
        resets = datetime.now(UTC) + timedelta(seconds=member.window_ends - now)
        counts = {"messages": member.messages, "chatMessages": member.chat_messages}
        return GatewayResponse(
            HTTPStatus.OK,
            encode({**counts, "resetTime": resets.isoformat(timespec="milliseconds").replace("+00:00", "Z")}),
        )

    # -- a token -----------------------------------------------------------------------------------------

    async def _token(self, request: GatewayRequest) -> GatewayResponse:
        token = request.token()
        if token is None and (self._issued is None or self._issued.guests is None):
            return make_problem_response(
                HTTPStatus.FORBIDDEN,
                "this gateway gives tokens to nobody without one; its operator can allow it with [guests]",
            )
        if token is not None and (self._admins is None or await self._admins.verify(token) is None):
            wait = self._failed(request)
            return (
                make_too_many_response(wait)
                if wait
                else _make_unauthorized_response("this is not an administrator's token", "invalid_token")
            )
        asked = _parse_token_request(request.body)
        if isinstance(asked, str):
            return make_problem_response(HTTPStatus.BAD_REQUEST, asked)
        assert self._issued is not None
        participant, topic, wanted = asked
        if token is not None and self._issued.is_guest_name(participant):
            return make_problem_response(
                HTTPStatus.FORBIDDEN, f"guests may take the name {participant}; choose another"
            )
        if token is not None:
            return await self._issue(
                self._issued, participant, topic, wanted or CAPABILITY_PROFILES["proposal-only"], False
            )
        guests = self._issued.guests
        assert guests is not None
        if wait := self._pace.take_token(get_client_network(request.address)):
            return make_too_many_response(wait)
        if (refusal := self._refusal(guests, participant, topic, wanted)) is not None:
            return refusal
        return await self._issue(self._issued, participant, topic, wanted or guests.capabilities, True)

    def _refusal(
        self, guests: GuestRules, participant: str, topic: str, wanted: tuple[str, ...]
    ) -> GatewayResponse | None:
        if not guests.is_guest_name(participant):
            return make_problem_response(HTTPStatus.FORBIDDEN, f"a guest here is called {' or '.join(guests.names)}")
        if not is_matched_by_pattern(guests.topics, topic):
            return make_problem_response(HTTPStatus.FORBIDDEN, "guests may not enter this topic")
        if not set(wanted) <= set(guests.capabilities):
            return make_problem_response(
                HTTPStatus.FORBIDDEN, f"a guest here may have {', '.join(guests.capabilities)}"
            )
        if self._is_connected(participant, topic):
            return make_problem_response(
                HTTPStatus.CONFLICT, f"{participant} is in the topic already; take another name"
            )
        return None

    async def _issue(
        self, issued: IssuedTokenPolicy, participant: str, topic: str, held: tuple[str, ...], is_guest: bool
    ) -> GatewayResponse:
        token = issued.issue_token(participant, topic, held, is_guest=is_guest, is_connected=self._is_connected)
        if token is None:
            return make_problem_response(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many tokens are given out", ("Retry-After", "60")
            )
        if await self._gateway.policy.admit(token, topic) is None:
            issued.revoke_token(token)
            return make_problem_response(HTTPStatus.FORBIDDEN, "there is no such topic here")
        return GatewayResponse(HTTPStatus.OK, encode({"token": token, "capabilities": held}))

    def _is_connected(self, participant: str, topic: str) -> bool:
        found = self._gateway.topics.get(topic)
        return found is not None and participant in found.members


_PAGES: Final[Mapping[str, Callable[[TopicApi, str, Admission, GatewayRequest], GatewayResponse]]] = {
    "participants": TopicApi._participants,  # pyright: ignore[reportPrivateUsage]
    "history": TopicApi._history,  # pyright: ignore[reportPrivateUsage]
    "rate-limit": TopicApi._rate_limit,  # pyright: ignore[reportPrivateUsage]
}


def _parse_token_request(body: bytes) -> tuple[str, str, tuple[str, ...]] | str:
    """The participant, the topic and the capabilities that are asked for, or what is wrong with the request."""
    try:
        found: Any = from_json(body)
    except ValueError as error:
        return f"the body is not JSON: {error}"
    participant, topic = (found.get("participantId"), found.get("topic")) if is_object(found) else (None, None)
    if not isinstance(participant, str) or not isinstance(topic, str):
        return "participantId and topic are required"
    if not is_participant_name(participant):
        return f"participantId: {PARTICIPANT_NAME_FIX}"
    if not is_topic_name(topic):
        return "topic: this cannot be the name of a topic"
    wanted: Any = found.get("capabilities") or []
    if (
        not is_array(wanted)
        or len(wanted) > MAX_CAPABILITIES
        or not all(isinstance(each, str) and each for each in wanted)
    ):
        return "capabilities: expected a list of capabilities"
    if reserved := next(filter(is_gateway_only_kind, wanted), None):
        return f"capabilities: {reserved!r} is reserved for the gateway"
    return participant, topic, tuple(wanted)


def _make_unauthorized_response(text: str, error: BearerError | None) -> GatewayResponse:
    return make_problem_response(HTTPStatus.UNAUTHORIZED, text, ("WWW-Authenticate", format_bearer_challenge(error)))
