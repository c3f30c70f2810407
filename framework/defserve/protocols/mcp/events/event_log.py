"""The log of events: for each type an ordered, bounded list in the store, and cursors that point into it.

How it works: a log is one space of the store. `head` says where the list begins and ends, and each event lies under its
number. An append is one change that expects the head as it was read, so events of several processes get numbers of
their own, without a gap. Whoever reads holds a cursor: the number of the next event, and the epoch of the log. A log
that was lost, such as one in memory after a restart, begins with another epoch, so an old cursor is not taken for a new
one.

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
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from defserve.core import json_values
from defserve.core.messages import Params
from defserve.errors import InvalidParams
from defserve.protocols.mcp.events.draft import EventSettings
from defserve.stores.store import EVENT_LOG_SPACES, SECRETS_SPACE, Space, Store, StoreBusy, StoreChange

HEAD: Final = "head"
ORIGINS, ORIGIN = "origins", "origin "
MAX_ORIGINS: Final = 1_000
"""Places in other servers that are kept for one type. The oldest are forgotten first."""
SECRET: Final = "events"

LOG_TTL_SECONDS: Final = 30 * 86_400.0
"""A log to which nothing was added for so long, and for longer than its events are kept, is forgotten."""
MAX_TRIES: Final = 200
MAX_PAUSE_SECONDS: Final = 0.02
MAX_BATCH: Final = 100
"""Events that are read, or dropped, at once."""


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


class LogOrigin(NamedTuple):
    """A place in another server: it is kept under `name`, was `before`, and is `after` once an event is added."""

    name: str
    before: str
    after: str


class OriginMoved(Exception):
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
    those before the cursor are."""

    events: list[Occurrence]
    cursor: Cursor
    is_truncated: bool
    has_more: bool


class EventLog:
    """The logs of a server, in its store. `clock` gives seconds since the epoch."""

    def __init__(self, store: Store, settings: EventSettings, clock: Callable[[], float] = time.time) -> None:
        self.store, self._settings, self._clock = store, settings, clock

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
        origin: LogOrigin | None = None,
    ) -> Occurrence:
        """Add an event. When this returns, the store has it. Raises what the store raises.

        `at` is when it happened, now by default. With an `origin` that is no longer there it raises OriginMoved.
        """
        id = f"evt_{secrets.token_hex(16)}" if id is None else id
        space, ttl = _space(name), self._ttl
        for _ in range(MAX_TRIES):
            before, head = await self._read_head(space)
            event = Occurrence(head.next, id, self.now() if at is None else at, arguments, is_exact, data)
            record = to_json(event[1:])
            grown = head._replace(
                next=head.next + 1,
                bytes=head.bytes + len(record),
                oldest=head.oldest if head.next > head.first else event.time,
            )
            grown, dropped = await self._trim(space, grown)
            put, expect = {HEAD: to_json(grown), str(event.number): record}, {HEAD: before}
            if origin is not None:
                put[ORIGIN + origin.name] = origin.after.encode()
                expect[ORIGIN + origin.name] = origin.before.encode()
            if await self.store.change(StoreChange(space, put=put, drop=dropped, expect=expect, ttl=ttl)):
                return event
            if origin is not None and await self.read_origin(name, origin.name) != origin.before:
                raise OriginMoved
            await asyncio.sleep(random.uniform(0, MAX_PAUSE_SECONDS))
        raise StoreBusy("Too many events are emitted at once", data={"retry_after_ms": 1000})

    async def find_end(self, name: str) -> Cursor:
        """The cursor behind the last event. A log that does not exist yet is begun, so that its epoch is known."""
        space = _space(name)
        while True:
            before, head = await self._read_head(space)
            change = StoreChange(space, put={HEAD: to_json(head)}, expect={HEAD: None}, ttl=self._ttl)
            if before is not None or await self.store.change(change):
                return Cursor(head.epoch, head.next)

    async def read_page(
        self, name: str, cursor: Cursor, *, max_age_ms: float | None = None, limit: int = MAX_BATCH
    ) -> LogPage:
        """The next events after a cursor. Those that are older than allowed are skipped."""
        space = _space(name)
        before, head = await self._read_head(space)
        if before is None:
            # The cursor comes from a log that is lost.
            return LogPage([], await self.find_end(name), True, False)
        is_truncated = cursor.epoch != head.epoch or cursor.number < head.first
        number = head.first if is_truncated else min(cursor.number, head.next)
        # A failover has taken back what this reader was given already.
        is_truncated = is_truncated or cursor.number > head.next
        oldest = self.now() - min(self._settings.max_age * 1000, max_age_ms if max_age_ms is not None else float("inf"))
        while number < head.next:
            upto = min(number + min(limit, MAX_BATCH), head.next)
            events = await self._read_events(space, range(number, upto))
            young = [event for event in events if event.time >= oldest]
            # What was dropped while it was read, and what is too old, is missing.
            is_truncated = is_truncated or len(young) < upto - number
            number = upto
            if young:
                return LogPage(young, Cursor(head.epoch, number), is_truncated, number < head.next)
        return LogPage([], Cursor(head.epoch, number), is_truncated, False)

    async def read_origin(self, name: str, origin: str) -> str | None:
        """The place in another server up to which its events were added."""
        found = (await self.store.get(_space(name), [ORIGIN + origin])).get(ORIGIN + origin)
        return None if found is None else found.decode()

    async def store_origin(self, name: str, origin: str, place: str) -> None:
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

    async def move_origin(self, name: str, origin: LogOrigin) -> None:
        """Keep a later place, without an event. Raises OriginMoved."""
        key, space = ORIGIN + origin.name, _space(name)
        change = StoreChange(space, put={key: origin.after.encode()}, expect={key: origin.before.encode()})
        if not await self.store.change(change):
            raise OriginMoved

    @property
    def _ttl(self) -> float:
        return max(LOG_TTL_SECONDS, 2 * self._settings.max_age)

    async def _read_events(self, space: Space, numbers: range) -> list[Occurrence]:
        found = await self.store.get(space, [str(number) for number in numbers])
        return [Occurrence(n, *from_json(found[str(n)])) for n in numbers if str(n) in found]

    async def _read_head(self, space: Space) -> tuple[bytes | None, LogHead]:
        before = (await self.store.get(space, [HEAD])).get(HEAD)
        head = LogHead(*from_json(before)) if before is not None else LogHead(secrets.token_hex(8), 0, 0, 0, self.now())
        return before, head

    async def _trim(self, space: Space, head: LogHead) -> tuple[LogHead, Sequence[str]]:
        """The head without what is too much or too old, and the names to drop. The newest event stays."""
        settings, limit = self._settings, self.now() - self._settings.max_age * 1000

        def is_over(one: LogHead) -> bool:
            is_many = one.next - one.first > settings.max_events or one.bytes > settings.max_bytes
            return one.next - one.first > 1 and (is_many or one.oldest < limit)

        if not is_over(head):
            return head, ()
        dropped: list[str] = []
        # The last one is not in the store yet.
        names = [str(number) for number in range(head.first, min(head.first + MAX_BATCH, head.next - 1))]
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
