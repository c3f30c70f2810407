"""The log of a session: its streams of events, and what of the session outlives this process. Two kinds, one contract.

How it works: a session and its streams (`sessions.py`, `streams.py`) do not know where their log is. `MemoryLog` keeps
it in this process and ends with it. `RedisLog` (`redis_log.py`) keeps it for all processes of a server. What differs
between the two stands in these two classes, and in `MemoryLogs` and `RedisLogs`: what an endpoint has of each.

    a call ── ResponseStream ── append ──▶ SessionLog ── on_event_appended ──▶ StreamReader ── a response
                                                     ◀── fetch_events ─────────

1. An event is in the log, and has its number from there, before a client sees it. Its id is the name of its stream, a
   dash, and the number.
2. A reader has a cursor. It is handed the event that comes next, and fetches what it lacks. To be told of an event is a
   hint: a lost one only delays.
3. A stream has one reader, the newest. Who takes a reader's place begins where that one was.
4. A stream takes one result, or ends without one. Events after that are dropped.
5. The session's own stream (`standalone`) never ends. The log knows how far it was read, for a client that comes
   without an id.
6. A shared log may be away, or know a session better than this process does: `is_up`, `is_stale`, `load_session`.
   What a call has changed is in the log before the call is answered: `has_unsaved_changes`, `save_changes`,
   `published`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from defserve.auth.principals import Principal
from defserve.serve.http.exchange import MAX_UNREAD_MESSAGES, WritableMessage
from defserve.stores.stream_events import EventBudget, SessionEventStreams, StoredEvent

if TYPE_CHECKING:
    from defserve.core.messages import Reply
    from defserve.core.service import SessionSharer
    from defserve.serve.http.sessions import HttpSession, HttpSessions
    from defserve.serve.http.streams import ResponseStream, StreamReader
    from defserve.serve.sockets import UnfinishedCall

Audience: TypeAlias = tuple[Principal, ...] | None
"""Who may read an event of the session's own stream. Empty: everybody. None: who opened the session."""

EventKind: TypeAlias = Literal["result", "request", "message", "progress", "end"]
"""`end` is the end of a call without a result."""


class EventPage(NamedTuple):
    """Events in order, the number of the stream's newest event, and whether it is over."""

    events: list[StoredEvent]
    last: int
    is_over: bool


class StreamState(NamedTuple):
    """What a log knows of a stream.

    `caller` may read it, and who has its rights. `reader` has the rights of the client that reads it now, if one does,
    and `token` is its name. `read` and `skipped` say how far the session's own stream was read, and what before that
    was not. `is_orphaned`: the process that ran its call has died.
    """

    caller: Principal | None = None
    last: int = 0
    is_over: bool = False
    is_orphaned: bool = False
    reader: Principal | None = None
    token: str = ""
    read: int = 0
    skipped: frozenset[int] = frozenset()


class SessionLog(Protocol):
    """The log of one session, as this process sees it."""

    session: HttpSession

    @property
    def standalone(self) -> str:
        """The name of the session's own stream."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether it can be reached. A stream that begins while it cannot has no name, and cannot be resumed."""
        ...

    @property
    def is_stale(self) -> bool:
        """Whether the session must be loaded before it is used, because another process has changed it."""
        ...

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is something to save."""
        ...

    @property
    def keeps_complete_responses(self) -> bool:
        """Whether a response that is complete before it is written can be resumed. It costs a write."""
        ...

    @property
    def sharer(self) -> SessionSharer | None:
        """Its other side for protocols, if several processes serve the session."""
        ...

    # -- streams -----------------------------------------------------------------------------------------

    def begin_stream(self, stream: ResponseStream, reader: StreamReader) -> str:
        """Give the stream of a call its name. Calls `reader.on_stream_begun`, now or when the log has it."""
        ...

    def append(self, name: str, message: WritableMessage) -> None:
        """Add a message to a stream. When it has its number, it goes to who reads the stream."""

    def interrupt_streams(self) -> None:
        """This process ends before its calls do. Who comes back for one is told."""

    # -- readers -----------------------------------------------------------------------------------------

    def make_reader_token(self) -> str:
        """A name for a reader that nobody else gives."""
        ...

    async def look_up_stream(self, name: str) -> StreamState | None: ...

    async def attach_reader(self, reader: StreamReader, before: str) -> bool:
        """Have a reader take the place of the one before. False: another one was faster."""
        ...

    async def fetch_events(self, name: str, after: int, most: int) -> EventPage | None:
        """The events after a number, oldest first. None: the stream is gone."""
        ...

    async def end_orphaned_stream(self, name: str) -> None:
        """End a stream, exactly once, whose call ran in a process that died."""

    def watch_stream(self, reader: StreamReader) -> Callable[[], object] | None:
        """Watch, while it is read, whether the process that runs its call lives. Returns what ends the watch."""
        ...

    def on_event_taken(self, reader: StreamReader, number: int) -> None:
        """An event of the session's own stream has left."""

    def detach_reader(self, reader: StreamReader, *, has_all: bool) -> None:
        """A reader has left its place. `has_all`: its client has everything that it read."""

    # -- the session -------------------------------------------------------------------------------------

    async def save_changes(self) -> None:
        """Write what has changed, and wait until the log has it. Raises StoreUnavailable if that takes too long."""

    async def wait_until_written(self) -> None:
        """Wait until the log has everything. Raises StoreUnavailable if that takes too long."""

    def call_after_writes(self, action: Callable[[], None]) -> None:
        """Call this when the log has everything that was written so far."""

    async def hand_over_reply(self, reply: Reply, sender: Principal) -> bool:
        """Give an answer to the process that asks, if that is another one. False: this sender may not give it."""
        ...

    def add_credential(self, key: str, principal: Principal) -> None:
        """The session is used with this credential."""

    def remove_credential(self, key: str) -> None:
        """It has ended."""

    def has_credential_of(self, opener: Principal) -> bool:
        """Whether another process knows a credential with these rights."""
        ...

    def touch(self) -> None:
        """The session is used: it does not end by itself for as long as a session may be idle."""

    def end(self) -> None:
        """The session is over, for all processes."""

    def release(self) -> None:
        """This process forgets the session. If others can go on with it, one of them does."""

    def close(self) -> None:
        """This process has no more to do with the session."""


class SessionLogs(Protocol):
    """The logs of all sessions of one endpoint."""

    sessions: HttpSessions
    """Set by the table of sessions, before anything else."""

    @property
    def is_current(self) -> bool:
        """Whether sessions that are known and not stale are known as they are now."""
        ...

    @property
    def published(self) -> int:
        """How often this process has told all processes something."""
        ...

    def make_log(self, session: HttpSession) -> SessionLog: ...

    async def open_session(self, session: HttpSession) -> None:
        """Write down a new session. Raises StoreUnavailable, and LimitExceeded past a limit."""

    async def load_session(self, id: str, principal: Principal) -> None:
        """Have `sessions` know the session of this principal as it is now, if there is one.

        Raises StoreUnavailable, and LimitExceeded.
        """

    def hold_reply(self, call: UnfinishedCall, session: HttpSession | None, published: int) -> UnfinishedCall:
        """The call as it is answered: when the log has what it has changed, and published since then."""
        ...

    async def wait_until_published(self) -> None:
        """Wait until all processes can read what was published, but not for ever."""

    def close(self) -> None:
        """The endpoint ends."""


def find_event_kind(message: WritableMessage) -> EventKind | None:
    """The kind of an event; None for a message that says nothing."""
    if message.answers:
        return "result" if message.data else "end"
    if not message.data:
        return None
    if message.asks:
        return "request"
    return "message" if message.replaces is None else "progress"


# -- In memory: ends with this process.


class MemoryLog:
    """Nothing is made before it is needed: most sessions have no stream for most of the time."""

    __slots__ = ("session", "_budget", "_tag", "_named", "_unread", "events")

    is_up = keeps_complete_responses = True
    is_stale = has_unsaved_changes = False
    sharer = None

    def __init__(self, session: HttpSession, budget: EventBudget) -> None:
        self.session, self._budget = session, budget
        self._tag, self._named = "", 0
        self.events: SessionEventStreams | None = None
        self._unread: dict[str, None] | None = None

    @property
    def standalone(self) -> str:
        if not self._tag:
            self._tag = os.urandom(6).hex()  # ids of another session are not found
        return f"{self._tag}-s"

    def _open_events(self) -> SessionEventStreams:
        if self.events is None:
            self.events = SessionEventStreams(budget=self._budget)
        return self.events

    # -- streams -----------------------------------------------------------------------------------------

    def begin_stream(self, stream: ResponseStream, reader: StreamReader) -> str:
        self._named += 1
        name = f"{self.standalone[:-1]}{self._named}"
        self._open_events().get_or_open_stream(name).owner = reader.exchange.principal
        reader.on_stream_begun(name)
        return name

    def append(self, name: str, message: WritableMessage) -> None:
        kind, events = find_event_kind(message), self._open_events()
        stream = events.get_or_open_stream(name)
        number = before = stream.last
        if kind is None or stream.is_over:
            if message.taken is not None:
                message.taken()
            return
        is_own = stream.owner is None
        if kind == "end":
            stream.is_over = True
        else:
            audience = message.audience if is_own else None
            number = events.append(name, message.data, kind=kind, key=message.replaces, audience=audience)
        if kind == "request":
            message.release = partial(events.make_request_droppable, name, number)
        reader = self.session.reading.get(name)
        is_handed = reader is not None and reader.on_event_appended(number, before, message)
        if not is_handed and message.taken is not None:
            # Who speaks to the session itself waits until somebody listens. A call does not wait for its client.
            if is_own and number in stream.kept:
                stream.untaken[number] = message.taken
            else:
                message.taken()
        if stream.is_over and reader is None:
            self._on_unread_answer(name)

    def _on_unread_answer(self, name: str) -> None:
        """A call was answered while its client was away. Past `MAX_UNREAD_MESSAGES`, the oldest is dropped."""
        assert self.events is not None
        if self._unread is None:
            self._unread = {}
        self._unread[name] = None
        if len(self._unread) > MAX_UNREAD_MESSAGES:
            oldest = next(iter(self._unread))
            del self._unread[oldest]
            self.events.mark_stream_received(oldest)

    def interrupt_streams(self) -> None:
        """Nobody comes back for them."""

    # -- readers -----------------------------------------------------------------------------------------

    def make_reader_token(self) -> str:
        return ""

    async def look_up_stream(self, name: str) -> StreamState | None:
        stream = self.events.find_stream(name) if self.events is not None else None
        if stream is None:
            return None
        read, skipped = stream.read, stream.skipped
        reader = self.session.reading.get(name)
        if reader is not None:
            read, skipped = reader.get_read_position()
        return StreamState(
            caller=cast("Principal | None", stream.owner),
            last=stream.last,
            is_over=stream.is_over,
            reader=reader.exchange.principal if reader is not None and not reader.is_over else None,
            read=read,
            skipped=skipped,
        )

    async def attach_reader(self, reader: StreamReader, before: str) -> bool:
        self._open_events().get_or_open_stream(reader.name)
        if self._unread is not None:
            self._unread.pop(reader.name, None)
        return True

    async def fetch_events(self, name: str, after: int, most: int) -> EventPage | None:
        stream = self.events.find_stream(name) if self.events is not None else None
        if stream is None:
            return None
        return EventPage(stream.list_events_after(after, most), stream.last, stream.is_over)

    async def end_orphaned_stream(self, name: str) -> None:
        """There is none: calls and their streams are in one process."""

    def watch_stream(self, reader: StreamReader) -> None:
        return None

    def on_event_taken(self, reader: StreamReader, number: int) -> None:
        stream = self.events.find_stream(reader.name) if self.events is not None else None
        if stream is not None and (taken := stream.untaken.pop(number, None)) is not None:
            taken()

    def detach_reader(self, reader: StreamReader, *, has_all: bool) -> None:
        stream = self.events.find_stream(reader.name) if self.events is not None else None
        if stream is None or self.events is None:
            return
        if stream.owner is None:
            stream.read, skipped = reader.get_read_position()
            stream.skipped = skipped & stream.kept.keys()
        elif stream.is_over and has_all and reader.cursor >= stream.last:
            self.events.mark_stream_received(reader.name)
        elif stream.is_over:
            self._on_unread_answer(reader.name)

    # -- the session -------------------------------------------------------------------------------------

    async def save_changes(self) -> None:
        """Nobody else has to know."""

    async def wait_until_written(self) -> None:
        """It is."""

    def call_after_writes(self, action: Callable[[], None]) -> None:
        action()

    async def hand_over_reply(self, reply: Reply, sender: Principal) -> bool:
        return True

    def add_credential(self, key: str, principal: Principal) -> None:
        """The session knows it."""

    def remove_credential(self, key: str) -> None:
        """The session knows it."""

    def has_credential_of(self, opener: Principal) -> bool:
        return False

    def touch(self) -> None:
        """A session that is read or has calls does not end."""

    def end(self) -> None:
        """There is nobody else to tell."""

    def release(self) -> None:
        """There is nobody else to go on with it."""

    def close(self) -> None:
        if self.events is not None:
            self.events.drop_events()


class MemoryLogs:
    """All sessions together keep a bounded number of bytes."""

    sessions: HttpSessions
    is_current, published = True, 0

    def __init__(self) -> None:
        self._budget = EventBudget()

    def make_log(self, session: HttpSession) -> MemoryLog:
        return MemoryLog(session, self._budget)

    async def open_session(self, session: HttpSession) -> None:
        """The table of sessions is all there is."""

    async def load_session(self, id: str, principal: Principal) -> None:
        """End the session if it has been idle for too long. No other one is to be found."""
        session = self.sessions.find_known_session(id)
        if session is not None and session.is_idle(self.sessions.idle):
            self.sessions.end_session(session)

    def hold_reply(self, call: UnfinishedCall, session: Any, published: int) -> UnfinishedCall:
        return call

    async def wait_until_published(self) -> None:
        """Nothing is."""

    def close(self) -> None:
        """Nothing is open."""
