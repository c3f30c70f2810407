"""HTTP+SSE (MCP 2024-11-05): answers on one stream of events, messages as POSTs. For old clients, off by default."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any
from urllib.parse import parse_qs

from defserve.auth.live.bearers import BearerCredential
from defserve.errors import LimitExceeded
from defserve.transports.asgi import Scope
from defserve.transports.http import sse_format
from defserve.transports.http.answering import SILENCE
from defserve.transports.http.exchange import Exchange
from defserve.transports.http.headers import accepts
from defserve.transports.http.session import CREDENTIALS
from defserve.transports.http.streamable import refuse
from defserve.transports.outbox import OutboundMessage
from defserve.transports.session_provider import SessionProvider, TransportSession
from defserve.wire.codec import decode
from defserve.wire.messages import INTERNAL_ERROR, INVALID_REQUEST, Malformed

STREAM, MESSAGES = "/sse", "/messages"
FULL = ((b"retry-after", b"1"),)


class Feed:
    """A session that lasts as long as its stream. Bound to the principal that opened it."""

    conversation: TransportSession

    def __init__(self, exchange: Exchange) -> None:
        self.exchange, self.draining = exchange, False
        self.heard = self._opened = time.monotonic()
        self._credentials: dict[str, BearerCredential] = {}
        self.note(exchange)

    def push(self, message: OutboundMessage) -> None:
        """A message for the peer. This stream does not end with an answer."""
        if self.exchange.finished:  # it was dropped: nobody may read any more
            if message.taken is not None:
                message.taken()
            return
        self.exchange.keep(message)
        self._finish_if_drained()
        self.exchange.rouse()

    def drain(self) -> None:
        self.draining = True
        self._finish_if_drained()
        self.exchange.rouse()

    def _finish_if_drained(self) -> None:
        if self.draining and not self.conversation.in_flight:
            self.exchange.finished = True

    def idle(self) -> tuple[bool, float] | None:
        """As a `SessionHolder`: whether its client was never heard, and for how long it is silent."""
        return None if self.conversation.in_flight else (self.heard == self._opened, time.monotonic() - self.heard)

    def evict(self) -> None:
        """Its session ends at once, because another one takes its place."""
        self.conversation.close()
        self.exchange.drop()

    def left(self) -> None:
        """Nothing to do: the end of the stream ends the session."""

    # -- credentials -------------------------------------------------------------------------------------

    def note(self, exchange: Exchange) -> None:
        """A message with this credential belongs to the session."""
        for shown in exchange.shown() if exchange.principal.credential not in self._credentials else ():
            self._credentials[shown.key] = shown
        if len(self._credentials) > CREDENTIALS:
            self.credential_ended(next(iter(self._credentials)))

    def shown(self) -> tuple[BearerCredential, ...]:
        return tuple(self._credentials.values())

    def credential_ended(self, key: Any) -> None:
        """End the calls of a credential, and the session if it was opened with it."""
        self._credentials.pop(key, None)
        self.conversation.end_credential(key)
        if key == self.exchange.principal.credential:
            self.exchange.drop()


class LegacySse:
    """The two endpoints, `base`/sse and `base`/messages."""

    def __init__(self, provider: SessionProvider, base: str) -> None:
        self.provider, self.base = provider, base
        self.feeds: dict[str, Feed] = {}

    async def get(self, exchange: Exchange, root: str) -> None:
        """Open a session and be its stream. `root` is the path under which the app is mounted."""
        if not accepts(exchange.headers.get("accept"), "text/event-stream"):
            await refuse(exchange, 406, INVALID_REQUEST, "Not acceptable: accept text/event-stream")
            return
        feed = Feed(exchange)
        try:
            feed.conversation = self.provider.open(feed.push, principal=exchange.principal, counted=True)
        except LimitExceeded as error:
            await refuse(exchange, 503, INTERNAL_ERROR, error.message, headers=FULL)
            return
        feed.conversation.holder = feed
        id = secrets.token_urlsafe(24)
        self.feeds[id] = feed
        if exchange.live is not None:
            exchange.live.hold(feed)
        watch = asyncio.create_task(exchange.watch(feed.left))
        try:
            target = f"{root}{self.base}{MESSAGES}?session_id={id}"
            await exchange.start_events(sse_format.event(target.encode(), name="endpoint"))
            await exchange.stream(SILENCE, feed.left)
        finally:
            watch.cancel()
            del self.feeds[id]
            exchange.abandon()
            feed.conversation.close()
            feed.conversation.holder = None
            if exchange.live is not None:
                exchange.live.release(feed)

    async def find(self, exchange: Exchange, scope: Scope) -> Feed | None:
        """The session that a POST is for. None: it was refused."""
        feed = self.feeds.get(_session_id(scope["query_string"]))
        # Another principal's session is not found: an id is never authority.
        if feed is None or feed.exchange.principal.id != exchange.principal.id:
            await refuse(exchange, 404, INVALID_REQUEST, "Invalid request: no such session; open the stream again")
            return None
        if not feed.exchange.principal.covers(exchange.principal):
            # The answer would go to a reader that may see less than this caller.
            text = "Forbidden: the stream of this session was opened with fewer rights; open another one"
            await refuse(exchange, 403, INVALID_REQUEST, text)
            return None
        if feed.exchange.full:
            text = "Too many answers of this session are unread"
            await refuse(exchange, 503, INTERNAL_ERROR, text, headers=FULL)
            return None
        if feed.conversation.full:
            text, about = (
                "Too many calls of this session wait",
                {"error_type": "limit_exceeded", "retry_after_ms": 1000},
            )
            await exchange.respond(429, exchange.error(INTERNAL_ERROR, text, about=about), FULL)
            return None
        return feed

    async def post(self, exchange: Exchange, feed: Feed, body: bytes) -> None:
        """Take a message. The answer goes out on the stream."""
        limits = self.provider.limits
        message = decode(body, limits.depth, limits.keys)
        if isinstance(message, Malformed) and message.notification is None:
            await refuse(exchange, 400, message.code, message.message, message.id)
            return
        feed.note(exchange)
        feed.heard = time.monotonic()
        feed.conversation.take(message, feed, exchange.principal)
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
