"""The log of events: for each type an ordered, bounded list in the store, and cursors that point into it.

How it works: a log is one space of the store. `head` says where the list begins and ends, and each event lies under its
number. An append is one change that expects the head as it was read, so events of several processes get numbers of
their own, without a gap. Whoever reads holds a cursor: the number of the next event, and the epoch of the log. A log
that was lost, such as one in memory after a restart, begins with another epoch, so an old cursor is not taken for a new
one.

Writing takes a store a while, and meanwhile others emit. So each process writes one change at a time for a type, and
the next change has all events that wait by then.

    head = {epoch, first: 4, next: 7, …}      4: [id, time, arguments, is_exact, data]      5: …      6: …

What comes from another server is added together with the place that it had there, in one change. So it is added once,
and whoever goes on, here or in another process, goes on behind it. If that server has lost events, the log has a mark.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from defserve.base.redaction import get_logger
from defserve.core import json_values
from defserve.core.messages import Params
from defserve.errors import InvalidParams
from defserve.protocols.mcp.events.draft import EventSettings
from defserve.stores.store import EVENT_LOG_SPACES, SECRETS_SPACE, Space, Store, StoreBusy, StoreChange, StoreFull

HEAD: Final = "head"
ORIGINS, ORIGIN = "origins", "origin "
MAX_ORIGINS: Final = 1_000
"""Places in other servers that are kept for one type. The oldest are forgotten first."""
SECRET: Final = "events"

LOG_TTL_SECONDS: Final = 30 * 86_400.0
"""A log to which nothing was added for so long, and for longer than its events are kept, is forgotten."""
MAX_TRIES: Final = 200
MAX_PAUSE_SECONDS: Final = 0.02
FIRST_PAUSE_SECONDS: Final = 0.0005
MAX_EVENTS_AT_ONCE: Final = 100
"""Events that are read, written or dropped at once."""
MAX_BATCH_BYTES: Final = 1 << 20
"""Of the events that are written at once, unless one alone has more."""

log = get_logger()


class Cursor(NamedTuple):
    """The position of a reader: the `number` of the next event in the log of this `epoch`."""

    epoch: str
    number: int


class Occurrence(NamedTuple):
    """One event. `time` is milliseconds since the epoch of clocks; `arguments` are those it was emitted with.

    `is_exact`: a source yielded it, for those with the same arguments.
    """

    number: int
    id: str
    time: int
    arguments: Params
    is_exact: bool
    data: Params

    @property
    def is_gap(self) -> bool:
        """Whether it is only the mark of events that another server has lost."""
        return not self.id

    def to_wire(self, name: str, cursor: str | None = None) -> Params:
        """The event as clients get it."""
        wire: Params = {
            "eventId": self.id,
            "name": name,
            "timestamp": json_values.format_unix_timestamp(self.time / 1000, "milliseconds"),
            "data": self.data,
        }
        return wire if cursor is None else {**wire, "cursor": cursor}


class BackendPosition(NamedTuple):
    """A place in another server: it is kept under `name`, was `before`, and is `after` once an event is added."""

    name: str
    before: str
    after: str


class BackendPositionMoved(Exception):
    """Somebody else has added what came from another server."""


class LogHead(NamedTuple):
    """Where a log begins and ends: its events have the numbers from `first` to `next` - 1. `oldest` is a time at or
    before that of the first."""

    epoch: str
    first: int
    next: int
    bytes: int
    oldest: int


class LogPage(NamedTuple):
    """Some events, and where to go on. `is_truncated`: events between the cursor and the first of these are gone, or
    those before the cursor are. `turnover`: the part of a full log that lies between the two cursors."""

    events: list[Occurrence]
    cursor: Cursor
    is_truncated: bool
    has_more: bool
    turnover: float = 0.0


class _Waiting(NamedTuple):
    """An event that is to be written: all but its number. `written` gets it when the store has it."""

    event: Occurrence
    record: bytes
    origin: BackendPosition | None
    written: asyncio.Future[Occurrence]


class EventLog:
    """The logs of a server, in its store. `clock` gives seconds since the epoch.

    `on_added` is called with the name of a type when events were added to its log, on the loop that added them.
    """

    def __init__(
        self,
        store: Store,
        settings: EventSettings,
        clock: Callable[[], float] = time.time,
        on_added: Callable[[str], object] = lambda name: None,
    ) -> None:
        self.store, self._settings, self._clock, self._on_added = store, settings, clock, on_added
        self._queues: dict[tuple[asyncio.AbstractEventLoop, str], deque[_Waiting]] = {}
        self._writers: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[None]] = {}
        self._known: dict[str, tuple[bytes, LogHead]] = {}
        """The head of each log as it was written last. If others add to it too, that is no help: then it is read."""

    @property
    def max_age(self) -> float:
        """For how many seconds an event is kept."""
        return self._settings.max_age

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return round(self._clock() * 1000)

    async def append(
        self,
        name: str,
        arguments: Params,
        data: Params,
        id: str | None = None,
        *,
        is_exact: bool = False,
        at: int | None = None,
        origin: BackendPosition | None = None,
    ) -> Occurrence:
        """Add an event. When this returns, the store has it. Raises what the store raises.

        `at` is when it happened, now by default. Raises BackendPositionMoved for an `origin` that is gone.
        Events of one loop get into the log in the order of these calls.
        """
        id = f"evt_{secrets.token_hex(16)}" if id is None else id
        loop = asyncio.get_running_loop()
        event = Occurrence(0, id, self.now() if at is None else at, arguments, is_exact, data)
        waiting = _Waiting(event, to_json(event[1:]), origin, loop.create_future())
        key = loop, name
        self._queues.setdefault(key, deque()).append(waiting)
        if key not in self._writers:
            self._writers[key] = asyncio.create_task(self._write_waiting(key))
        return await waiting.written

    async def finish_writing(self, seconds: float) -> None:
        """Wait until what was emitted on this loop is written, or has failed. What takes longer is given up."""
        loop = asyncio.get_running_loop()
        if writers := [task for (where, _), task in self._writers.items() if where is loop]:
            _, late = await asyncio.wait(writers, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=seconds)

    async def _write_waiting(self, key: tuple[asyncio.AbstractEventLoop, str]) -> None:
        """Write the events that wait, until none does."""
        queue, batch = self._queues[key], list[_Waiting]()
        try:
            while batch := self._take_batch(queue):
                await self._write_batch(key[1], batch)
        finally:
            # If it is cancelled, the loop ends.
            del self._writers[key], self._queues[key]
            # Those that are not counted were cancelled before, by whoever emitted them.
            if lost := sum(waiting.written.cancel() for waiting in (*batch, *queue)):
                log.error("%d events of type %r were not written: the store did not answer in time", lost, key[1])

    def _take_batch(self, queue: deque[_Waiting]) -> list[_Waiting]:
        """The events to write next. Small logs are not overrun by one batch. One with an origin is written alone."""
        batch, size = list[_Waiting](), 0
        most = max(1, min(MAX_EVENTS_AT_ONCE, self._settings.max_events // 10))
        most_bytes = min(MAX_BATCH_BYTES, self._settings.max_bytes // 10)
        while queue and len(batch) < most:
            waiting = queue[0]
            if batch and (waiting.origin or batch[0].origin or size + len(waiting.record) > most_bytes):
                break
            queue.popleft()
            if not waiting.written.done():  # whoever emitted it was cancelled
                batch.append(waiting)
                size += len(waiting.record)
        return batch

    async def _write_batch(self, name: str, batch: Sequence[_Waiting]) -> None:
        """Write events in one change, and say so to those who wait for that."""
        try:
            first = await self._write_change(name, [waiting.record for waiting in batch], batch[0])
        except Exception as error:
            if isinstance(error, StoreFull) and len(batch) > 1:
                for waiting in batch:  # there may be room for some
                    await self._write_batch(name, [waiting])
                return
            for waiting in batch:
                if not waiting.written.done():
                    waiting.written.set_exception(error)
            return
        self._on_added(name)
        for number, waiting in enumerate(batch, first):
            if not waiting.written.done():
                waiting.written.set_result(waiting.event._replace(number=number))

    async def _write_change(self, name: str, records: Sequence[bytes], one: _Waiting) -> int:
        """Add events to a log, and return the number of the first. `one` is that."""
        space, origin, pause = _space(name), one.origin, 0.0
        # The head is known if nobody else has written it since. If somebody has, it is read from the beginning.
        known = self._known.pop(name, None)
        before, head = known if known is not None else await self._read_head(space)
        for attempt in range(MAX_TRIES):
            grown = head._replace(
                next=head.next + len(records),
                bytes=head.bytes + sum(map(len, records)),
                oldest=head.oldest if head.next > head.first else one.event.time,
            )
            grown, dropped = await self._trim(space, grown, head.next)
            encoded = to_json(grown)
            put, expect = {HEAD: encoded}, {HEAD: before}
            put |= {str(number): record for number, record in enumerate(records, head.next)}
            if origin is not None:
                put[ORIGIN + origin.name] = origin.after.encode()
                expect[ORIGIN + origin.name] = origin.before.encode()
            if await self.store.change(StoreChange(space, put=put, drop=dropped, expect=expect, ttl=self._ttl)):
                if attempt == 0:
                    self._known[name] = encoded, grown
                return head.next
            if origin is not None and await self.read_backend_position(name, origin.name) != origin.before:
                raise BackendPositionMoved
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(MAX_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * pause))
            mine = str(head.next)
            found = await self.store.get(space, [HEAD, mine])
            if origin is None and found.get(mine) == records[0]:
                # It was written, and the answer got lost: clients of Redis then send a change again.
                return head.next
            before = found.get(HEAD)
            head = self._parse_head(before)
        raise StoreBusy("Too many events are emitted at once", data={"retry_after_ms": 1000})

    async def ensure_end_cursor(self, name: str) -> Cursor:
        """The cursor behind the last event. A log that does not exist yet is begun, so that its epoch is known."""
        space = _space(name)
        while True:
            before, head = await self._read_head(space)
            change = StoreChange(space, put={HEAD: to_json(head)}, expect={HEAD: None}, ttl=self._ttl)
            if before is not None or await self.store.change(change):
                return Cursor(head.epoch, head.next)

    async def read_page(
        self, name: str, cursor: Cursor, *, max_age_ms: float | None = None, limit: int = MAX_EVENTS_AT_ONCE
    ) -> LogPage:
        """The next events after a cursor. Those that are older than allowed are skipped."""
        space = _space(name)
        before, head = await self._read_head(space)
        if before is None:
            # The cursor comes from a log that is lost.
            return LogPage([], await self.ensure_end_cursor(name), True, False)
        is_truncated = cursor.epoch != head.epoch or cursor.number < head.first
        number = start = head.first if is_truncated else min(cursor.number, head.next)
        # A failover has taken back what this reader was given already.
        is_truncated = is_truncated or cursor.number > head.next
        oldest = self.now() - min(self._settings.max_age * 1000, max_age_ms if max_age_ms is not None else float("inf"))
        while number < head.next:
            upto = min(number + min(limit, MAX_EVENTS_AT_ONCE), head.next)
            events = await self._read_events(space, range(number, upto))
            young = [event for event in events if event.time >= oldest]
            # What was dropped while it was read, and what is too old, is missing.
            is_truncated = is_truncated or len(young) < upto - number
            number = upto
            if young:
                break
        else:
            young = []
        turnover = self._measure_turnover(head, number - start)
        return LogPage(young, Cursor(head.epoch, number), is_truncated, number < head.next, turnover)

    def _measure_turnover(self, head: LogHead, count: int) -> float:
        """Which part of a full log so many events are."""
        average = head.bytes / max(1, head.next - head.first)
        return max(count / self._settings.max_events, count * average / self._settings.max_bytes)

    async def read_backend_position(self, name: str, origin: str) -> str | None:
        """The place in another server up to which its events were added."""
        found = (await self.store.get(_space(name), [ORIGIN + origin])).get(ORIGIN + origin)
        return None if found is None else found.decode()

    async def store_first_backend_position(self, name: str, origin: str, place: str) -> None:
        """Keep a place in another server, if none is kept under this name."""
        space = _space(name)
        while True:
            found = await self.store.get(space, [ORIGINS, ORIGIN + origin])
            if ORIGIN + origin in found:
                return
            known: list[str] = from_json(found[ORIGINS]) if ORIGINS in found else []
            known = [*(each for each in known if each != origin), origin]
            dropped = [ORIGIN + each for each in known[:-MAX_ORIGINS]]
            put = {ORIGINS: to_json(known[-MAX_ORIGINS:]), ORIGIN + origin: place.encode()}
            expect = {ORIGINS: found.get(ORIGINS), ORIGIN + origin: None}
            if await self.store.change(StoreChange(space, put=put, drop=dropped, expect=expect, ttl=self._ttl)):
                return

    async def move_backend_position(self, name: str, origin: BackendPosition) -> None:
        """Keep a later place, without an event. Raises BackendPositionMoved."""
        key, space = ORIGIN + origin.name, _space(name)
        put, expect = {key: origin.after.encode()}, {key: origin.before.encode()}
        if not await self.store.change(StoreChange(space, put=put, expect=expect, ttl=self._ttl)):
            raise BackendPositionMoved

    @property
    def _ttl(self) -> float:
        return max(LOG_TTL_SECONDS, 2 * self._settings.max_age)

    async def _read_events(self, space: Space, numbers: range) -> list[Occurrence]:
        found = await self.store.get(space, [str(number) for number in numbers])
        return [Occurrence(n, *from_json(found[str(n)])) for n in numbers if str(n) in found]

    async def _read_head(self, space: Space) -> tuple[bytes | None, LogHead]:
        before = (await self.store.get(space, [HEAD])).get(HEAD)
        return before, self._parse_head(before)

    def _parse_head(self, data: bytes | None) -> LogHead:
        return LogHead(*from_json(data)) if data is not None else LogHead(secrets.token_hex(8), 0, 0, 0, self.now())

    async def _trim(self, space: Space, head: LogHead, end: int) -> tuple[LogHead, Sequence[str]]:
        """The head without what is too much or too old, and the names to drop. The newest event stays.

        The store has the events before `end`; those after it are about to be written.
        """
        settings, limit = self._settings, self.now() - self._settings.max_age * 1000

        def is_over(one: LogHead) -> bool:
            is_many = one.next - one.first > settings.max_events or one.bytes > settings.max_bytes
            return one.next - one.first > 1 and (is_many or one.oldest < limit)

        if not is_over(head):
            return head, ()
        dropped: list[str] = []
        names = [str(number) for number in range(head.first, min(head.first + MAX_EVENTS_AT_ONCE, end))]
        found = await self.store.get(space, names)
        for name in names:
            record = found.get(name)
            head = head._replace(oldest=from_json(record)[1] if record is not None else head.oldest)
            if not is_over(head):
                break
            head = head._replace(first=head.first + 1, bytes=head.bytes - len(record or b""))
            dropped.append(name)
        return head, dropped


def _space(name: str) -> Space:
    return EVENT_LOG_SPACES.make_space(name)


# -- Cursors as clients see them: opaque, and only this server can make one.


_EPOCH, _NUMBER, _TAG = 8, 8, 16


class CursorCodec:
    """Writes and reads cursors. `key` belongs to this server alone; a cursor is good for one type of event."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encode_cursor(self, name: str, cursor: Cursor) -> str:
        body = bytes.fromhex(cursor.epoch) + cursor.number.to_bytes(_NUMBER, "big")
        return json_values.encode_base64url(body + self._tag(name, body))

    def decode_cursor(self, name: str, text: Any) -> Cursor:
        """Raises InvalidParams for a cursor that is not ours, or another type's."""
        try:
            raw = json_values.decode_base64url(text)
        except (TypeError, ValueError, AttributeError):
            raw = b""
        body, tag = raw[: _EPOCH + _NUMBER], raw[_EPOCH + _NUMBER :]
        if len(raw) != _EPOCH + _NUMBER + _TAG or not hmac.compare_digest(tag, self._tag(name, body)):
            raise InvalidParams("Invalid params: the cursor is not one of this server for this event")
        return Cursor(body[:_EPOCH].hex(), int.from_bytes(body[_EPOCH:], "big"))

    def _tag(self, name: str, body: bytes) -> bytes:
        return hmac.digest(self._key, body + name.encode("utf-8", "surrogatepass"), "sha256")[:_TAG]


async def load_events_secret(store: Store) -> bytes:
    """The secret of a server that was given none: it lies in the store, so that cursors outlive this process."""
    while True:
        if found := (await store.get(SECRETS_SPACE, [SECRET])).get(SECRET):
            return found
        made = secrets.token_bytes(32)
        if await store.change(StoreChange(SECRETS_SPACE, put={SECRET: made}, expect={SECRET: None})):
            return made
