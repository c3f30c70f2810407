"""Streamable HTTP (MCP transports, 2025-03-26 to 2026-07-28): both eras on one endpoint; the body says which."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from defserve.auth.principals import Principal
from defserve.errors import LimitExceeded
from defserve.transports.asgi import HeaderList
from defserve.transports.http import sse_format
from defserve.transports.http.answering import Attached, SingleResponse, answer, route_message, run, stream
from defserve.transports.http.exchange import Exchange, RefusalData
from defserve.transports.http.headers import NAMED_BY, accepts, param_mismatch, routing_mismatch
from defserve.transports.http.session import HttpSession, ResponseStream
from defserve.transports.http.sessions import HttpSessions
from defserve.transports.session_provider import RequestOffer, SessionProvider, TransportSession
from defserve.wire.codec import decode
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    Id,
    Malformed,
    Message,
    Notification,
    Reply,
    Request,
)

HEADER_MISMATCH = -32020

NOTHING_TO_RESUME = "Invalid request: nothing to resume after this Last-Event-ID"
ALREADY_OPEN = "Conflict: this session's stream is already open"

# `isinstance` is several times slower on a union made in place.
SPOKEN = (Request, Notification)


@dataclass(frozen=True, slots=True)
class HttpRules:
    """What the transport must know about the protocol: its versions, and where a request names its version."""

    handshake_versions: tuple[str, ...]
    stateless_versions: tuple[str, ...]
    opening: str
    version_key: str
    capabilities_key: str
    primed_versions: frozenset[str] = frozenset()
    scopes: Callable[[str], Sequence[str]] = field(default=lambda name: ())
    param_headers: Callable[[Any], Mapping[tuple[str, ...], str]] = field(default=lambda name: {})
    refusal: RefusalData | None = None
    no_sessions: str = ""
    """Why no session can be opened; empty if it can."""


class Streamable:
    """One endpoint: POST in both eras, GET and DELETE for sessions."""

    run = staticmethod(run)
    """Continues a call that stands alone."""

    def __init__(self, provider: SessionProvider, rules: HttpRules) -> None:
        self.provider, self.rules = provider, rules
        self.sessions = self._session_table()
        self.challenge: Callable[[Exchange, Sequence[str]], Awaitable[None]] | None = None

    def _session_table(self) -> HttpSessions:
        return HttpSessions(self.provider.limits.idle)

    # -- POST --------------------------------------------------------------------------------------------

    def post(self, exchange: Exchange, body: bytes) -> Awaitable[None] | None:
        """Take a message. Returns the rest to await, or None: a call that never waits is answered at once."""
        limits = self.provider.limits
        message = decode(body, limits.depth, limits.keys)
        if not isinstance(message, Request):
            return self._take_other(exchange, message)
        if self.challenge is not None and (scopes := self._missing_scopes(exchange, message)):
            return self.challenge(exchange, scopes)
        try:
            offer_in = self.provider.offer_in
            offer = offer_in(message)
        except Exception:  # the session answers with the error, unless the headers are wrong too
            return self._call_unread(exchange, message)
        if offer is not None and offer.stateless:
            return self._call_alone(exchange, message, offer)
        if offer is None and self._is_stateless(exchange.version, message):
            return self._call_unread(exchange, message)
        return self._call(exchange, message, offer)

    def _take_other(self, exchange: Exchange, message: Message | list[Message]) -> Awaitable[None]:
        meant = message.notification if isinstance(message, Malformed) else None
        # Some clients write notifications with a null id. A request without a usable id is refused.
        if meant is not None and meant.method.startswith("notifications/"):
            message = meant
        if isinstance(message, Malformed):
            self._fail_question(exchange, message)
            return refuse(exchange, 400, message.code, message.message, message.id)
        if self._is_stateless(exchange.version, message):
            return self._take_alone(exchange, message)
        return self._take(exchange, message)

    def _missing_scopes(self, exchange: Exchange, request: Request) -> Sequence[str]:
        """All scopes that a call needs, if its caller lacks one of them."""
        name = request.params.get("name") if request.method == "tools/call" else None
        scopes = self.rules.scopes(name) if isinstance(name, str) else ()
        return scopes if exchange.principal.missing(scopes) else ()

    def _is_stateless(self, version: str | None, message: Message | list[Message]) -> bool:
        """Whether a message belongs to no session, according to its body, or else to the version in its header."""
        if isinstance(message, SPOKEN):
            meta: Any = message.params.get("_meta")
            if meta.__class__ is dict and self.rules.version_key in meta:
                return True
            if message.method == self.rules.opening:
                return version in self.rules.stateless_versions
        return version is not None and version not in self.rules.handshake_versions

    def _fail_question(self, exchange: Exchange, malformed: Malformed) -> None:
        """Let a broken answer fail the question it was meant for. Otherwise the question would wait for ever."""
        id = exchange.headers.get("mcp-session-id") if malformed.is_reply else None
        if id is not None and (session := self.sessions.find(id, exchange.principal.id)) is not None:
            session.conversation.take(malformed, None, exchange.principal)

    async def _take_alone(self, exchange: Exchange, message: Message | list[Message]) -> None:
        version = exchange.version
        if not isinstance(message, Notification):
            await refuse(exchange, 400, INVALID_REQUEST, "Invalid request: send a single request")
        elif version is None or version in (*self.rules.stateless_versions, *self.rules.handshake_versions):
            await exchange.respond(202)  # and drop it: there is no running call that it could belong to
        else:
            await refuse(exchange, 400, INVALID_REQUEST, _unsupported(version))

    def _call_alone(self, exchange: Exchange, request: Request, offer: RequestOffer) -> Awaitable[None] | None:
        version, method, params = offer.version, request.method, request.params
        name, text = params.get(NAMED_BY.get(method, "")), None
        if exchange.routing != (version, method, name):
            text = routing_mismatch(exchange.headers, method, params, version)
        if text is None and method == "tools/call" and (annotated := self.rules.param_headers(name)):
            text = param_mismatch(exchange.headers, params, annotated)
        if text is not None:
            return refuse(exchange, 400, HEADER_MISMATCH, text, request.id)
        conversation = self.provider.open(route_message, principal=exchange.principal, counted=False)
        route = SingleResponse(self.provider, conversation, exchange, request.id)
        return self.run(exchange, route, conversation.begin(request, route, offer))

    def _call_unread(self, exchange: Exchange, request: Request) -> Awaitable[None] | None:
        """A request that should carry an offer, but has none, or one that cannot be read."""
        rules, meta = self.rules, request.params.get("_meta")
        for key, kind in ((rules.version_key, str), (rules.capabilities_key, dict)):
            if not is_object(meta) or not isinstance(meta.get(key), kind):
                return refuse(exchange, 400, INVALID_PARAMS, f"Invalid params: _meta[{key!r}] is required", request.id)
        text = routing_mismatch(exchange.headers, request.method, request.params, meta[rules.version_key])
        if text is not None:
            return refuse(exchange, 400, HEADER_MISMATCH, text, request.id)
        conversation = self.provider.open(route_message, principal=exchange.principal, counted=False)
        route = SingleResponse(self.provider, conversation, exchange, request.id)
        return run(exchange, route, conversation.begin(request, route))

    def _call(self, exchange: Exchange, request: Request, offer: RequestOffer | None) -> Awaitable[None] | None:
        if request.method == self.rules.opening:
            return self._open(exchange, request)
        session = self._session(exchange)
        if not isinstance(session, HttpSession):
            return session
        route = ResponseStream(session, exchange)
        return run(exchange, route, session.conversation.begin(request, route, offer, exchange.principal))

    async def _take(self, exchange: Exchange, message: Message | list[Message]) -> None:
        session = self._session(exchange)
        if not isinstance(session, HttpSession):
            await session
            return
        if isinstance(message, list) and not session.conversation.takes_batches:
            await refuse(
                exchange, 400, INVALID_REQUEST, "Invalid request: batches are not part of this protocol version"
            )
            return
        if isinstance(message, Reply) and not session.conversation.takes_answer(message, exchange.principal):
            await refuse(exchange, 403, INVALID_REQUEST, "Forbidden: this question is for a caller with more rights")
            return
        route = ResponseStream(session, exchange)
        session.conversation.take(message, route, exchange.principal)
        if isinstance(message, list):
            await answer(exchange, route)
        else:
            await exchange.respond(202)

    async def _open(self, exchange: Exchange, request: Request) -> None:
        if self.rules.no_sessions:
            await refuse(exchange, 400, INVALID_REQUEST, self.rules.no_sessions, request.id)
            return
        session = self.sessions.new(secrets.token_urlsafe(24), exchange.principal)
        try:
            session.conversation = self._conversation(session, exchange.principal)
        except LimitExceeded as error:
            await refuse(exchange, 503, INTERNAL_ERROR, error.message, request.id, [(b"retry-after", b"1")])
            return
        session.conversation.take(request, ResponseStream(session, exchange))
        try:
            while not exchange.finished:
                await exchange.wait()
                # The response to an opening is only its answer: the client has no session yet, and so no stream.
                unread = exchange.take()
                exchange.unread.extend(item for item in unread if item.message.answers)
        finally:
            accepted = exchange.only is not None and exchange.only.code is None
            if not accepted:
                session.conversation.close()
        reply = exchange.only
        if reply is None or not accepted:
            await exchange.respond(400, reply.data if reply is not None else b"")
            return
        session.primed = session.conversation.version in self.rules.primed_versions
        if await self._list(session, exchange, request):
            session.note(exchange)
            await exchange.respond(200, reply.data, [(b"mcp-session-id", session.id.encode())])

    async def _list(self, session: HttpSession, exchange: Exchange, request: Request) -> bool:
        """Have a new session found by its id. False: it cannot be kept, and its client was told."""
        self.sessions.add(session)
        return True

    def _conversation(self, session: HttpSession, principal: Principal) -> TransportSession:
        try:
            return self.provider.open(session.outlet, principal=principal, counted=True)
        except LimitExceeded:
            self.sessions.end_idle()
            return self.provider.open(session.outlet, principal=principal, counted=True)

    def _session(self, exchange: Exchange) -> HttpSession | Awaitable[None]:
        """The session that a request belongs to, or a refusal to await."""
        id, version = exchange.headers.get("mcp-session-id"), exchange.version
        if id is None:
            return refuse(exchange, 400, INVALID_REQUEST, "Invalid request: the Mcp-Session-Id header is missing")
        session = self.sessions.find(id, exchange.principal.id)
        if session is None:
            return refuse(exchange, 404, INVALID_REQUEST, "Invalid request: no such session; initialize again")
        if version is not None and version not in self.rules.handshake_versions:
            return refuse(exchange, 400, INVALID_REQUEST, _unsupported(version))
        if exchange.live is not None:
            session.note(exchange)
        return session

    # -- GET and DELETE ----------------------------------------------------------------------------------

    async def get(self, exchange: Exchange) -> None:
        if exchange.version in self.rules.stateless_versions:
            await exchange.refuse(405, "Method not allowed: this version takes POST alone", [(b"allow", b"POST")])
            return
        if not accepts(exchange.headers.get("accept"), "text/event-stream"):
            await refuse(exchange, 406, INVALID_REQUEST, "Not acceptable: accept text/event-stream")
            return
        session = self._session(exchange)
        if isinstance(session, HttpSession):
            await self._stream(exchange, session)
        else:
            await session

    async def _stream(self, exchange: Exchange, session: HttpSession) -> None:
        """Answer a GET with the stream that it continues, or else with the session's own."""
        last = exchange.headers.get("last-event-id")
        if last is not None:
            resumed = session.resume(last, exchange)
            if resumed is None:
                await refuse(exchange, 404, INVALID_REQUEST, NOTHING_TO_RESUME)
                return
            route, missed = resumed
            if session.primed and not (missed or exchange.finished):
                # Clients forget the id that they have resumed with. Without one they come back as new readers.
                missed = sse_format.event(b"", id=last)
        else:
            route, missed = session.standalone, b""
            if session.standalone.is_taken(exchange.principal):
                await refuse(exchange, 409, INVALID_REQUEST, ALREADY_OPEN)
                return
            session.standalone.attach(exchange)
        with Attached(exchange, route) as attached:
            attached.watch()
            await stream(exchange, route, missed)

    async def delete(self, exchange: Exchange) -> None:
        if exchange.version in self.rules.stateless_versions:
            await exchange.refuse(405, "Method not allowed: this version takes POST alone", [(b"allow", b"POST")])
            return
        session = self._session(exchange)
        if not isinstance(session, HttpSession):
            await session
            return
        if not exchange.principal.covers(session.opener):
            await refuse(exchange, 403, INVALID_REQUEST, "Forbidden: this session was opened with more rights")
            return
        await self._end(exchange, session)

    async def _end(self, exchange: Exchange, session: HttpSession) -> None:
        self.sessions.end(session)
        await exchange.respond(204)

    def drain(self) -> None:
        """End the streams that belong to no call. The others end with their calls."""
        for session in self.sessions:
            session.standalone.drop()

    def close(self) -> None:
        """End every session."""
        self.sessions.close()


def _unsupported(version: str) -> str:
    return f"Invalid request: unsupported MCP-Protocol-Version {version[:64]}"


async def refuse(
    exchange: Exchange, status: int, code: int, text: str, id: Id | None = None, headers: HeaderList = ()
) -> None:
    """Send a JSON-RPC error with an HTTP status."""
    await exchange.respond(status, exchange.error(code, text, id), headers)
