"""The streams of a session: a call that sends messages, and a client that reads them. Between the two is the log.

`ClientWatch` notices that a client leaves. `HeldStream` is a response that waits for events without a task.

How it works: the response to a call is JSON, or the messages go into the response directly, until it becomes a stream
that can be resumed. From then on the stream has a name, what is sent goes through the session's log, and the response
is the first of its readers. Later, a GET with a `Last-Event-ID` may read on. A stream has one reader: the newest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Self

from defserve.core.messages import RequestId
from defserve.core.peer import TOO_MANY_CALLS_CODE
from defserve.errors import Refused
from defserve.serve.http.exchange import (
    SSE_KEEP_ALIVE_COMMENT,
    Exchange,
    ResponseRoute,
    UnreadMessage,
    WritableMessage,
    format_sse_event,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from defserve.serve.http.session_log import Audience
    from defserve.serve.http.sessions import HttpSession
    from defserve.serve.sockets import BufferedRequest
    from defserve.stores.stream_events import StoredEvent

SSE_RETRY_MS = 1000

# How many events are fetched at once, and how soon again if the log cannot be reached or the client has to read first.
PAGE = 64
PAUSE = 0.1

# More than a stream keeps.
MAX_SKIPPED_EVENTS = 1024

# How many silent streams are written to in one step of the loop.
MAX_SIGNS_AT_ONCE = 256


class ResponseStream:
    """The messages of one request, and the route of its response. It outlives that response.

    `request` is the id of the request, or those of a batch.
    """

    __slots__ = ("session", "name", "exchange", "answered", "request")

    # With a session, errors of a call are only in the body; the HTTP status is 200.
    statuses: Mapping[int, int] = {TOO_MANY_CALLS_CODE: 429}
    exchange: Exchange | None

    def __init__(
        self, session: HttpSession, exchange: Exchange, request: RequestId | list[RequestId] | None = None
    ) -> None:
        self.session, self.exchange, self.request = session, exchange, request
        # A client cannot resume a stream that has no name.
        self.name, self.answered = "", False

    def push(self, message: WritableMessage) -> None:
        if message.answers:
            self.answered = True
            self.session.streams.pop(self.name, None)
        if self.name:
            self.session.log.append(self.name, message)
        elif self.exchange is not None and self.is_read:
            self.exchange.push(message)
        elif message.taken is not None:
            message.taken()

    @property
    def is_read(self) -> bool:
        """Whether the response can carry more messages."""
        return self.exchange is not None and not (self.exchange.gone or self.exchange.finished)

    def wants_events(self, exchange: Exchange) -> bool:
        """Whether the response can be resumed, or has something to say to a client that prefers events."""
        return bool(self.name or (exchange.unread and exchange.prefers_events))

    def can_start_events(self, seconds: float) -> bool:
        """Soon, so that its client can come back for the rest. A call without room may still be refused (429)."""
        return not self.session.conversation.waits_for_room(self)

    def start_events(self) -> bytes:
        """The response becomes a stream that can be resumed. The rest of its first event is its id."""
        log = self.session.log
        if not self.name and log.is_up and (log.keeps_complete_responses or not self.answered):
            self._take_name()
        return b"retry: %d\n" % SSE_RETRY_MS if self.name and self.session.primed else b""

    def _take_name(self) -> None:
        session, exchange = self.session, self.exchange
        assert exchange is not None
        unread, exchange.unread = exchange.unread, []
        was_finished, exchange.finished = exchange.finished, False
        reader = StreamReader(session, "", exchange)
        self.name = reader.name = name = session.log.begin_stream(self, reader)
        session.reading[name] = reader
        if not self.answered:
            session.streams[name] = self
        for item in unread:
            session.log.append(name, item.message)
        exchange.finished = exchange.finished or was_finished

    def set_challenge(self, challenge: str) -> None:
        """What the client is asked for, if the call ends for want of it before its response has begun."""
        if self.exchange is not None:
            self.exchange.challenge = challenge

    def on_response_started(self) -> None:
        """A response has begun. From here on its client may leave."""
        self.session.readers += 1

    def hang_up(self) -> None:
        """End the response. The client comes back for the rest, if its version can."""
        exchange = self.exchange
        if not self.session.primed or self.answered or not self.is_read or exchange is None:
            return
        # Named at once, so that messages before the end of the response are kept.
        if not self.name:
            if not self.session.log.is_up:
                return
            self._take_name()
        self.session.log.call_after_writes(exchange.end_without_answer)

    def on_client_left(self) -> None:
        """The client went away. With a session the call continues, and its result is kept."""

    def detach(self, exchange: Exchange) -> None:
        """The response has ended."""
        self.session.readers -= 1
        self.session.used = time.monotonic()
        self.exchange = None
        reader = self.session.reading.get(self.name) if self.name else None
        if reader is not None and reader.exchange is exchange:
            reader.leave()
        if exchange.unread:
            exchange.take_unread()  # drop what the client did not read

    def finish(self) -> None:
        """Nothing to end: a stream outlives its request."""


class StoredMessage:
    """An event of a log, as a message for a client. Without data it only carries an id."""

    __slots__ = ("data", "answers", "asks", "replaces", "release", "taken")

    code = relates_to = audience = None
    bulk = False

    def __init__(
        self, data: bytes, kind: str, taken: Callable[[], None] | None = None, replaces: Hashable = None
    ) -> None:
        self.data, self.answers, self.asks, self.replaces = data, kind == "result", kind == "request", replaces
        self.taken = taken
        self.release: Callable[[], None] | None = None


class StreamReader:
    """One response that reads a stream, and the route of a GET that does.

    Events are delivered in the order of their numbers, each at most once: `cursor` is the last. `token` names the
    reader in the log. `skipped` are events of the session's own stream that readers before might not see, or did not
    get.
    """

    __slots__ = (
        *("session", "name", "exchange", "token", "is_standalone", "is_begun", "is_marking"),
        *("read", "skipped", "cursor", "_fetching", "_again", "_end_watch"),
    )

    statuses: Mapping[int, int] = {}

    def __init__(
        self, session: HttpSession, name: str, exchange: Exchange, *, after: int = 0, skipped: Collection[int] = ()
    ) -> None:
        self.session, self.name, self.exchange = session, name, exchange
        self.is_standalone = name == session.log.standalone if name else False
        self.is_begun = bool(name)
        """Whether the log knows the stream. Until then there is nothing to look for, and nothing is lost."""
        self.token = session.log.make_reader_token()
        self.read = after
        self.skipped = dict.fromkeys(skipped)  # an empty set takes three times the room
        self.cursor = min(min(self.skipped) - 1, after) if self.skipped else after
        self.is_marking = False
        """For the log: whether it is about to note how far this reader is."""
        self._fetching: asyncio.Task[None] | None = None
        self._again = False
        self._end_watch: Callable[[], object] | None = None

    @property
    def is_over(self) -> bool:
        return self.exchange.gone or self.exchange.finished

    def on_stream_begun(self, name: str) -> None:
        """The log knows the stream of a call."""
        self.name, self.is_begun = name, True
        self.send_position()

    def send_position(self) -> None:
        """Give the client an id to come back with, if its version knows ids without events.

        Clients forget the id that they have resumed with. Without one they come back as new readers.
        """
        if self.session.primed and not self.is_over:
            self.exchange.unread.append(UnreadMessage(StoredMessage(b"", ""), f"{self.name}-{self.read}"))
            self.exchange.wake_writer()

    # -- events ------------------------------------------------------------------------------------------

    def on_event_appended(self, number: int, before: int, message: WritableMessage) -> bool:
        """This process has added an event, after the one numbered `before`. Whether the client gets it now.

        A message without data ends the stream.
        """
        if self.is_over or self._fetching is not None or self.cursor != before:
            self.on_event_number(number if message.data else 0)
            return False
        self.cursor = number
        if not message.data:
            self.exchange.end_without_answer()
            return False
        if not self.is_standalone:
            self.read = number
            self.exchange.push(message, f"{self.name}-{number}")
            return True
        self.read = max(self.read, number)
        if not self._is_for(message.audience):
            self._skip(number)
            return False
        kind = "request" if message.asks else "message"
        shown = StoredMessage(message.data, kind, partial(self._on_taken, number, message.taken), message.replaces)
        self.exchange.push(shown, f"{self.name}-{number}")
        return True

    def on_event_number(self, number: int) -> None:
        """There is an event of this number. 0: there may be one."""
        if self.is_over or not self.is_begun or (0 < number <= self.cursor):
            return
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_all())
        else:
            self._again = True

    async def _fetch_all(self) -> None:
        try:
            while not self.is_over:
                self._again, has_all = False, False
                with suppress(Refused):
                    has_all = await self.deliver_stored_events()
                if not has_all:
                    await asyncio.sleep(PAUSE)
                elif not self._again:
                    return
        finally:
            self._fetching = None

    async def deliver_stored_events(self) -> bool:
        """Deliver what is in the log. False: so much waits for the client that it has to read first."""
        while not self.is_over:
            if self.exchange.is_full:
                return False
            after = self.cursor
            page = await self.session.log.fetch_events(self.name, after, PAGE)
            if page is None:
                self.exchange.end_without_answer()
                break
            # A log that has lost events which this client has gives their numbers again.
            if page.last < after == self.cursor:
                self.cursor = self.read = page.last
            for event in page.events:
                self._deliver(event)
            if len(page.events) < PAGE:
                # A call that was cancelled ends without a result.
                if page.is_over and not self.exchange.finished:
                    self.exchange.end_without_answer()
                break
        return True

    async def begin(self) -> None:
        """Deliver what the client has missed; or else an id to come back with."""
        before = len(self.exchange.unread)
        has_all = await self.deliver_stored_events()
        if len(self.exchange.unread) == before:
            self.send_position()
        if not has_all:
            self.on_event_number(0)

    def _deliver(self, event: StoredEvent) -> None:
        number = event.number
        if number <= self.cursor:
            return
        self.cursor = number
        if number <= self.read and number not in self.skipped:
            return
        self.skipped.pop(number, None)
        self.read = max(self.read, number)
        if self.is_standalone and not self._is_for(event.audience):
            self._skip(number)
            return
        message = StoredMessage(event.data, event.kind, partial(self._on_taken, number))
        # Past the bounds of the outbox, which would drop some: the log has bounds of its own.
        self.exchange.unread.append(UnreadMessage(message, f"{self.name}-{number}"))
        self.exchange.finished = self.exchange.finished or message.answers
        self.exchange.wake_writer()

    def _on_taken(self, number: int, taken: Callable[[], None] | None = None) -> None:
        if taken is not None:
            taken()
        if self.is_standalone:
            self.session.log.on_event_taken(self, number)

    def _skip(self, number: int) -> None:
        self.skipped[number] = None
        if len(self.skipped) > MAX_SKIPPED_EVENTS:
            del self.skipped[min(self.skipped)]

    def _is_for(self, audience: Audience) -> bool:
        """Whether this client may see an event. Otherwise it waits for another one."""
        return audience == () or any(map(self.exchange.principal.covers, audience or (self.session.opener,)))

    # -- as the route of a GET ---------------------------------------------------------------------------

    def push(self, message: WritableMessage) -> None:
        """Nothing is sent this way: events come from the log."""

    def wants_events(self, exchange: Exchange) -> bool:
        return True

    def can_start_events(self, seconds: float) -> bool:
        return True

    def start_events(self) -> bytes:
        return b""

    def on_response_started(self) -> None:
        self.session.readers += 1
        self._end_watch = self.session.log.watch_stream(self)

    def on_client_left(self) -> None:
        """The client went away. The stream goes on."""

    def detach(self, exchange: Exchange) -> None:
        self.session.readers -= 1
        self.session.used = time.monotonic()
        if self._end_watch is not None:
            self._end_watch()
        self.leave()
        exchange.take_unread()  # what the client did not read stays in the log

    def finish(self) -> None:
        """Nothing to end: a stream outlives who reads it."""

    def leave(self) -> None:
        """Leave the place to the next reader, with what this client did not get."""
        if self.session.reading.get(self.name) is self:
            del self.session.reading[self.name]
            has_all = not (self.exchange.gone or self.exchange.unread)
            self.session.log.detach_reader(self, has_all=has_all)

    @contextmanager
    def detach_reader_on_failure(self) -> Generator[None]:
        """A reader that cannot begin leaves at once."""
        try:
            yield
        except BaseException:
            if self.session.reading.get(self.name) is self:
                del self.session.reading[self.name]
            self.session.log.detach_reader(self, has_all=False)
            self.exchange.take_unread()
            raise

    def get_read_position(self) -> tuple[int, frozenset[int]]:
        """The last event that has left, and those before that have not."""
        events = (item.id for item in self.exchange.unread if item.id and item.message.data)
        unread = {int(id.rpartition("-")[2]) for id in events}
        return self.read, frozenset(self.skipped.keys() | {number for number in unread if number <= self.read})


class ClientWatch:
    """`with ClientWatch(exchange, route)` surrounds the wait of a call. `watch` notices if its client leaves: from our
    own server without a task."""

    __slots__ = ("_exchange", "_route", "_watch", "_is_held")

    def __init__(self, exchange: Exchange, route: ResponseRoute) -> None:
        self._exchange, self._route = exchange, route
        self._watch: asyncio.Task[None] | None = None
        self._is_held = False

    def __enter__(self) -> Self:
        self._route.on_response_started()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_held:
            return
        if self._watch is not None:
            self._watch.cancel()
        else:
            self._exchange.set_watcher(None)
        self._route.detach(self._exchange)

    def watch(self) -> None:
        """Watch the client until the block ends."""
        if not self._exchange.set_watcher(self):
            self._watch = asyncio.create_task(self._exchange.watch_client(self._route.on_client_left))

    def hold_open(self, silent: StreamKeepAliveTimer) -> bool:
        """Whether the response, which has begun to be a stream, goes on without this block."""
        request = self._exchange.hold_open() if self._watch is None else None
        if request is not None:
            self._is_held = True
            HeldStream(self._exchange, self._route, request, silent)
        return self._is_held

    def on_client_left(self) -> None:
        self._exchange.on_client_left(self._route.on_client_left)

    def on_client_doubted(self) -> None:
        self._exchange.is_doubted = True
        self._exchange.wake_writer()

    def on_client_drained(self) -> None:
        """Whoever writes waits for it already."""


class HeldStream:
    """A response that waits for events without a task, which takes most of the room of an idle stream.

    It is written to when messages come, when its client has read what waited, and when it was silent for long.
    """

    __slots__ = ("_exchange", "_route", "_request", "_silent", "_is_scheduled")

    def __init__(
        self, exchange: Exchange, route: ResponseRoute, request: BufferedRequest, silent: StreamKeepAliveTimer
    ) -> None:
        self._exchange, self._route, self._request, self._silent = exchange, route, request, silent
        self._is_scheduled = False
        request.set_watcher(self)
        exchange.set_waker(self)
        silent.note_write(self)
        self.set_result(True)  # something may have come before

    # -- as what the exchange wakes

    def done(self) -> bool:
        return self._is_scheduled

    def set_result(self, result: bool) -> None:
        """There is something to write. It is written in a step of its own, because a message that leaves may bring
        another."""
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._write_events)

    def _write_events(self) -> None:
        self._is_scheduled = False
        exchange = self._exchange
        if exchange.gone or self._request.is_write_paused:
            return
        if events := b"".join(format_sse_event(item.message.data, id=item.id) for item in exchange.take_unread()):
            self._request.write_response_part(events)
            self._silent.note_write(self)
        if exchange.finished and not exchange.unread:
            self._request.end_response()
            self._detach()

    def send_sign_of_life(self) -> None:
        """Write what readers skip."""
        if not self._request.is_write_paused:
            self._request.write_response_part(SSE_KEEP_ALIVE_COMMENT)
        self._silent.note_write(self)

    # -- as what watches the client

    def on_client_left(self) -> None:
        self._exchange.on_client_left(self._route.on_client_left)
        self._detach()

    def on_client_doubted(self) -> None:
        self.send_sign_of_life()

    def on_client_drained(self) -> None:
        self._exchange.wake_writer()

    def _detach(self) -> None:
        self._silent.discard(self)
        self._exchange.set_waker(None)
        self._route.detach(self._exchange)


class StreamKeepAliveTimer:
    """The held streams, the longest silent first. One timer sends signs of life to those that were silent too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[HeldStream, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note_write(self, stream: HeldStream) -> None:
        """The stream was written to."""
        self._due.pop(stream, None)
        loop = asyncio.get_running_loop()
        self._due[stream] = due = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._send_signs)

    def discard(self, stream: HeldStream) -> None:
        """The stream is over."""
        self._due.pop(stream, None)

    def _send_signs(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, now = None, loop.time()
        for stream, due in list(islice(self._due.items(), MAX_SIGNS_AT_ONCE)):
            if due > now:
                break
            stream.send_sign_of_life()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._timer = loop.call_at(next(iter(self._due.values())), self._send_signs)
