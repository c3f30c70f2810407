"""The ASGI application: the gate, the routes, authentication, the body. It does not look into messages.

With HTTP+SSE (2024-11-05) for old clients, which is off by default.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from defserve.auth.auth_options import Auth
from defserve.auth.authority import (
    MAX_ADDRESS_LENGTH,
    identify_socket_user,
    is_local_user,
    is_stranger,
    make_anonymous_ip_principal,
    normalize_ip_address,
)
from defserve.auth.bearer_tokens import DpopProofRequest, TokenRefused
from defserve.auth.live_credentials import BearerCredential, LiveBearerCredentials
from defserve.auth.oauth import NO_BEARER_TOKEN_REASON, RESOURCE_METADATA_PATH, TOKEN_HEADER_EXAMPLE, AuthDenial
from defserve.auth.principals import METRICS_SCOPES, PERMISSION_SCOPES, Principal
from defserve.auth.rates import FailedTokenCounts
from defserve.core.messages import INTERNAL_ERROR, INVALID_REQUEST, MalformedMessage, decode, encode
from defserve.errors import LimitExceeded
from defserve.serve.http.exchange import Exchange, WritableMessage, format_sse_event
from defserve.serve.http.other_endpoints import (
    API_PAGE_PATH,
    CONNECTION_CLOSE_HEADERS,
    READING_METHODS,
    DocumentMount,
    PageMount,
    PageRules,
    PublicDocument,
    RestMount,
    RestRules,
    WebSocketEndpoint,
    answer_site_request,
    is_direct_to_loopback,
    make_handshake_refusal_sender,
    offers_other_subprotocol,
)
from defserve.serve.http.request_heads import (
    ENCODED_PATH_REFUSAL,
    HostOriginGate,
    RequestHeaders,
    accepts_media_type,
    has_needless_encoding,
    is_json_content_type,
    normalize_request_target,
    prefers_event_stream,
    read_routing_headers,
)
from defserve.serve.http.sessions import MAX_SESSION_CREDENTIALS
from defserve.serve.http.streamable import (
    MAX_SILENCE_SECONDS,
    HttpProtocolRules,
    StreamableEndpoint,
    send_jsonrpc_error,
)
from defserve.serve.sockets import (
    BUFFERED_REQUEST_KEY,
    PEER_USER_KEY,
    BufferedRequest,
    Receive,
    Scope,
    Send,
    get_client_network,
)

if TYPE_CHECKING:
    from defserve.auth.proxy.oauth_proxy import OAuthProxySite
    from defserve.core.session import Session
    from defserve.serve.session_opener import SessionOpener
    from defserve.stores.shared.worker_link import SharedStoreLink


# Reports the state of the server: an HTTP status and a text.
Probe = Callable[[], Awaitable[tuple[int, bytes]]]

# HTTP method → the function that answers it; it returns the rest to await, or None.
Methods = Mapping[str, Callable[[Exchange, Scope], Awaitable[None] | None]]

# What was found for the head of a message to the endpoint: headers, version, routing, whether it prefers events.
Noted = tuple[RequestHeaders, str | None, tuple[str, str, str | None] | None, bool]

REGISTRATION = "POST", "register"
NO_REGISTRATION = f"there is no authorization server here; give the client a token to send: {TOKEN_HEADER_EXAMPLE}"
NOT_FOUND = "Not found: nothing is served at this path. Most addresses end with /mcp"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How an endpoint is reached. `path` is empty for an app that is mounted in another.

    Beside the endpoint, everybody who passes the gate may read the `probes` (as `/healthz`). Authenticated callers may
    also use the `reports` (as `/metrics`) and, with `rest`, `/tools/{name}` and `/openapi.json`. The `page` is for
    browsers; None: they are told that there is none. Everybody, web pages of any site included, may read the
    `documents`. With `shared`, sessions belong to all processes that have it.
    """

    path: str = ""
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    trusted_proxy: bool = False
    bind: str = "127.0.0.1"
    port: int | None = None
    trust_same_user: bool = False
    legacy_sse: bool = False
    auth: Auth | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict[str, Probe])
    reports: Mapping[str, Probe] = field(default_factory=dict[str, Probe])
    rest: RestRules | None = None
    page: PageRules | None = None
    documents: Mapping[str, PublicDocument] = field(default_factory=dict[str, PublicDocument])
    shared: SharedStoreLink | None = None


class HttpApp:
    """The ASGI application of a server."""

    def __init__(self, provider: SessionOpener, rules: HttpProtocolRules, options: HttpOptions) -> None:
        self.provider, self.options, self.auth = provider, options, options.auth
        self.live = LiveBearerCredentials(self.auth) if self.auth is not None else None
        self._site = self.auth.site if self.auth is not None else None
        self._failures = FailedTokenCounts(trusted_proxy=options.trusted_proxy, counted_as=get_client_network)
        self._refusal = rules.refusal
        self.gate = HostOriginGate(
            options.allowed_hosts, options.allowed_origins, options.trusted_proxy, options.bind, options.port
        )
        logs = None
        if options.shared is not None:
            from defserve.serve.http.redis_sessions import RedisLogs

            logs = RedisLogs(options.shared)
        self.streamable = StreamableEndpoint(provider, rules, logs)
        if self.auth is not None:
            self.streamable.challenge = self._ask_for_scopes
        self.sockets = WebSocketEndpoint(provider)
        self.endpoint = options.path.rstrip("/")
        base = self.endpoint.rpartition("/")[0]
        self.legacy = LegacySse(provider, base)
        self.rest = RestMount(provider, options.rest, base) if options.rest is not None else None
        if self.rest is not None and self.auth is not None:
            self.rest.challenge = self._ask_for_scopes
        self.page = PageMount(provider, options.page, options.path, trusted_proxy=options.trusted_proxy)
        self.documents = DocumentMount(options.documents, self.endpoint)
        self._probes = {base + path: probe for path, probe in options.probes.items()}
        self._routes: dict[str, Methods] = {
            self.endpoint: {
                "POST": lambda exchange, scope: self._post_in_steps(exchange),
                "GET": self._get,
                "DELETE": lambda exchange, scope: self.streamable.delete(exchange),
            }
        }
        for path, report in options.reports.items():
            self._routes[base + path] = dict.fromkeys(READING_METHODS, partial(self._report_to_holder, report))
        if options.legacy_sse:
            self._routes[base + STREAM] = {
                "GET": lambda exchange, scope: self.legacy.get(exchange, self._root(scope)),
            }
            self._routes[base + MESSAGES] = {"POST": self._post_legacy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # HTTP is handled here, not in a method of its own: each further coroutine costs a waiting call 0.3 µs.
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._lifespan(receive, send)
            elif scope["type"] == "websocket":
                await self._websocket(scope, receive, send)
            return
        whole: BufferedRequest | None = scope.pop(BUFFERED_REQUEST_KEY, None)
        exchange = Exchange(scope, receive, send, self._nobody(scope), self._refusal, self.live, whole)
        if exchange.head is not None and exchange.head.note is not None:
            left = self._answer_noted(exchange, exchange.head.note)
        else:
            methods = await self._let_in(exchange, scope)
            if methods is None or not (self.auth is None or await self._authenticate(exchange, scope)):
                return
            handle = methods.get(scope["method"])
            if handle is None:
                await self._other_method(exchange, scope, methods)
                return
            if not self.provider.is_on_running_loop:
                await self.provider.start(self.close)
            left = handle(exchange, scope)
        if left is not None:
            await left

    def answer_known_head(self, request: BufferedRequest) -> Awaitable[None] | None:
        """Answer a request whose head has a note, without a scope; see `serve.sockets.KnownHeadApp`."""
        client, head = request.client, request.head
        nobody = client.note = client.note or self._nobody(request.scope)
        exchange = Exchange(None, request.receive, request.send, nobody, self._refusal, self.live, request)
        assert head is not None
        return self._answer_noted(exchange, head.note)

    def _answer_noted(self, exchange: Exchange, noted: Noted) -> Awaitable[None] | None:
        """Answer a message to the endpoint, whose head needs no more checks."""
        exchange.headers, exchange.version, exchange.routing, exchange.prefers_events = noted
        return self._post(exchange) if self.auth is None else self._post_authenticated(exchange)

    async def _post_authenticated(self, exchange: Exchange) -> None:
        if await self._authenticate(exchange, exchange.scope) and (left := self._post(exchange)) is not None:
            await left

    def _post(self, exchange: Exchange) -> Awaitable[None] | None:
        body = exchange.get_buffered_body(self.provider.limits.message)
        return self.streamable.post(exchange, body) if body is not None else self._post_in_steps(exchange)

    async def _let_in(self, exchange: Exchange, scope: Scope) -> Methods | None:
        """The methods at the path of a request. None: it is answered already."""
        if self._site is not None and (at := self._at_site(self._site, exchange, scope)) is not None:
            seconds = self.provider.limits.body
            await answer_site_request(self._site, at, exchange, scope, self.gate, seconds, self._failures)
            return None
        if not await self._passes(exchange, scope):
            return None
        path = self._path(scope)
        methods = self._routes.get(path)
        if methods is None and self.rest is not None:
            methods = self.rest.route(exchange, path, self._root(scope))
        if methods is None:
            await self._elsewhere(exchange, scope)
        return methods

    def _at_site(self, site: OAuthProxySite, exchange: Exchange, scope: Scope) -> str | None:
        """The path of the site that is asked for: by the whole path, or by what is below the path of this app."""
        exchange.read_head()
        if normalize_request_target(scope, exchange.headers.get("host")) or has_needless_encoding(scope):
            return None
        return next((path for path in (scope["path"], self._path(scope)) if site.is_site_path(path)), None)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # "websocket.connect"
        refuse = make_handshake_refusal_sender(scope, send)
        exchange = Exchange(scope, receive, refuse, self._nobody(scope), self._refusal)
        if not await self._passes(exchange, scope):
            return
        if self._path(scope) != self.endpoint:
            await exchange.refuse(404, NOT_FOUND)
            return
        if self.auth is not None and not await self._authenticate(exchange, scope):
            return
        if offers_other_subprotocol(scope):
            await exchange.refuse(400, "Bad request: the subprotocol here is mcp")
            return
        await self.provider.start(self.close)
        try:
            await self.sockets.serve(exchange.principal, scope, receive, send, self.live)
        except LimitExceeded as error:
            await exchange.respond(503, error.message.encode(), [(b"retry-after", b"1")], plain=True)

    async def _passes(self, exchange: Exchange, scope: Scope) -> bool:
        exchange.read_head()
        host, origin, site = (exchange.headers.get(name) for name in ("host", "origin", "sec-fetch-site"))
        refusal = normalize_request_target(scope, host)
        if refusal is None:
            refusal = self.gate.check(host, origin, site)
            if refusal is not None and self._is_open_to_all_origins(exchange, scope):
                refusal = self.gate.check(host, None, None)
        if refusal is None and has_needless_encoding(scope):
            refusal = ENCODED_PATH_REFUSAL
        if refusal is None:
            return True
        if self.rest is not None:
            self.rest.use_own_form(exchange, self._path(scope))
        await exchange.refuse(refusal.status, refusal.text)
        return False

    def _nobody(self, scope: Scope) -> Principal:
        """The principal of a request without credentials."""
        client = scope.get("client")
        if client is None and self.options.trust_same_user:
            return identify_socket_user(scope["state"].get(PEER_USER_KEY))
        return make_anonymous_ip_principal(client[0] if client and len(client[0]) <= MAX_ADDRESS_LENGTH else "")

    async def _authenticate(self, exchange: Exchange, scope: Scope) -> bool:
        assert self.auth is not None
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if self.auth.dpop is None:
            found = await self.auth.authenticate(given)
        else:
            found = await self.auth.authenticate_bound(given, self._proof(scope))
        if found is None:
            return True
        if isinstance(found, Principal):
            exchange.principal = found
            return True
        if not given and self._is_page(exchange, scope) and self.page.is_page_allowed(exchange):
            await self._show(exchange, scope)
            return False
        if given and found.status != 503:
            self._log_refusal(found, scope)
        # A token that is good, but not good enough, is no guess. Nor is one that could not be checked.
        if given and found.status not in (403, 503) and (wait := self._count_failure(scope)):
            text = f"Too many bad tokens came from this address. Wait {wait + 1:.0f} s, or send a good one"
            await exchange.refuse(429, text, [(b"retry-after", b"%d" % (wait + 1))])
        else:
            await self._challenge(exchange, found, scope)
        return False

    def _log_refusal(self, denied: AuthDenial, scope: Scope) -> None:
        assert self.auth is not None
        address = normalize_ip_address(client[0][:MAX_ADDRESS_LENGTH]) if (client := scope.get("client")) else None
        self.auth.refusals.log_refusal(address or "", denied.cause or NO_BEARER_TOKEN_REASON)

    def _count_failure(self, scope: Scope) -> float:
        client, headers = scope.get("client"), scope["headers"]
        forwarded_for = (value for name, value in headers if name == b"x-forwarded-for")
        return self._failures.count_failure(client[0] if client else "", forwarded_for)

    async def _ask_for_scopes(self, exchange: Exchange, scopes: Sequence[str]) -> None:
        assert self.auth is not None
        holder = exchange.principal
        cause = TokenRefused(f"scope: it lacks {' '.join(sorted(holder.missing(scopes)))}", {"sub": holder.id})
        denied = self.auth.make_denial("insufficient_scope", needs=scopes, holder=holder, cause=cause)
        if not is_stranger(holder):
            self._log_refusal(denied, exchange.scope)
        await self._challenge(exchange, denied, exchange.scope)

    async def _challenge(self, exchange: Exchange, denied: AuthDenial, scope: Scope) -> None:
        """Tell a client which credentials it needs."""
        resource = self.auth.resource if self.auth is not None else None
        if resource is not None and (root := self._root(scope)):
            # The paths of the standard belong to the app in which this one is mounted.
            denied = denied.with_metadata_address(
                resource.metadata_url, f"{resource.origin}{root}{RESOURCE_METADATA_PATH}"
            )
        said = [("www-authenticate", denied.challenge), *denied.more]
        headers = [(name.encode(), value.encode("latin-1")) for name, value in said if value]
        await exchange.refuse(denied.status, denied.text, headers)

    def _proof(self, scope: Scope) -> DpopProofRequest:
        """What a DPoP proof of this request must say. The public address is the author's, not what headers say."""
        assert self.auth is not None and self.auth.resource is not None
        public, path = self.auth.resource.url, scope["path"]
        if self._path(scope) != self.endpoint:
            # A proxy may have taken off what stands before the endpoint in its address.
            is_known = self.endpoint and public.endswith(self.endpoint)
            public = f"{public.removesuffix(self.endpoint) if is_known else self.auth.resource.origin}{path}"
        proofs = [value for name, value in scope["headers"] if name == b"dpop"]
        return DpopProofRequest(scope.get("method", "GET"), public, proofs)  # a WebSocket is opened by GET

    async def _elsewhere(self, exchange: Exchange, scope: Scope) -> None:
        """Probes, public documents, and the metadata that tells clients where to get tokens."""
        if (probe := self._probes.get(self._path(scope))) is not None:
            is_read = scope["method"] in READING_METHODS
            await (self._report(probe, exchange, scope) if is_read else _refuse_method(exchange, READING_METHODS))
            return
        document = self._find_document(scope)
        if document is not None and await self.documents.send_document(
            document, exchange, scope["method"], self._make_public_address(exchange, scope)
        ):
            return
        if self._path(scope) in self.page.paths and self.page.is_page_request(exchange, scope):
            await self._show(exchange, scope, status=404)
            return
        resource = self.auth.resource if self.auth is not None else None
        verb, path = scope["method"], scope["path"]
        paths = resource.paths if resource is not None and verb in READING_METHODS else ()
        if resource is not None and (path in paths or self._path(scope) in paths):
            await exchange.respond(200, encode(resource.document()), [(b"access-control-allow-origin", b"*")])
        elif self.auth is not None and resource is None and (verb, path.rpartition("/")[2]) == REGISTRATION:
            # Where no authorization server is named, clients of 2025-03-26 and later take this one for it, and show
            # their user what it says to the attempt to register.
            words = {"error": "invalid_request", "error_description": NO_REGISTRATION}
            await exchange.respond(404, encode(words))
        else:
            await exchange.refuse(404, NOT_FOUND)

    def _is_open_to_all_origins(self, exchange: Exchange, scope: Scope) -> bool:
        """Web pages of any site may read a document, but not find out what runs on the machine they are shown on."""
        return self._find_document(scope) is not None and not is_direct_to_loopback(exchange.headers)

    def _find_document(self, scope: Scope) -> PublicDocument | None:
        return self.documents.find_document(scope["path"], self._path(scope))

    def _make_public_address(self, exchange: Exchange, scope: Scope) -> str:
        """Where clients connect: as the author says, if `auth` has it, else by the name that was asked for."""
        if self.auth is not None and self.auth.resource_url:
            return self.auth.resource_url
        return self.page.make_address(exchange, scope, self._endpoint_path(scope))

    def _get(self, exchange: Exchange, scope: Scope) -> Awaitable[None]:
        if self.page.is_page_request(exchange, scope):
            return self._show(exchange, scope)
        return self.streamable.get(exchange)

    async def _other_method(self, exchange: Exchange, scope: Scope, methods: Methods) -> None:
        """HEAD says what GET would say to a browser. Other methods are refused."""
        if self._is_page(exchange, scope):
            await self._show(exchange, scope)
        else:
            await _refuse_method(exchange, methods)

    def _is_page(self, exchange: Exchange, scope: Scope) -> bool:
        """Whether a browser asks for the endpoint itself."""
        return self.page.is_page_request(exchange, scope) and self._path(scope) == self.endpoint

    async def _show(self, exchange: Exchange, scope: Scope, status: int = 406) -> None:
        """The page, or the sentence that there is none, with this status."""
        if not self.page.is_page_allowed(exchange):
            await self.page.refuse(exchange, status)
            return
        is_admitted = self._admits_all()
        start = partial(self.provider.start, self.close)
        # The page of the API is at `/docs`, if there is an API.
        is_api = self.rest is not None and self._path(scope) == self.page.base + API_PAGE_PATH
        api = self._root(scope) + self.page.base if is_api else None
        await self.page.send_page(exchange, scope, self._endpoint_path(scope), start, is_admitted=is_admitted, api=api)

    def _admits_all(self) -> bool:
        return self.auth is None or self.auth.admits_strangers

    def _endpoint_path(self, scope: Scope) -> str:
        """The whole path of the endpoint, as clients must write it."""
        if self.options.path:
            return self.options.path
        root, path = self._root(scope), scope["path"] if self._path(scope) == self.endpoint else "/"
        return path if root and path.startswith(root) else root + path

    async def _report(self, probe: Probe, exchange: Exchange, scope: Scope) -> None:
        await exchange.respond(*await probe(), [(b"cache-control", b"no-store")], plain=True)

    async def _report_to_holder(self, probe: Probe, exchange: Exchange, scope: Scope) -> None:
        """A report that names every tool, for who has the right to it. A server without `auth` hides none."""
        who = exchange.principal
        if not self._admits_all() and not is_local_user(who) and who.scopes.isdisjoint(METRICS_SCOPES):
            await self._ask_for_scopes(exchange, (PERMISSION_SCOPES["MetricsRead"],))
            return
        await self._report(probe, exchange, scope)

    def _root(self, scope: Scope) -> str:
        # A mounted app sees the whole path and, in root_path, the part that led to it.
        return "" if self.options.path else scope.get("root_path", "").rstrip("/")

    def _path(self, scope: Scope) -> str:
        if scope["path"] == self.options.path:
            return self.endpoint
        if not self.options.path and scope.get("endpoint") is self and "app_root_path" not in scope:
            return self.endpoint  # Starlette's Route has compared the whole path; its Mount has not
        path: str = scope["path"].removeprefix(self._root(scope))
        # Clients write the endpoint with a slash at its end. Nothing else has a second spelling: a proxy in front that
        # denies a path denies what is there.
        return path[:-1] if path in ("/", f"{self.endpoint}/") else path

    async def _post_in_steps(self, exchange: Exchange) -> None:
        if exchange.prefers_events is None and not await self._takes(exchange):
            return
        body = await self._body(exchange)
        left = self.streamable.post(exchange, body) if body is not None else None
        if left is not None:
            await left

    async def _takes(self, exchange: Exchange) -> bool:
        """Whether the message is JSON, and the client takes both forms of an answer."""
        if not await self._is_json(exchange):
            return False
        accept = exchange.headers.get("accept")
        if accepts_media_type(accept, "application/json") and accepts_media_type(accept, "text/event-stream"):
            exchange.prefers_events = prefers_event_stream(accept)
            exchange.routing = read_routing_headers(exchange.headers)
            if exchange.head is not None:
                # A request with the same head skips these checks, and goes to the same place.
                noted: Noted = exchange.headers, exchange.version, exchange.routing, exchange.prefers_events
                exchange.head.note = noted
            return True
        await send_jsonrpc_error(
            exchange, 406, INVALID_REQUEST, "Not acceptable: accept both application/json and text/event-stream"
        )
        return False

    async def _post_legacy(self, exchange: Exchange, scope: Scope) -> None:
        if not await self._is_json(exchange):
            return
        feed = await self.legacy.find(exchange, scope)
        if feed is not None and (body := await self._body(exchange)) is not None:
            await self.legacy.post(exchange, feed, body)

    async def _is_json(self, exchange: Exchange) -> bool:
        if is_json_content_type(exchange.headers.get("content-type")):
            return True
        await send_jsonrpc_error(exchange, 415, INVALID_REQUEST, "Unsupported media type: send application/json")
        return False

    async def _body(self, exchange: Exchange) -> bytes | None:
        """The request's body. None: it was refused, or its client left."""
        limits = self.provider.limits
        try:
            body = await exchange.read_body(limits.message, limits.body)
        except TimeoutError:
            text = "Request timeout: the body did not arrive in time"
            await send_jsonrpc_error(exchange, 408, INVALID_REQUEST, text, headers=CONNECTION_CLOSE_HEADERS)
            return None
        if body is None and not exchange.gone:
            text = f"Content too large: at most {limits.message} bytes"
            await send_jsonrpc_error(exchange, 413, INVALID_REQUEST, text, headers=CONNECTION_CLOSE_HEADERS)
        return body

    def drain(self) -> None:
        """Take no new calls, and end streams that would never end by themselves. From any thread or signal handler."""
        self.provider.drain()
        self.streamable.drain()
        self.sockets.drain()
        self.legacy.drain()

    def close(self) -> None:
        """End every session."""
        self.streamable.close()
        if self.live is not None:
            self.live.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.startup":
                try:
                    await self.provider.start(self.close)
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": repr(error)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            elif kind == "lifespan.shutdown":
                await self.provider.stop()
                if self.auth is not None:
                    await self.auth.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _refuse_method(exchange: Exchange, allowed: Iterable[str]) -> None:
    names = ", ".join(allowed)
    await exchange.refuse(405, f"Method not allowed: this path takes {names}", [(b"allow", names.encode())])


# -- HTTP+SSE (MCP 2024-11-05): answers on one stream of events, messages as POSTs. For old clients, off by default.


STREAM, MESSAGES = "/sse", "/messages"
RETRY_AFTER_HEADERS = ((b"retry-after", b"1"),)


class SseSession:
    """A session that lasts as long as its stream. Bound to the principal that opened it."""

    conversation: Session
    sharer = None

    def __init__(self, exchange: Exchange) -> None:
        self.exchange, self.draining = exchange, False
        self.heard = self._opened = time.monotonic()
        self._credentials: dict[str, BearerCredential] = {}
        self.add_credential(exchange)

    def push(self, message: WritableMessage) -> None:
        """A message for the peer. This stream does not end with an answer."""
        if self.exchange.finished:  # it was dropped: nobody may read any more
            if message.taken is not None:
                message.taken()
            return
        self.exchange.add_message(message)
        self._finish_if_drained()
        self.exchange.wake_writer()

    def drain(self) -> None:
        self.draining = True
        self._finish_if_drained()
        self.exchange.wake_writer()

    def _finish_if_drained(self) -> None:
        if self.draining and not self.conversation.in_flight:
            self.exchange.finished = True

    def get_idle_seconds(self) -> tuple[bool, float] | None:
        """As a `SessionHolder`: whether its client was never heard, and for how long it is silent."""
        return None if self.conversation.in_flight else (self.heard == self._opened, time.monotonic() - self.heard)

    def evict(self) -> None:
        """Its session ends at once, because another one takes its place."""
        self.conversation.close()
        self.exchange.end_without_answer()

    def on_client_left(self) -> None:
        """Nothing to do: the end of the stream ends the session."""

    # -- credentials -------------------------------------------------------------------------------------

    def add_credential(self, exchange: Exchange) -> None:
        """A message with this credential belongs to the session."""
        for shown in exchange.list_credentials() if exchange.principal.credential not in self._credentials else ():
            self._credentials[shown.key] = shown
        if len(self._credentials) > MAX_SESSION_CREDENTIALS:
            self.credential_ended(next(iter(self._credentials)))

    def list_credentials(self) -> tuple[BearerCredential, ...]:
        return tuple(self._credentials.values())

    def credential_ended(self, key: Any) -> None:
        """End the calls of a credential, and the session if it was opened with it."""
        self._credentials.pop(key, None)
        self.conversation.end_credential(key)
        if key == self.exchange.principal.credential:
            self.exchange.end_without_answer()


class LegacySse:
    """The two endpoints, `base`/sse and `base`/messages."""

    def __init__(self, provider: SessionOpener, base: str) -> None:
        self.provider, self.base = provider, base
        self.feeds: dict[str, SseSession] = {}

    async def get(self, exchange: Exchange, root: str) -> None:
        """Open a session and be its stream. `root` is the path under which the app is mounted."""
        if not accepts_media_type(exchange.headers.get("accept"), "text/event-stream"):
            await send_jsonrpc_error(exchange, 406, INVALID_REQUEST, "Not acceptable: accept text/event-stream")
            return
        feed = SseSession(exchange)
        try:
            feed.conversation = self.provider.open(feed.push, principal=exchange.principal, counted=True)
        except LimitExceeded as error:
            await send_jsonrpc_error(exchange, 503, INTERNAL_ERROR, error.message, headers=RETRY_AFTER_HEADERS)
            return
        feed.conversation.holder = feed
        id = secrets.token_urlsafe(24)
        self.feeds[id] = feed
        if exchange.live is not None:
            exchange.live.keep_verifying_holder(feed)
        watch = asyncio.create_task(exchange.watch_client(feed.on_client_left))
        try:
            target = f"{root}{self.base}{MESSAGES}?session_id={id}"
            await exchange.start_events(format_sse_event(target.encode(), name="endpoint"))
            if self.provider.composition.draining:
                feed.drain()
            await exchange.stream(MAX_SILENCE_SECONDS, feed.on_client_left)
        finally:
            watch.cancel()
            del self.feeds[id]
            exchange.abandon()
            feed.conversation.close()
            feed.conversation.holder = None
            if exchange.live is not None:
                exchange.live.stop_verifying_holder(feed)

    async def find(self, exchange: Exchange, scope: Scope) -> SseSession | None:
        """The session that a POST is for. None: it was refused."""
        feed = self.feeds.get(_session_id(scope["query_string"]))
        # Another principal's session is not found: an id is never authority.
        if feed is None or feed.exchange.principal.id != exchange.principal.id:
            await send_jsonrpc_error(
                exchange, 404, INVALID_REQUEST, "Invalid request: no such session; open the stream again"
            )
            return None
        if not feed.exchange.principal.covers(exchange.principal):
            # The answer would go to a reader that may see less than this caller.
            text = "Forbidden: the stream of this session was opened with fewer rights; open another one"
            await send_jsonrpc_error(exchange, 403, INVALID_REQUEST, text)
            return None
        if feed.exchange.is_full:
            text = "Too many answers of this session are unread"
            await send_jsonrpc_error(exchange, 503, INTERNAL_ERROR, text, headers=RETRY_AFTER_HEADERS)
            return None
        if feed.conversation.full:
            text = "Too many calls of this session wait"
            about = {"error_type": "limit_exceeded", "retry_after_ms": 1000}
            await exchange.respond(429, exchange.encode_error(INTERNAL_ERROR, text, about=about), RETRY_AFTER_HEADERS)
            return None
        return feed

    async def post(self, exchange: Exchange, feed: SseSession, body: bytes) -> None:
        """Take a message. The answer goes out on the stream."""
        limits = self.provider.limits
        message = decode(body, limits.depth, limits.keys)
        if isinstance(message, MalformedMessage) and message.notification is None:
            await send_jsonrpc_error(exchange, 400, message.code, message.message, message.id)
            return
        feed.add_credential(exchange)
        feed.heard = time.monotonic()
        feed.conversation.feed_message(message, feed, exchange.principal)
        await exchange.respond(202)

    def drain(self) -> None:
        """End every stream as soon as the calls of its session are answered."""
        for feed in list(self.feeds.values()):
            feed.drain()


def _session_id(query: bytes) -> str:
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=16).get("session_id", [""])[0]
    except ValueError:  # too many fields
        return ""
