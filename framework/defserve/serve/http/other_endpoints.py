"""Endpoints beside Streamable HTTP: WebSocket, REST for plain HTTP callers, pages and public documents, sign-in pages.

One socket is one session, one text frame is one message. While a peer does not read, nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from pydantic_core import from_json

from defserve.auth.authority import MAX_ADDRESS_LENGTH, make_anonymous_ip_principal
from defserve.auth.live_credentials import CREDENTIAL_ENDED_REASON, BearerCredential, LiveBearerCredentials
from defserve.auth.principals import Principal
from defserve.auth.proxy.site_messages import MAX_SITE_BODY_BYTES, SiteRequest
from defserve.auth.rates import FailedTokenCounts
from defserve.base.peer_bounds import MAX_PEER_TEXT_LENGTH, truncate_text
from defserve.core.json_values import find_limit_violation, is_object
from defserve.core.messages import Params, Request, encode
from defserve.serve.http.exchange import (
    HTML_CONTENT_TYPE,
    MAX_STALL_SECONDS,
    Exchange,
    UnreadMessages,
    WritableMessage,
)
from defserve.serve.http.request_heads import (
    HostOriginGate,
    RequestHeaders,
    is_json_content_type,
    is_loopback_name,
)
from defserve.serve.http.streamable import (
    CLIENT_LEFT_STATUS,
    SingleRequestRoute,
    absorb_call_cancellation,
    route_message,
)
from defserve.serve.http.streams import ClientWatch
from defserve.serve.sockets import HeaderList, Receive, Scope, Send, get_client_network

if TYPE_CHECKING:
    from defserve.auth.proxy.oauth_proxy import OAuthProxySite
    from defserve.core.extension import Offer
    from defserve.core.session import Session
    from defserve.serve.session_opener import ReplyEncoder, SessionOpener

READING_METHODS: Final = "GET", "HEAD"
CONNECTION_CLOSE_HEADERS: Final = ((b"connection", b"close"),)
SUBPROTOCOL = "mcp"
CLOSE_SECONDS = 5.0


class CloseReason(NamedTuple):
    """A close code (RFC 6455 §7.4) and the reason in words."""

    code: int
    reason: str


NO_BINARY = CloseReason(1003, "one JSON message a text frame")
TOO_BIG = CloseReason(1009, "message too big")
CREDENTIAL_ENDED = CloseReason(1008, CREDENTIAL_ENDED_REASON)
RESTART = CloseReason(1012, "the server is stopping")
GIVES_WAY = CloseReason(1013, "another client needs the place; come back later")

# Sent before the socket is accepted, it refuses the socket. Servers turn it into a 403.
POLICY_VIOLATION_CODE = 1008


class WebSocketEndpoint:
    """Every open socket of an endpoint."""

    def __init__(self, provider: SessionOpener) -> None:
        self.provider = provider
        self.open: set[WebSocket] = set()
        self.draining = False

    async def serve(
        self,
        principal: Principal,
        scope: Scope,
        receive: Receive,
        send: Send,
        live: LiveBearerCredentials | None = None,
    ) -> None:
        """Serve one socket from its acceptance to its end. The caller has checked that the client may connect.

        The socket ends with the credential that it was opened with. Raises LimitExceeded before it is accepted.
        """
        socket = WebSocket(scope, receive, send, self.provider.limits.message)
        socket.conversation = self.provider.open(socket.push, principal=principal, counted=True)
        try:
            await send({"type": "websocket.accept", "subprotocol": choose_subprotocol(scope)})
        except BaseException:
            socket.conversation.close()
            raise
        socket.conversation.on_room, socket.conversation.holder = socket.read_on, socket
        self.open.add(socket)
        if live is not None:
            socket.credentials = live.extract_bearer_credentials(principal, scope["headers"])
            live.keep_verifying_holder(socket)
        try:
            if self.draining:
                socket.drain()
            await socket.serve()
        finally:
            self.open.discard(socket)
            socket.conversation.holder = None
            if live is not None:
                live.stop_verifying_holder(socket)

    def drain(self) -> None:
        """Close every socket as soon as its calls are answered."""
        self.draining = True
        for socket in list(self.open):
            socket.drain()


class WebSocket(UnreadMessages):
    """One accepted socket."""

    __slots__ = (
        *("conversation", "draining", "credentials", "scope"),
        *("_heard", "_limit", "_opened", "_receive", "_room", "_send", "_tasks", "_why"),
    )

    conversation: Session
    sharer = None

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        super().__init__()
        self.scope, self.draining = scope, False
        self.credentials: tuple[BearerCredential, ...] = ()
        self._tasks: list[asyncio.Task[CloseReason | None]] = []
        self._why: CloseReason | None = None
        self._receive, self._send, self._limit = receive, send, limit
        self._room = asyncio.Event()
        self._heard = self._opened = time.monotonic()

    def push(self, message: WritableMessage) -> None:
        """A message for the peer."""
        self.add_message(message)
        self._finish_if_drained()
        self.wake_writer()

    def read_on(self) -> None:
        """There may be room for more of the client's calls."""
        self._room.set()

    def drain(self) -> None:
        self.draining = True
        self._finish_if_drained()
        self.wake_writer()

    def _finish_if_drained(self) -> None:
        self.finished = self.draining and not self.conversation.in_flight

    def list_credentials(self) -> tuple[BearerCredential, ...]:
        return self.credentials

    def credential_ended(self, key: Any) -> None:
        self._end(CREDENTIAL_ENDED)

    def get_idle_seconds(self) -> tuple[bool, float] | None:
        """As a `SessionHolder`: whether its client was never heard, and for how long it is silent."""
        if self.conversation.in_flight or not self._tasks:
            return None
        return self._heard == self._opened, time.monotonic() - self._heard

    def evict(self) -> None:
        """Its session ends at once, because another one takes its place."""
        self.conversation.close()
        self._end(GIVES_WAY)

    def _end(self, reason: CloseReason) -> None:
        """Close the socket at once, even if its client does not read."""
        self._why = reason
        for task in self._tasks:
            task.cancel()

    async def serve(self) -> None:
        """Serve until the client leaves, breaks a rule or stops reading, its credential ends, or the server stops."""
        self._tasks = tasks = [asyncio.create_task(self._read_messages()), asyncio.create_task(self._write())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self.abandon()
            self.conversation.close()
        for task in done:
            if (reason := self._why or task.result()) is not None:
                await self.close(reason)
                break

    async def _read_messages(self) -> CloseReason | None:
        """Hand every message to the session. Returns why the socket must be closed, or None if the client left."""
        while True:
            while self.is_full or self.conversation.full:
                # The client does not read its answers, or has sent more calls than can wait.
                self._room.clear()
                await self._room.wait()
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return None
            text = event.get("text")
            if text is None:
                return NO_BINARY
            data = text.encode()
            if len(data) > self._limit:
                return TOO_BIG
            self._heard = time.monotonic()
            self.conversation.feed_bytes(data)

    async def _write(self) -> CloseReason | None:
        """Write messages until no more will follow, or the client does not read."""
        try:
            while await self.wait():
                while self.unread:
                    item = self.unread.pop(0)
                    try:
                        async with asyncio.timeout(MAX_STALL_SECONDS):
                            await self._send({"type": "websocket.send", "text": item.message.data.decode()})
                    finally:
                        item.report_message_taken()
                    self._room.set()
                if self.finished:
                    return RESTART
        except (TimeoutError, OSError):  # stalled, or gone
            pass
        return None

    async def close(self, reason: CloseReason) -> None:
        """Close the socket with a reason. The client may not be listening."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": reason.code, "reason": reason.reason[:100]})


def choose_subprotocol(scope: Scope) -> str | None:
    """`mcp` if the client offers it."""
    # Some ASGI servers leave several in one text.
    offered = ",".join(scope.get("subprotocols", ())).replace(" ", "").split(",")
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def offers_other_subprotocol(scope: Scope) -> bool:
    """Whether the client offers subprotocols, and `mcp` is not among them."""
    return bool(scope.get("subprotocols")) and choose_subprotocol(scope) is None


def make_handshake_refusal_sender(scope: Scope, send: Send) -> Send:
    """Turns an HTTP refusal into what can be sent before a socket is accepted: that response, or a close."""
    can_respond = "websocket.http.response" in scope.get("extensions", {})

    async def refuse(message: Scope) -> None:
        if can_respond:
            await send({**message, "type": f"websocket.{message['type']}"})
        elif message["type"] == "http.response.start":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION_CODE})

    return refuse


# -- Tools for callers that know only HTTP and JSON: `POST /tools/{name}`, described by `GET /openapi.json`.
#
# Such a call passes the same gate, authentication, stages and limits as every other. Only its form differs.


Challenge = Callable[[Exchange, Sequence[str]], Awaitable[None]]
Methods = Mapping[str, Callable[[Exchange, Scope], Awaitable[None]]]

TOOLS, DOCUMENT = "/tools", "/openapi.json"

# The kind of failure → its HTTP status. Any other kind is a 422.
STATUS: Final[Mapping[str, int]] = {
    "invalid_arguments": 400,
    "invalid_params": 400,
    "unknown_tool": 404,
    "refused": 403,
    "credential_ended": 401,
    "validation_blocked": 403,
    "code_safety_violation": 403,
    "permission_denied": 403,
    "access_denied": 403,
    "confirmation_required": 403,
    "tool_disabled": 403,
    "server_not_found": 404,
    "server_already_registered": 409,
    "limit_exceeded": 429,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "upstream_error": 502,
    "draining": 503,
    "server_not_ready": 503,
    "server_restarting": 503,
    "resource_exhausted": 503,
    "upstream_unavailable": 503,
    "upstream_timeout": 504,
    "audit_unavailable": 503,
    "store_unavailable": 503,
    "store_busy": 503,
    "timeout": 504,
    "internal_error": 500,
}
FAILED: Final = 422

# The status of a request that no tool has seen → the kind of failure.
REFUSALS: Final[Mapping[int, str]] = {
    400: "invalid_arguments",
    401: "unauthenticated",
    403: "permission_denied",
    405: "method_not_allowed",
    429: "rate_limited",
    503: "server_not_ready",
}


@dataclass(frozen=True, slots=True)
class RestRules:
    """What the mount must know about the protocol."""

    offer: Offer
    """The offer of every caller: it waits for the answer, and can do nothing else."""
    call: Callable[[str, Params], tuple[Request, ReplyEncoder]]
    """The request that calls a tool, and how it is answered."""
    document: Callable[[str], tuple[Request, ReplyEncoder]]
    """The request whose answer is the OpenAPI document, for tools served below a path."""
    scopes: Callable[[str], Sequence[str]]


class RestFailure(Exception):
    """A call that failed: the kind of failure, a message, and details."""

    def __init__(self, kind: str, message: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.detail = kind, truncate_text(message, MAX_PEER_TEXT_LENGTH), dict(detail or {})

    @property
    def status(self) -> int:
        return STATUS.get(self.kind, FAILED)

    def body(self) -> bytes:
        known = {name: self.detail[name] for name in ("trace_id", "problems") if name in self.detail}
        return encode({"error": {"type": self.kind, "message": self.message, **known}})

    def headers(self) -> HeaderList:
        wait = self.detail.get("retry_after_ms")
        return [(b"retry-after", b"%d" % (wait // 1000 + 1))] if isinstance(wait, int) else []


class RestMount:
    """The paths of the mount, and how they are answered."""

    def __init__(self, provider: SessionOpener, rules: RestRules, base: str) -> None:
        self.provider, self.rules, self.base = provider, rules, base
        self.challenge: Challenge | None = None

    def route(self, exchange: Exchange, path: str, root: str) -> Methods | None:
        """The methods at a path below the app's root. None if the path does not belong to the mount."""
        if not self.use_own_form(exchange, path):
            return None
        if path == self.base + DOCUMENT:
            below = root + self.base
            return dict.fromkeys(READING_METHODS, lambda exchange, scope: self.send_openapi_document(exchange, below))
        name = path.removeprefix(f"{self.base}{TOOLS}").removeprefix("/")
        return {"POST": lambda exchange, scope: self.call_tool(exchange, name)}

    def use_own_form(self, exchange: Exchange, path: str) -> bool:
        """Have refusals sent as the document says, if the path belongs to the mount. Whether it does."""
        is_ours = path == self.base + DOCUMENT or (path + "/").startswith(f"{self.base}{TOOLS}/")
        if is_ours:
            exchange.encode_refusal = _encode_refusal
        return is_ours

    async def send_openapi_document(self, exchange: Exchange, below: str) -> None:
        """The document of the tools that this caller sees."""
        await answer_shaped(self.provider, exchange, self.rules.offer, *self.rules.document(below))

    async def call_tool(self, exchange: Exchange, name: str) -> None:
        scopes = self.rules.scopes(name)
        if self.challenge is not None and exchange.principal.missing(scopes):
            await self.challenge(exchange, scopes)
            return
        try:
            arguments = await self._arguments(exchange)
        except RestFailure as failed:
            await exchange.respond(failed.status, failed.body(), failed.headers())
            return
        if arguments is not None:
            await answer_shaped(self.provider, exchange, self.rules.offer, *self.rules.call(name, arguments))

    async def _arguments(self, exchange: Exchange) -> Params | None:
        """The body, an object. None: it was refused, or its client left. Raises RestFailure."""
        limits = self.provider.limits
        try:
            body = await exchange.read_body(limits.message, limits.body)
        except TimeoutError:
            await _refuse(exchange, 408, "timeout", "the body did not arrive in time")
            return None
        if body is None:
            if not exchange.gone:
                await _refuse(exchange, 413, "limit_exceeded", f"the body is larger than {limits.message} bytes")
            return None
        kind = exchange.headers.get("content-type")
        if not body and kind is None:
            return {}
        if not is_json_content_type(kind):
            await _refuse(exchange, 415, "invalid_arguments", "send application/json")
            return None
        try:
            found: Any = from_json(body, allow_inf_nan=False) if body.strip() else {}
        except ValueError as error:
            raise RestFailure("invalid_arguments", f"the body is not JSON: {error}") from None
        problem = find_limit_violation(found, limits.depth, limits.keys)
        if problem is not None or not is_object(found):
            raise RestFailure("invalid_arguments", problem or "the body must be an object: the arguments by name")
        return found


def _encode_refusal(status: int, text: str) -> bytes:
    """What the document says an error is, for a request that is refused before its tool is looked for."""
    return RestFailure(REFUSALS.get(status, "refused"), text).body()


async def _refuse(exchange: Exchange, status: int, kind: str, text: str) -> None:
    close = CONNECTION_CLOSE_HEADERS if status in (408, 413) else ()
    await exchange.respond(status, RestFailure(kind, text).body(), close)


# -- The page for a person who opens an address in a browser, or the sentence that there is none.
#
# The page says what a client without a token is told. No credential of the browser is looked at.


API_PAGE_PATH: Final = "/docs"

# A request with one of these came through a proxy, so its Host may not be what the browser asked for.
FORWARDING: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")

PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")
MAX_PREFIX_LENGTH: Final = 200

NO_PAGE: Final = "This address is for MCP clients. There is no page for browsers here."


MakeApiPage: TypeAlias = Callable[[str, str], tuple[Request, "ReplyEncoder"]]
"""The path and the address of a REST API → the request whose answer is its page."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """What the page says, for the address that clients connect to."""

    offer: Offer
    """The offer of a client that speaks nothing but the protocol itself."""
    listed: Callable[[str], tuple[Request, ReplyEncoder]]
    """The request whose answer is the page."""
    unlisted: Callable[[str], bytes]
    """The page of a server that tells nothing to who shows no token."""
    headers: HeaderList
    api: MakeApiPage | None = None
    """None if there is no REST API."""


@dataclass(frozen=True, slots=True)
class PageRules:
    """Who gets the page, and how it is made when the first browser asks.

    Unless it is shown `everywhere`, a browser gets it that asked for a loopback name, through no proxy.
    """

    everywhere: bool
    content: Callable[[], PageContent]


class PageMount:
    """Answers browsers at the endpoint, and at the paths beside it. `rules` None: there is no page."""

    def __init__(self, provider: SessionOpener, rules: PageRules | None, path: str, *, trusted_proxy: bool) -> None:
        self.provider, self.rules, self._trusted_proxy = provider, rules, trusted_proxy
        self.base = base = path.rstrip("/").rpartition("/")[0]
        self.paths = frozenset((base, f"{base}/", base + API_PAGE_PATH, *(("",) if path else ())))

    def is_page_request(self, exchange: Exchange, scope: Scope) -> bool:
        """Whether a request is that of a browser that wants to show something to a person."""
        return exchange.is_browser_request

    def is_page_allowed(self, exchange: Exchange) -> bool:
        """Whether this browser gets the page."""
        return self.rules is not None and (self.rules.everywhere or is_direct_to_loopback(exchange.headers))

    async def send_page(
        self,
        exchange: Exchange,
        scope: Scope,
        path: str,
        start: Callable[[], Awaitable[None]],
        *,
        is_admitted: bool,
        api: str | None = None,
    ) -> None:
        """Send the page of the endpoint at `path`, or of the API below the path `api`.

        `is_admitted`: who shows no token may ask this server something.
        """
        content, address = self._content, self.make_address(exchange, scope, path)
        if not is_admitted:
            await exchange.respond(200, content.unlisted(address), content.headers, kind=HTML_CONTENT_TYPE)
            return
        await start()
        client = scope.get("client")
        exchange.principal = make_anonymous_ip_principal(
            client[0] if client and len(client[0]) <= MAX_ADDRESS_LENGTH else ""
        )
        if api is not None and content.api is not None:
            asked = content.api(api, self.make_address(exchange, scope, api))
        else:
            asked = content.listed(address)
        await answer_shaped(self.provider, exchange, content.offer, *asked)

    @cached_property
    def _content(self) -> PageContent:
        assert self.rules is not None
        return self.rules.content()

    async def refuse(self, exchange: Exchange, status: int) -> None:
        """Say that there is no page, and nothing else."""
        await exchange.refuse(status, NO_PAGE)

    def make_address(self, exchange: Exchange, scope: Scope, path: str) -> str:
        """Where clients connect, by the name that the browser knows."""
        scheme = "https" if scope.get("scheme") in ("https", "wss") else "http"
        prefix = exchange.headers.get("x-forwarded-prefix") or "" if self._trusted_proxy else ""
        if len(prefix) > MAX_PREFIX_LENGTH or PREFIX.fullmatch(prefix) is None:
            prefix = ""
        return f"{scheme}://{exchange.headers.get('host')}{quote(prefix.rstrip('/') + path)}"


def is_direct_to_loopback(headers: RequestHeaders) -> bool:
    """Whether a request names this machine, and came through no proxy."""
    return is_loopback_name(headers.get("host")) and all(headers.get(name) is None for name in FORWARDING)


# -- Documents that everybody may read without a token, web pages of any site included: who the server is, and proofs.


WELL_KNOWN: Final = "/.well-known/"
DOCUMENT_METHODS: Final = b"GET, HEAD, OPTIONS"
CORS_HEADERS: Final[HeaderList] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"Content-Type, If-None-Match"),
    (b"access-control-expose-headers", b"ETag"),
)
# The document has the address of the endpoint, and a trusted proxy says a part of that in this header.
VARY: Final = b"vary", b"X-Forwarded-Prefix"


class PublicDocument(NamedTuple):
    """A document with a media type, made for the address that clients connect to. None: there is none."""

    media_type: str
    make: Callable[[str], bytes | None]
    cache_control: str = "public, max-age=3600"


class DocumentMount:
    """The paths of public documents: those below `/.well-known/` as they are, all others below the endpoint."""

    def __init__(self, documents: Mapping[str, PublicDocument], endpoint: str) -> None:
        self._documents = {
            path if path.startswith(WELL_KNOWN) else endpoint + path: document for path, document in documents.items()
        }
        self.paths = frozenset(self._documents)

    def find_document(self, whole_path: str, path: str) -> PublicDocument | None:
        """The document at a path, or at a path below the app's root. A well-known path may be either."""
        if not self._documents:
            return None
        return self._documents.get(path) or (
            self._documents.get(whole_path) if whole_path.startswith(WELL_KNOWN) else None
        )

    async def send_document(self, document: PublicDocument, exchange: Exchange, verb: str, address: str) -> bool:
        """Answer a request for a document. False: there is none for this address, and nothing was sent."""
        if verb == "OPTIONS":
            await exchange.respond(200, b"", [*CORS_HEADERS, (b"allow", DOCUMENT_METHODS)])
            return True
        if verb not in ("GET", "HEAD"):
            text = f"Method not allowed: this path takes {DOCUMENT_METHODS.decode()}"
            await exchange.refuse(405, text, [*CORS_HEADERS, (b"allow", DOCUMENT_METHODS)])
            return True
        body = document.make(address)
        if body is None:
            return False
        tag = f'"{sha256(body).hexdigest()[:32]}"'
        cache = b"cache-control", document.cache_control.encode()
        headers = [*CORS_HEADERS, cache, VARY, (b"etag", tag.encode())]
        if is_tag_known(exchange.headers.get("if-none-match"), tag):
            await exchange.respond(304, b"", headers)
        else:
            await exchange.respond(200, body, headers, kind=(b"content-type", document.media_type.encode()))
        return True


def is_tag_known(header: str | None, tag: str) -> bool:
    """Whether an `If-None-Match` names a tag (RFC 9110 §13.1.2). Weak tags count like strong ones."""
    names = [name.strip().removeprefix("W/") for name in (header or "").split(",")]
    return names == ["*"] or tag in names


# -- A single request whose reply is not JSON-RPC: it is run, and sent in the form that its shape gives it.


async def answer_shaped(
    provider: SessionOpener, exchange: Exchange, offer: Offer, request: Request, reply: ReplyEncoder
) -> None:
    """Run a single request for the caller of an exchange, and send its outcome as `reply` encodes it."""
    conversation = provider.open_for_one_request(route_message, principal=exchange.principal, shape=reply)
    route = SingleRequestRoute(provider, conversation, exchange, request.id)
    try:
        begun = conversation.start_call(request, route, offer)
        if not isinstance(begun, tuple):
            with ClientWatch(exchange, route) as attached:
                attached.watch()
                assert begun.rest is not None
                await begun.rest
                await absorb_call_cancellation()
            begun = begun.reply or (b"", None)
    finally:
        exchange.abandon()
        conversation.close()
    body, status = begun
    if body and reply.later is not None:
        body, status = await reply.later()
    if body:
        await exchange.respond(status or 200, body, reply.headers, kind=reply.kind)
    else:
        await exchange.respond(CLIENT_LEFT_STATUS)  # nobody reads it, but some middleware needs a response


# -- Pages and endpoints of `Auth.site`. Links of any site lead there, so of the gate only the rule for names holds.


async def answer_site_request(
    site: OAuthProxySite,
    path: str,
    exchange: Exchange,
    scope: Scope,
    gate: HostOriginGate,
    seconds: float,
    failures: FailedTokenCounts,
) -> None:
    """Answer a request for one of the paths of the site. Its pages judge origins themselves."""
    exchange.read_head()
    refusal = gate.check(exchange.headers.get("host"), None, None)
    if refusal is not None:
        await exchange.refuse(refusal.status, refusal.text)
        return
    try:
        body = await exchange.read_body(MAX_SITE_BODY_BYTES, seconds) if scope["method"] == "POST" else b""
    except TimeoutError:
        await exchange.refuse(408, "The body did not arrive in time", CONNECTION_CLOSE_HEADERS)
        return
    if body is None:
        if not exchange.gone:
            await exchange.refuse(413, f"The body is larger than {MAX_SITE_BODY_BYTES} bytes", CONNECTION_CLOSE_HEADERS)
        return
    client, headers = scope.get("client"), dict[str, str]()
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        # HTTP/2 may send each cookie in a header of its own.
        headers[key] = text if key not in headers else f"{headers[key]}{'; ' if key == 'cookie' else ', '}{text}"
    query = scope.get("query_string", b"").decode("latin-1")
    address = client[0] if client else ""
    network = failures.find_network(address, (headers.get("x-forwarded-for", "").encode("latin-1"),))
    asked = SiteRequest(scope["method"], path, query, headers, body, get_client_network(address), network)
    answer = await site.answer_request(asked)
    sent = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
    kinds = [one for one in sent if one[0] == b"content-type"]
    others = [one for one in sent if one[0] != b"content-type"]
    if kinds:
        await exchange.respond(answer.status, answer.body, others, kind=kinds[0])
    else:
        await exchange.respond(answer.status, answer.body, others, plain=True)
