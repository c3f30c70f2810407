"""Sessions over HTTP: their streams, the messages that wait for the client, and when a silent session ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from defserve.auth.live_credentials import BearerCredential, LiveBearerCredentials
from defserve.auth.principals import Principal
from defserve.serve.http.exchange import (
    MAX_UNREAD_MESSAGES,
    TOO_MANY_CALLS,
    Exchange,
    UnreadMessages,
    WritableMessage,
    format_sse_event,
)
from defserve.stores.stream_events import EventBudget, EventGap, MemoryEvents, StoredEvent, StoredEventKind

if TYPE_CHECKING:
    from defserve.core.session import Session


SSE_RETRY_MS = 1000
STANDALONE_STREAM_NAME = "standalone"

# More streams than a session keeps events of.
OWNERS = 1024

# How many credentials may use one session at a time. A client that refreshes its token uses two.
MAX_SESSION_CREDENTIALS = 32


class HttpSession:
    """The session that `Mcp-Session-Id` names. Bound to the principal that opened it.

    Another credential of that principal may use it, with its own rights: what it reads and resumes is only what it may
    see. `primed`: a response may end early; its client has an event id to come back with (SEP-1699).
    """

    conversation: Session

    def __init__(self, id: str, opener: Principal, budget: EventBudget | None = None) -> None:
        self.id, self.opener, self.primed = id, opener, False
        self.opened = self.used = time.monotonic()
        self.readers = 0
        self.events = MemoryEvents(budget=budget)
        self.streams: dict[str, ResponseStream] = {}
        self.standalone = StandaloneStream(self)
        self.named = 0
        self._owners: dict[str, Principal] = {}
        self._credentials: dict[str, BearerCredential] = {}
        self._live: LiveBearerCredentials | None = None
        self.end: Callable[[], None] = self.close
        """Ends the session. Whoever lists it sets this."""
        self._unread: dict[str, None] = {}

    def outlet(self, message: Any) -> None:
        """Send a message to the stream of its request, or to the session's own."""
        stream = message.destination
        (stream if isinstance(stream, ResponseStream) else self.standalone).push(message)

    def resume(self, event_id: str, exchange: Exchange) -> tuple[ResponseStream, bytes] | None:
        """The stream that a client continues, and the events it has missed. None for an unknown id."""
        try:
            found = self.events.list_events_after(event_id)
        except EventGap as gap:
            # Answers and questions are never dropped, so the rest is still useful.
            found = (gap.stream, gap.left) if gap.stream is not None else None
        if found is None:
            return None
        name, missed = found
        if name == STANDALONE_STREAM_NAME:
            return self.standalone, self.standalone.resume_after(missed, exchange)
        owner, stream = self._owners.get(name), self.streams.get(name)
        if owner is None or not exchange.principal.covers(owner):
            return None
        if stream is None:
            self._unread.pop(name, None)
            stream = ResponseStream(self, exchange)
            stream.name, stream.answered = name, True
        stream.resume(exchange)
        return stream, _encode_events(missed)

    def name_stream(self, owner: Principal) -> str:
        """A name for the stream of a request, which only its sender, and who has its rights, can resume."""
        self.named += 1
        name = f"call-{self.named}"
        self._owners[name] = owner
        if len(self._owners) > OWNERS:
            del self._owners[next(other for other in self._owners if other not in self.streams)]
        return name

    def on_unread_answer(self, name: str) -> None:
        """A call was answered while its client was away. Past `MAX_UNREAD_MESSAGES`, the oldest is dropped."""
        self.streams.pop(name, None)
        self._unread[name] = None
        if len(self._unread) > MAX_UNREAD_MESSAGES:
            oldest = next(iter(self._unread))
            del self._unread[oldest]
            self.events.finish_stream(oldest)

    # -- credentials -------------------------------------------------------------------------------------

    def add_credential(self, exchange: Exchange) -> None:
        """A request with this credential belongs to the session."""
        if exchange.live is None or exchange.principal.credential in self._credentials:
            return
        for shown in exchange.list_credentials():
            self._credentials[shown.key] = shown
        if self._live is None and self._credentials:
            self._live = exchange.live
            self._live.watch_holder(self)
        if len(self._credentials) > MAX_SESSION_CREDENTIALS:
            self.credential_ended(next(iter(self._credentials)))

    def list_credentials(self) -> tuple[BearerCredential, ...]:
        return tuple(self._credentials.values())

    def credential_ended(self, key: Any) -> None:
        """End what belongs to a credential, and the session itself if no other one with its opener's rights is left."""
        self._credentials.pop(key, None)
        self.conversation.end_credential(key)
        # What its calls are told comes first.
        for stream in (self.standalone, *self.streams.values()):
            if stream.exchange is not None and stream.exchange.principal.credential == key:
                stream.drop()
        if not self.has_credential():
            self.end()

    def has_credential(self) -> bool:
        """Whether a credential with the rights of who opened the session is left."""
        return any(shown.principal.covers(self.opener) for shown in self._credentials.values())

    def is_idle(self, seconds: float) -> bool:
        """Whether nothing is running, and the client has sent nothing for so many seconds."""
        return not (self.readers or self.streams) and time.monotonic() - self.used > seconds

    def evict(self) -> None:
        self.end()

    def get_idle_seconds(self) -> tuple[bool, float] | None:
        """As a `SessionHolder`: whether it was never used since it was opened, and for how long it is idle."""
        if self.readers or self.streams or self.conversation.in_flight:
            return None
        return self.used == self.opened, time.monotonic() - self.used

    def close(self) -> None:
        for stream in (self.standalone, *self.streams.values()):
            stream.drop()
        self.standalone.drop_waiting()
        self.conversation.close()
        self.events.drop_events()
        if self._live is not None:
            self._live.unwatch_holder(self)


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

    def push(self, message: WritableMessage) -> None:
        self.answered = self.answered or message.answers
        id = self._store_event(message) if self.name and message.data else None
        if self.is_read:
            assert self.exchange is not None
            self.exchange.push(message, id)
        else:
            self._handle_unread(message, id)

    @property
    def is_read(self) -> bool:
        """Whether an open response can carry more messages."""
        return self.exchange is not None and not (self.exchange.gone or self.exchange.finished)

    def _handle_unread(self, message: WritableMessage, id: str | None) -> None:
        if message.answers and self.name:
            self.session.on_unread_answer(self.name)
        if message.taken is not None:
            message.taken()

    def _store_event(self, message: WritableMessage) -> str:
        kind: StoredEventKind = "message"
        if message.answers:
            kind = "result"
        elif message.asks:
            kind = "request"
        elif message.replaces is not None:
            kind = "progress"
        events = self.session.events
        id = events.append(
            self.name, message.data, kind=kind, key=message.replaces, audience=self._audience_kept(message)
        )
        if kind == "request":
            message.release = partial(events.release_request, id)
        return id

    def _audience_kept(self, message: WritableMessage) -> object:
        """Who may read an event later, where that is not the same for the whole stream."""
        return None

    def start_events(self) -> bytes:
        """The response becomes a stream that can be resumed. Returns its first event, which may have no data."""
        if not self.name:
            self._take_name()
        first, self._first = self._first, b""
        return first

    def _take_name(self) -> None:
        assert self.exchange is not None
        self.name = self.session.name_stream(self.exchange.principal)
        if not self.answered:
            self.session.streams[self.name] = self
        if self.session.primed:
            self._first = format_sse_event(b"", id=self.session.events.make_position_id(self.name), retry=SSE_RETRY_MS)
        for item in self.exchange.unread:
            item.id = self._store_event(item.message)

    def can_start_events(self, seconds: float) -> bool:
        """Soon, so that its client can come back for the rest. A call without room may still be refused (429)."""
        return not self.session.conversation.waits_for_room(self)

    def wants_events(self, exchange: Exchange) -> bool:
        """Whether the response can be resumed, or has something to say to a client that prefers events."""
        return bool(self.name or (exchange.unread and exchange.prefers_events))

    def on_response_started(self) -> None:
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
        self.exchange.end_without_answer()

    def drop(self) -> None:
        """End the open response, if there is one."""
        if self.exchange is not None:
            self.exchange.end_without_answer()

    def resume(self, exchange: Exchange) -> None:
        """A client continues this stream. It gets the events it missed."""
        if self.exchange is not exchange:
            self.drop()
        self.exchange = exchange
        if self.answered:
            exchange.end_without_answer()

    def on_disconnect(self) -> None:
        """The client went away. With a session the call continues, and its result is kept."""

    def detach(self, exchange: Exchange) -> None:
        """The response has ended."""
        self.session.readers -= 1
        self.session.used = time.monotonic()
        is_last = self.exchange is exchange
        if exchange.unread:
            exchange.take_unread()  # drop what the client did not read
        if is_last:
            self.exchange = None
        if is_last and self.answered and self.name:
            if exchange.gone:
                self.session.on_unread_answer(self.name)
            else:
                self.session.streams.pop(self.name, None)
                self.session.events.finish_stream(self.name)

    def finish(self) -> None:
        """Nothing to end: a stream outlives its request."""


def _encode_events(events: Sequence[StoredEvent]) -> bytes:
    return b"".join(format_sse_event(data, id=id) for id, data in events)


class StandaloneStream(ResponseStream):
    """The messages that belong to no request. They wait, bounded, until the client asks for them."""

    __slots__ = ("_waiting",)

    def __init__(self, session: HttpSession) -> None:
        super().__init__(session, None)
        self.name = STANDALONE_STREAM_NAME
        self._waiting: UnreadMessages | None = None

    def push(self, message: WritableMessage) -> None:
        id = self._store_event(message) if message.data else None
        if self.is_read and self._is_for(message.audience):
            assert self.exchange is not None
            self.exchange.push(message, id)
        else:
            self._handle_unread(message, id)

    def _is_for(self, audience: tuple[Any, ...] | None) -> bool:
        """Whether the client that reads now may see a message. Otherwise the message waits for another one."""
        assert self.exchange is not None
        reader = self.exchange.principal
        return audience == () or any(map(reader.covers, audience or (self.session.opener,)))

    def _audience_kept(self, message: WritableMessage) -> object:
        return message.audience

    def _handle_unread(self, message: WritableMessage, id: str | None) -> None:
        if self._waiting is None:
            self._waiting = UnreadMessages()
        self._waiting.add_message(message, id)

    def is_read_by_other(self, reader: Principal) -> bool:
        """Whether another client reads, and `reader` may not take its place: it may see no more than that one."""
        if self.exchange is None or not self.is_read:
            return False
        current = self.exchange.principal
        return current.covers(reader) or not reader.covers(current)

    def attach(self, exchange: Exchange) -> None:
        """A client begins to read. What waited for it comes first."""
        self._take_over(exchange)
        self._read_waiting(())

    def resume_after(self, missed: Sequence[StoredEvent], exchange: Exchange) -> bytes:
        """A client continues to read. Returns those of the events it missed that it may see."""
        self._take_over(exchange)
        events = self.session.events
        mine = [
            event for event in missed if self._is_for(cast("tuple[Any, ...] | None", events.get_audience(event[0])))
        ]
        self._read_waiting({id for id, _ in mine})
        return _encode_events(mine)

    def _take_over(self, exchange: Exchange) -> None:
        if self.exchange is not None and self.exchange is not exchange:
            self._put_back(self.exchange)
            self.drop()
        self.exchange = exchange

    def _read_waiting(self, known: Collection[str]) -> None:
        """Send what waited for this client, except the events that it gets in another way."""
        assert self.exchange is not None
        waiting, self._waiting = self._waiting, None
        for item in waiting.unread if waiting is not None else ():
            if not self._is_for(item.message.audience):
                self._handle_unread(item.message, item.id)
            elif item.id in known:
                item.release_message()
            else:
                self.exchange.push(item.message, item.id)

    def drop_waiting(self) -> None:
        """Drop what waits: nobody will ask for it."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.take_unread()

    def hang_up(self) -> None:
        """Nothing to do: it belongs to no call."""

    def detach(self, exchange: Exchange) -> None:
        if self.exchange is exchange:
            self._put_back(exchange)
        super().detach(exchange)

    def _put_back(self, exchange: Exchange) -> None:
        """What a client has not read waits for the next one."""
        if not exchange.unread:
            return
        later, self._waiting = self._waiting, UnreadMessages()
        for item in (*exchange.unread, *(later.unread if later is not None else ())):
            self._waiting.add_message(item.message, item.id)
        exchange.unread.clear()


# -- The sessions of one endpoint: found by id and principal, ended when their client is silent for too long.


# How often to look for idle sessions: a share of the time that they may be idle, within limits.
LOOK_SHARE, LOOK_LEAST, LOOK_MOST = 0.25, 0.01, 60.0


class HttpSessions:
    """The sessions of one endpoint, by id. Idle ones end by themselves."""

    def __init__(self, idle: float) -> None:
        self.idle, self._budget = idle, EventBudget()
        self._open: dict[str, HttpSession] = {}
        self._look: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def make_session(self, id: str, opener: Principal) -> HttpSession:
        """A session that is not listed yet."""
        return HttpSession(id, opener, self._budget)

    def add(self, session: HttpSession) -> None:
        self._open[session.id] = session
        session.end = partial(self.end_session, session)
        session.conversation.holder = session
        self._look_later()

    def find(self, id: str, principal: str) -> HttpSession | None:
        """The session with this id, if it is this principal's and not idle for too long."""
        session = self._open.get(id)
        # Another principal's session is not found: an id is never authority.
        if session is None or session.opener.id != principal:
            return None
        now = time.monotonic()
        if now - session.used > self.idle and session.is_idle(self.idle):
            self.end_session(session)
            return None
        session.used = now
        return session

    def end_session(self, session: HttpSession) -> None:
        """Forget a session and everything that was kept for it."""
        if self._open.pop(session.id, None) is not None:
            session.close()

    def end_idle(self) -> None:
        """End the sessions whose client has been silent for too long."""
        for session in self:
            if session.is_idle(self.idle):
                self.end_session(session)

    def close(self) -> None:
        """End every session."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for session in self:
            self.end_session(session)

    def _look_later(self) -> None:
        if self._look is None:
            seconds = min(max(self.idle * LOOK_SHARE, LOOK_LEAST), LOOK_MOST)
            self._look = asyncio.get_running_loop().call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self.end_idle()
        if self._open:
            self._look_later()
