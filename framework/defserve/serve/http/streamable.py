"""Streamable HTTP (2025-03-26 to 2026-07-28): both eras on one endpoint; the body says which.

How it works: a call runs in the task of its HTTP request. The response is JSON if a single message is all there is to
say, and otherwise becomes a stream of events.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from defserve.auth.live_credentials import BearerCredential
from defserve.auth.principals import Principal
from defserve.core.json_values import is_object
from defserve.core.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    MalformedMessage,
    Message,
    Notification,
    Reply,
    Request,
    RequestId,
    decode,
)
from defserve.core.peer import TOO_MANY_CALLS_CODE, UNSENT_SIGN_IN_CODE
from defserve.errors import LimitExceeded, Refused
from defserve.serve.http.exchange import (
    CompleteReply,
    ErrorDataFactory,
    Exchange,
    ResponseRoute,
    WritableMessage,
)
from defserve.serve.http.request_heads import (
    NAME_PARAMETERS,
    SESSION_HEADER,
    accepts_media_type,
    find_param_mismatch,
    find_routing_mismatch,
)
from defserve.serve.http.session_log import MemoryLogs, SessionLogs
from defserve.serve.http.sessions import HttpSession, HttpSessions, StreamFullyRead
from defserve.serve.http.streams import ClientWatch, ResponseStream, StreamKeepAliveTimer, StreamReader
from defserve.serve.sockets import CallOrReply, FinalReply, HeaderList, UnfinishedCall

if TYPE_CHECKING:
    from defserve.core.extension import Offer
    from defserve.core.session import Session
    from defserve.serve.session_opener import SessionOpener


HEADER_MISMATCH = -32020

NOTHING_TO_RESUME = "Invalid request: nothing to resume after this Last-Event-ID"
STREAM_ALREADY_OPEN = "Conflict: this session's stream is already open"

# `isinstance` is several times slower on a union made in place.
SPOKEN = (Request, Notification)


@dataclass(frozen=True, slots=True)
class HttpProtocolRules:
    """What the transport must know about the protocol: its versions, and where a request names its version."""

    handshake_versions: tuple[str, ...]
    stateless_versions: tuple[str, ...]
    opening: str
    version_key: str
    capabilities_key: str
    priming_event_versions: frozenset[str] = frozenset()
    scopes: Callable[[str], Sequence[str]] = field(default=lambda name: ())
    param_headers: Callable[[Any], Mapping[tuple[str, ...], str]] = field(default=lambda name: {})
    refusal: ErrorDataFactory | None = None
    no_sessions: str = ""
    """Why no session can be opened; empty if it can."""


# -- Runs a call in the task of its HTTP request, and answers: JSON for a single message, otherwise a stream of events.


MAX_SILENCE_SECONDS = 15.0

# A call of a session has the head of its response after so many seconds, and the id to come back with if it is cut.
HEAD_SECONDS = 1.0

# Watching a client takes a task of its own, and most calls are done before it would have been worth it.
UNWATCHED_SECONDS = 0.05
CLIENT_LEFT_STATUS = 499
RETRY_AFTER_HEADERS = ((b"retry-after", b"1"),)


def run_call(exchange: Exchange, route: ResponseRoute, begun: CallOrReply) -> Awaitable[None] | None:
    """Continue a call in the task of its request, and answer it. Returns the rest to await, or None.

    Most calls are done in their first step. They need no task, no timer, and no watch on the client.
    """
    if not isinstance(begun, tuple):
        return _go_on(exchange, route, begun)
    data, code = begun
    if exchange.unread or not data or route.wants_events(exchange):
        route.push(CompleteReply(data, code))
        return _answer_in_the_end(exchange, route)
    route.finish()
    return _respond(exchange, route, data, code)


def _respond(exchange: Exchange, route: ResponseRoute, data: bytes, code: int | None) -> Awaitable[None] | None:
    """Send the answer as the whole response. Returns the rest to await, or None."""
    if not code:
        return exchange.respond_json(200, data)
    if code == TOO_MANY_CALLS_CODE:
        return exchange.respond(429, data, RETRY_AFTER_HEADERS)
    if code == UNSENT_SIGN_IN_CODE and (challenge := getattr(exchange, "challenge", "")):
        return exchange.respond(401, data, [(b"www-authenticate", challenge.encode("latin-1", "replace"))])
    return exchange.respond_json(route.statuses.get(code, 200), data)


async def _go_on(exchange: Exchange, route: ResponseRoute, call: UnfinishedCall) -> None:
    """Finish a call that waits, in the task in which its scopes were opened.

    If that takes long, another task answers, so that the call continues even if its client has left.
    """
    late = LateAnswer(exchange, route, call)
    try:
        assert call.rest is not None
        await call.rest
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await absorb_call_cancellation()
        reply = call.reply
        if late.task or reply is None or not reply[0] or exchange.finished or route.wants_events(exchange):
            await late.start_answering()
        elif left := _respond(exchange, route, *reply):
            await left
    finally:
        late.finish()
        route.finish()


async def _answer_in_the_end(exchange: Exchange, route: ResponseRoute) -> None:
    try:
        await absorb_call_cancellation()
        await answer_call(exchange, route)
    finally:
        route.finish()


async def answer_call(exchange: Exchange, route: ResponseRoute) -> None:
    """Write the call's messages: JSON if its answer comes first, events if another message or a long silence does."""
    if exchange.finished and await _answer_at_once(exchange, route):
        return
    with ClientWatch(exchange, route) as attached:
        if await exchange.wait(UNWATCHED_SECONDS) and exchange.finished and await _answer_at_once(exchange, route):
            return
        await _answer_watched(exchange, route, attached)


async def _answer_watched(exchange: Exchange, route: ResponseRoute, attached: ClientWatch) -> None:
    silent = 0.0
    attached.watch()
    while not await exchange.wait(HEAD_SECONDS):
        silent += HEAD_SECONDS
        if route.can_start_events(silent):
            break
    if exchange.gone:
        await exchange.respond(CLIENT_LEFT_STATUS)  # nobody reads it, but some middleware needs a response
        return
    if exchange.finished and await _answer_at_once(exchange, route):
        return
    await stream_events(exchange, route, route.start_events())


async def stream_events(exchange: Exchange, route: ResponseRoute, first: bytes) -> None:
    """Write events, beginning with `first`, until there are no more."""
    await exchange.start_events(first)
    await exchange.stream(MAX_SILENCE_SECONDS, route.on_client_left)


async def _answer_at_once(exchange: Exchange, route: ResponseRoute) -> bool:
    """Answer with JSON if there is only one message. A request that ended without an answer was cancelled."""
    if route.wants_events(exchange):
        return False
    if not exchange.unread:
        await exchange.respond(202)
        return True
    reply = exchange.single_answer
    if reply is None:
        return False
    exchange.take_unread()
    if left := _respond(exchange, route, reply.data, reply.code):
        await left
    return True


class LateAnswer:
    """Begins to answer, in a task of its own, while a call still runs: when it has run for a while, or when it says
    something before its answer. Until then it stands for the reader of the exchange."""

    __slots__ = ("_exchange", "_route", "_call", "_timer", "task")

    def __init__(self, exchange: Exchange, route: ResponseRoute, call: UnfinishedCall) -> None:
        self._exchange, self._route, self._call = exchange, route, call
        self.task: asyncio.Task[None] | None = None
        route.on_response_started()
        exchange.set_waker(self)
        self._timer = asyncio.get_running_loop().call_later(UNWATCHED_SECONDS, self.start_answering)
        if exchange.unread:
            self.start_answering()

    def done(self) -> bool:
        """Whether it need not be woken."""
        return self._exchange.finished

    def set_result(self, result: bool) -> None:
        self.start_answering()

    def start_answering(self) -> asyncio.Task[None]:
        if self.task is None:
            self._timer.cancel()
            self.task = asyncio.create_task(self._answer())
            self._call.send_reply()
        return self.task

    async def _answer(self) -> None:
        attached = ClientWatch(self._exchange, self._route)
        try:
            await _answer_watched(self._exchange, self._route, attached)
        finally:
            attached.__exit__()

    def finish(self) -> None:
        """The call is over, and answered if nobody else does that."""
        if self.task is None:
            self._timer.cancel()
            # Each would hold the other until the garbage collector looks, with all that the call had.
            self._exchange.set_waker(None)
            self._route.detach(self._exchange)


async def absorb_call_cancellation() -> None:
    """Absorb a cancellation of this task that was meant for the call it ran."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


class StreamableEndpoint:
    """One endpoint: POST in both eras, GET and DELETE for sessions.

    Where the sessions have their logs, this or another process: see `session_log.py`. What needs a log that is away is
    refused with 503. Calls of known sessions do not need it.
    """

    def __init__(self, provider: SessionOpener, rules: HttpProtocolRules, logs: SessionLogs | None = None) -> None:
        self.provider, self.rules = provider, rules
        self.logs: SessionLogs = logs if logs is not None else MemoryLogs()
        self.sessions = HttpSessions(provider, self.logs, rules.priming_event_versions)
        self.silent = StreamKeepAliveTimer(MAX_SILENCE_SECONDS)
        self.challenge: Callable[[Exchange, Sequence[str]], Awaitable[None]] | None = None
        self._is_draining = False

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
        meant = message.notification if isinstance(message, MalformedMessage) else None
        # Some clients write notifications with a null id. A request without a usable id is refused.
        if meant is not None and meant.method.startswith("notifications/"):
            message = meant
        if isinstance(message, MalformedMessage):
            self._fail_question(exchange, message)
            return send_jsonrpc_error(exchange, 400, message.code, message.message, message.id)
        if self._is_stateless(exchange.version, message):
            return self._take_alone(exchange, message)
        return self._handle_message(exchange, message)

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

    def _fail_question(self, exchange: Exchange, malformed: MalformedMessage) -> None:
        """Let a broken answer fail the question it was meant for. Otherwise the question would wait for ever."""
        id = exchange.headers.get(SESSION_HEADER) if malformed.is_reply else None
        if id is not None and (session := self.sessions.find(id, exchange.principal.id)) is not None:
            session.conversation.feed_message(malformed, None, exchange.principal)

    async def _take_alone(self, exchange: Exchange, message: Message | list[Message]) -> None:
        version = exchange.version
        if not isinstance(message, Notification):
            await send_jsonrpc_error(exchange, 400, INVALID_REQUEST, "Invalid request: send a single request")
        elif version is None or version in (*self.rules.stateless_versions, *self.rules.handshake_versions):
            await exchange.respond(202)  # and drop it: there is no running call that it could belong to
        else:
            await send_jsonrpc_error(exchange, 400, INVALID_REQUEST, _format_unsupported(version))

    def _call_alone(self, exchange: Exchange, request: Request, offer: Offer) -> Awaitable[None] | None:
        version, method, params = offer.version, request.method, request.params
        name, text = params.get(NAME_PARAMETERS.get(method, "")), None
        if exchange.routing != (version, method, name):
            text = find_routing_mismatch(exchange.headers, method, params, version)
        if text is None and method == "tools/call" and (annotated := self.rules.param_headers(name)):
            text = find_param_mismatch(exchange.headers, params, annotated)
        if text is not None:
            return send_jsonrpc_error(exchange, 400, HEADER_MISMATCH, text, request.id)
        conversation = self.provider.open(route_message, principal=exchange.principal, counted=False)
        route = SingleRequestRoute(self.provider, conversation, exchange, request.id)
        published = self.logs.published
        begun = conversation.start_call(request, route, offer)
        if not isinstance(begun, tuple):
            begun = self.logs.hold_reply(begun, None, published)
        elif self.logs.published != published:
            return self._answer_saved(exchange, route, begun, None, published)
        return run_call(exchange, route, begun)

    def _call_unread(self, exchange: Exchange, request: Request) -> Awaitable[None] | None:
        """A request that should carry an offer, but has none, or one that cannot be read."""
        rules, meta = self.rules, request.params.get("_meta")
        for key, kind in ((rules.version_key, str), (rules.capabilities_key, dict)):
            if not is_object(meta) or not isinstance(meta.get(key), kind):
                return send_jsonrpc_error(
                    exchange,
                    400,
                    INVALID_PARAMS,
                    f"Invalid params: _meta[{key!r}] is required. For curl, serve with --rest",
                    request.id,
                )
        text = find_routing_mismatch(exchange.headers, request.method, request.params, meta[rules.version_key])
        if text is not None:
            return send_jsonrpc_error(exchange, 400, HEADER_MISMATCH, text, request.id)
        conversation = self.provider.open(route_message, principal=exchange.principal, counted=False)
        route = SingleRequestRoute(self.provider, conversation, exchange, request.id)
        return run_call(exchange, route, conversation.start_call(request, route))

    def _call(
        self, exchange: Exchange, request: Request, offer: Offer | None, session: HttpSession | None = None
    ) -> Awaitable[None] | None:
        if session is None:
            if request.method == self.rules.opening:
                return self._open(exchange, request)
            session = self._find_session(exchange)
            if session is None:
                return self._call_loaded(exchange, request, offer)
        route, published = ResponseStream(session, exchange, request.id), self.logs.published
        begun = session.conversation.start_call(request, route, offer, exchange.principal)
        # What a call has changed, or told all processes, is in the log before the call is answered.
        if not isinstance(begun, tuple):
            begun = self.logs.hold_reply(begun, session, published)
        elif session.log.has_unsaved_changes or self.logs.published != published:
            return self._answer_saved(exchange, route, begun, session, published)
        return run_call(exchange, route, begun)

    async def _call_loaded(self, exchange: Exchange, request: Request, offer: Offer | None) -> None:
        if (session := await self._load_session(exchange)) is None:
            return
        if (left := self._call(exchange, request, offer, session)) is not None:
            await left

    async def _answer_saved(
        self, exchange: Exchange, route: ResponseRoute, reply: FinalReply, session: HttpSession | None, published: int
    ) -> None:
        try:
            if session is not None and session.log.has_unsaved_changes:
                await session.log.save_changes()
        except Refused as error:
            await _send_unavailable(exchange, error)
            return
        if self.logs.published != published:
            await self.logs.wait_until_published()
        if (left := run_call(exchange, route, reply)) is not None:
            await left

    async def _handle_message(self, exchange: Exchange, message: Message | list[Message]) -> None:
        if (session := await self._load_session(exchange)) is None:
            return
        messages = message if isinstance(message, list) else [message]
        if isinstance(message, list) and not session.conversation.takes_batches:
            await send_jsonrpc_error(
                exchange, 400, INVALID_REQUEST, "Invalid request: batches are not part of this protocol version"
            )
            return
        route = ResponseStream(session, exchange, [each.id for each in messages if isinstance(each, Request)])
        try:
            for each in messages:
                if isinstance(each, Reply) and not await _can_answer(session, each, exchange.principal):
                    await send_jsonrpc_error(
                        exchange, 403, INVALID_REQUEST, "Forbidden: this question is for a caller with more rights"
                    )
                    return
            session.conversation.feed_message(message, route, exchange.principal)
            # A notification may have changed what is kept, without saying so.
            await session.log.save_changes()
        except Refused as error:
            await _send_unavailable(exchange, error)
            return
        if isinstance(message, list):
            await answer_call(exchange, route)
        else:
            await exchange.respond(202)

    async def _open(self, exchange: Exchange, request: Request) -> None:
        if self.rules.no_sessions:
            await send_jsonrpc_error(exchange, 400, INVALID_REQUEST, self.rules.no_sessions, request.id)
            return
        try:
            session = self.sessions.make_session(secrets.token_urlsafe(24), exchange.principal)
        except LimitExceeded as error:
            await _send_unavailable(exchange, error, request.id)
            return
        session.conversation.feed_message(request, ResponseStream(session, exchange))
        try:
            while not exchange.finished:
                await exchange.wait()
                # The response to an opening is only its answer: the client has no session yet, and so no stream.
                unread = exchange.take_unread()
                exchange.unread.extend(item for item in unread if item.message.answers)
        finally:
            accepted = exchange.single_answer is not None and exchange.single_answer.code is None
            if not accepted:
                session.conversation.close()
        reply = exchange.single_answer
        if reply is None or not accepted:
            await exchange.respond(400, reply.data if reply is not None else b"")
            return
        try:
            await self.sessions.open_session(session)
        except Refused as error:
            session.conversation.close()
            await _send_unavailable(exchange, error, request.id)
            return
        session.add_credential(exchange)
        await exchange.respond(200, reply.data, [(SESSION_HEADER.encode(), session.id.encode())])

    # -- the session of a request ------------------------------------------------------------------------

    def _find_session(self, exchange: Exchange) -> HttpSession | None:
        """The session that a request belongs to, if it is known here. Otherwise `_load_session` knows more."""
        id, version = exchange.headers.get(SESSION_HEADER), exchange.version
        if id is None or (version is not None and version not in self.rules.handshake_versions):
            return None
        session = self.sessions.find(id, exchange.principal.id)
        if session is not None and exchange.live is not None:
            session.add_credential(exchange)
        return session

    async def _load_session(self, exchange: Exchange) -> HttpSession | None:
        """The session that a request belongs to. None: there is none, and the client was told."""
        if (session := self._find_session(exchange)) is not None:
            return session
        id, version = exchange.headers.get(SESSION_HEADER), exchange.version
        if id is None:
            missing = "the Mcp-Session-Id header is missing: send initialize first. For curl, serve with --rest"
            await send_jsonrpc_error(exchange, 400, INVALID_REQUEST, f"Invalid request: {missing}")
            return None
        try:
            session = await self.sessions.load(id, exchange.principal)
        except Refused as error:
            await _send_unavailable(exchange, error)
            return None
        if session is None:
            await send_jsonrpc_error(
                exchange, 404, INVALID_REQUEST, "Invalid request: no such session; initialize again"
            )
        elif version is not None and version not in self.rules.handshake_versions:
            await send_jsonrpc_error(exchange, 400, INVALID_REQUEST, _format_unsupported(version))
        else:
            session.add_credential(exchange)
            return session
        return None

    # -- GET and DELETE ----------------------------------------------------------------------------------

    async def get(self, exchange: Exchange) -> None:
        if exchange.version in self.rules.stateless_versions:
            await exchange.refuse(405, "Method not allowed: this version takes POST alone", [(b"allow", b"POST")])
            return
        if not accepts_media_type(exchange.headers.get("accept"), "text/event-stream"):
            await send_jsonrpc_error(exchange, 406, INVALID_REQUEST, "Not acceptable: accept text/event-stream")
            return
        if (session := await self._load_session(exchange)) is None:
            return
        last = exchange.headers.get("last-event-id")
        try:
            reader = await (session.resume(last, exchange) if last is not None else session.listen(exchange))
        except StreamFullyRead:
            # Some clients take an error for a stream that was cut, and come back for ever. This tells them not to.
            await exchange.respond(204)
            return
        except Refused as error:
            await _send_unavailable(exchange, error)
            return
        if reader is not None:
            if self._is_draining:
                _end_unless_running(reader)
            with ClientWatch(exchange, reader) as attached:
                attached.watch()
                await exchange.start_events()
                if not attached.hold_open(self.silent):
                    await exchange.stream(MAX_SILENCE_SECONDS, reader.on_client_left)
        elif last is not None:
            await send_jsonrpc_error(exchange, 404, INVALID_REQUEST, NOTHING_TO_RESUME)
        else:
            await send_jsonrpc_error(exchange, 409, INVALID_REQUEST, STREAM_ALREADY_OPEN)

    async def delete(self, exchange: Exchange) -> None:
        if exchange.version in self.rules.stateless_versions:
            await exchange.refuse(405, "Method not allowed: this version takes POST alone", [(b"allow", b"POST")])
            return
        if (session := await self._load_session(exchange)) is None:
            return
        if not exchange.principal.covers(session.opener):
            await send_jsonrpc_error(
                exchange, 403, INVALID_REQUEST, "Forbidden: this session was opened with more rights"
            )
            return
        self.sessions.end_session(session)
        try:
            await session.log.wait_until_written()
        except Refused as error:
            await _send_unavailable(exchange, error)
        else:
            await exchange.respond(204)

    def drain(self) -> None:
        """End the streams that belong to no call here, and those that are opened from now on. Their clients go on with
        another process, if there is one."""
        self._is_draining = True
        for session in self.sessions:
            for reader in list(session.reading.values()):
                _end_unless_running(reader)

    def close(self) -> None:
        """End every session."""
        self.sessions.close()


def _end_unless_running(reader: StreamReader) -> None:
    """End a stream, unless it is that of a call that runs here."""
    if reader.name not in reader.session.streams:
        reader.exchange.end_without_answer()


def _format_unsupported(version: str) -> str:
    return f"Invalid request: unsupported MCP-Protocol-Version {version[:64]}"


async def _can_answer(session: HttpSession, reply: Reply, sender: Principal) -> bool:
    """Whether this sender may give an answer. If another process waits for it, that one gets it."""
    return session.conversation.takes_answer(reply, sender) and await session.log.hand_over_reply(reply, sender)


async def _send_unavailable(exchange: Exchange, error: Refused, id: RequestId | None = None) -> None:
    text = error.message if isinstance(error, LimitExceeded) else f"{error.message}; try again"
    await send_jsonrpc_error(exchange, 503, INTERNAL_ERROR, text, id, RETRY_AFTER_HEADERS)


async def send_jsonrpc_error(
    exchange: Exchange, status: int, code: int, text: str, id: RequestId | None = None, headers: HeaderList = ()
) -> None:
    """Send a JSON-RPC error with an HTTP status."""
    await exchange.respond(status, exchange.encode_error(code, text, id), headers)


# Error code, or TOO_MANY_CALLS_CODE → HTTP status, in the stateless era. Others are a 200 with the error inside.
STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    -32020: 400,
    -32021: 400,
    -32022: 400,
    TOO_MANY_CALLS_CODE: 429,
}


class SingleRequestRoute:
    """The route of a request that stands alone: it has a session of its own, and ends with its response."""

    __slots__ = ("provider", "conversation", "exchange", "id")

    statuses = STATUS

    def __init__(self, provider: SessionOpener, conversation: Session, exchange: Exchange, id: RequestId) -> None:
        self.provider, self.conversation, self.exchange, self.id = provider, conversation, exchange, id

    def push(self, message: WritableMessage) -> None:
        self.exchange.push(message)

    def wants_events(self, exchange: Exchange) -> bool:
        return False

    def can_start_events(self, seconds: float) -> bool:
        """Late: it cannot be resumed, and the HTTP status of an error is lost when it has begun."""
        return seconds >= MAX_SILENCE_SECONDS

    def start_events(self) -> bytes:
        return b""

    def on_response_started(self) -> None:
        """The call waits. From here on its credential may end before it does."""
        if self.exchange.live is not None:
            self.exchange.live.keep_verifying_holder(self)

    def list_credentials(self) -> tuple[BearerCredential, ...]:
        return self.exchange.list_credentials()

    def credential_ended(self, key: Any) -> None:
        """Its call fails, and so the response ends."""
        self.conversation.end_credential(key)

    def set_challenge(self, challenge: str) -> None:
        """What the client is asked for, if the call ends for want of it."""
        self.exchange.challenge = challenge

    def keep_credential(self, is_kept: Callable[[], bool], ended: Callable[[], None]) -> None:
        """See `core.call.Call`."""
        if self.exchange.live is not None:
            self.exchange.live.keep_verifying_credentials(self.exchange.list_credentials(), is_kept, ended)

    def on_client_left(self) -> None:
        """A client that disconnects cancels its call."""
        self.conversation.cancel(self.id)

    def detach(self, exchange: Exchange) -> None:
        """The response has ended, and cannot be resumed."""
        if exchange.live is not None:
            exchange.live.stop_verifying_holder(self)

    def finish(self) -> None:
        if self.exchange.unread:
            self.exchange.abandon()
        self.provider.release_session(self.conversation)


def route_message(message: Any) -> None:
    """The outlet of a session for a single request."""
    route = message.destination
    if isinstance(route, SingleRequestRoute):
        route.push(message)
    elif message.taken is not None:
        message.taken()
