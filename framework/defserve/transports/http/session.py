"""A session over HTTP: its streams, which of them a client reads, and the messages that wait for the client."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from defserve.stores.stream_events import EventGap, EventStore, MemoryEvents, StoredEventKind
from defserve.transports.http import sse_format
from defserve.transports.http.exchange import Exchange
from defserve.transports.outbox import TOO_MANY_CALLS, UNREAD, ClientOutbox, OutboundMessage
from defserve.transports.session_provider import TransportSession

RETRY_MS = 1000
STANDALONE = "standalone"


class HttpSession:
    """The session that `Mcp-Session-Id` names. Bound to the principal that opened it.

    `primed`: a response may end early; its client has an event id to come back with (SEP-1699).
    """

    conversation: TransportSession

    def __init__(self, id: str, principal: str) -> None:
        self.id, self.principal, self.primed = id, principal, False
        self.used, self.readers = time.monotonic(), 0
        self.events: EventStore = MemoryEvents()
        self.streams: dict[str, ResponseStream] = {}
        self.standalone = StandaloneStream(self)
        self.named = 0
        self._unread: dict[str, None] = {}

    def outlet(self, message: Any) -> None:
        """Send a message to the stream of its request, or to the session's own."""
        stream = message.destination
        (stream if isinstance(stream, ResponseStream) else self.standalone).push(message)

    def resume(self, event_id: str, exchange: Exchange) -> tuple[ResponseStream, bytes] | None:
        """The stream that a client continues, and the events it has missed. None for an unknown id."""
        try:
            found = self.events.after(event_id)
        except EventGap as gap:
            # Answers and questions are never dropped, so the rest is still useful.
            found = (gap.stream, gap.left) if gap.stream is not None else None
        if found is None:
            return None
        name, missed = found
        stream = self.standalone if name == STANDALONE else self.streams.get(name)
        if stream is None:
            self._unread.pop(name, None)
            stream = ResponseStream(self, exchange)
            stream.name, stream.answered = name, True
        stream.resume(exchange)
        return stream, b"".join(sse_format.event(data, id=id) for id, data in missed)

    def answered_unread(self, name: str) -> None:
        """A call was answered while its client was away. Past `UNREAD` such answers, the oldest is dropped."""
        self.streams.pop(name, None)
        self._unread[name] = None
        if len(self._unread) > UNREAD:
            oldest = next(iter(self._unread))
            del self._unread[oldest]
            self.events.finish(oldest)

    def is_idle(self, seconds: float) -> bool:
        """Whether nothing is running, and the client has sent nothing for so many seconds."""
        return not (self.readers or self.streams) and time.monotonic() - self.used > seconds

    def close(self) -> None:
        for stream in (self.standalone, *self.streams.values()):
            stream.drop()
        self.standalone.forget()
        self.conversation.close()
        self.events.forget()


class ResponseStream:
    """The messages of one request. It outlives the HTTP response that carries them."""

    __slots__ = ("session", "name", "exchange", "answered", "_first")

    # With a session, errors of a call are only in the body; the HTTP status is 200.
    statuses: Mapping[int, int] = {TOO_MANY_CALLS: 429}
    exchange: Exchange | None

    def __init__(self, session: HttpSession, exchange: Exchange | None) -> None:
        self.session, self.exchange = session, exchange
        # A client cannot resume a stream that has no name.
        self.name, self.answered = "", False
        self._first = b""

    def push(self, message: OutboundMessage) -> None:
        self.answered = self.answered or message.answers
        id = self._kept(message) if self.name and message.data else None
        if self.is_read:
            assert self.exchange is not None
            self.exchange.push(message, id)
        else:
            self._left_unread(message, id)

    @property
    def is_read(self) -> bool:
        """Whether an open response can carry more messages."""
        return self.exchange is not None and not (self.exchange.gone or self.exchange.finished)

    def _left_unread(self, message: OutboundMessage, id: str | None) -> None:
        if message.answers and self.name:
            self.session.answered_unread(self.name)
        if message.taken is not None:
            message.taken()

    def _kept(self, message: OutboundMessage) -> str:
        kind: StoredEventKind = "message"
        if message.answers:
            kind = "result"
        elif message.asks:
            kind = "request"
        elif message.replaces is not None:
            kind = "progress"
        events = self.session.events
        id = events.append(self.name, message.data, kind=kind, key=message.replaces)
        if kind == "request":
            message.release = partial(events.release, id)
        return id

    def start(self) -> bytes:
        """The response becomes a stream that can be resumed. Returns its first event, which may have no data."""
        if not self.name:
            self._take_name()
        first, self._first = self._first, b""
        return first

    def _take_name(self) -> None:
        assert self.exchange is not None
        self.session.named += 1
        self.name = f"call-{self.session.named}"
        if not self.answered:
            self.session.streams[self.name] = self
        if self.session.primed:
            self._first = sse_format.event(b"", id=self.session.events.mark(self.name), retry=RETRY_MS)
        for item in self.exchange.unread:
            item.id = self._kept(item.message)

    def wants_events(self, exchange: Exchange) -> bool:
        """Whether the response can be resumed, or the client prefers events."""
        return bool(self.name or exchange.prefers_events)

    def attached(self) -> None:
        """A response has begun. From here on its client may leave."""
        self.session.readers += 1

    def hang_up(self) -> None:
        """End the response. The client comes back for the rest, if its version can."""
        if not self.session.primed or self.answered or not self.is_read:
            return
        # Named at once, so that messages before the end of the response are kept.
        if not self.name:
            self._take_name()
        assert self.exchange is not None
        self.exchange.drop()

    def drop(self) -> None:
        """End the open response, if there is one."""
        if self.exchange is not None:
            self.exchange.drop()

    def resume(self, exchange: Exchange) -> None:
        """A client continues this stream. It gets the events it missed."""
        if self.exchange is not exchange:
            self.drop()
        self.exchange = exchange
        if self.answered:
            exchange.drop()

    def left(self) -> None:
        """The client went away. With a session the call continues, and its result is kept."""

    def detach(self, exchange: Exchange) -> None:
        """The response has ended."""
        self.session.readers -= 1
        self.session.used = time.monotonic()
        is_last = self.exchange is exchange
        exchange.take()  # drop what the client did not read
        if is_last:
            self.exchange = None
        if is_last and self.answered and self.name:
            if exchange.gone:
                self.session.answered_unread(self.name)
            else:
                self.session.streams.pop(self.name, None)
                self.session.events.finish(self.name)

    def over(self) -> None:
        """Nothing to end: a stream outlives its request."""


class StandaloneStream(ResponseStream):
    """The messages that belong to no request. They wait, bounded, until the client asks for them."""

    __slots__ = ("_waiting",)

    def __init__(self, session: HttpSession) -> None:
        super().__init__(session, None)
        self.name = STANDALONE
        self._waiting: ClientOutbox | None = None

    def _left_unread(self, message: OutboundMessage, id: str | None) -> None:
        if self._waiting is None:
            self._waiting = ClientOutbox()
        self._waiting.keep(message, id)

    def attach(self, exchange: Exchange) -> None:
        """A client begins to read. What waited for it comes first."""
        waiting, self._waiting = self._waiting, None
        self.exchange = exchange
        for item in waiting.unread if waiting is not None else ():
            exchange.push(item.message, item.id)

    def resume(self, exchange: Exchange) -> None:
        self.forget()  # what waited is among the events that the client missed
        super().resume(exchange)

    def forget(self) -> None:
        """Drop what waits: nobody will ask for it."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.take()

    def hang_up(self) -> None:
        """Nothing to do: it belongs to no call."""

    def detach(self, exchange: Exchange) -> None:
        if self.exchange is exchange and exchange.unread:
            later, self._waiting = self._waiting, ClientOutbox()
            for item in (*exchange.unread, *(later.unread if later is not None else ())):
                self._waiting.keep(item.message, item.id)
            exchange.unread.clear()
        super().detach(exchange)
