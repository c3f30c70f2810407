"""Who listens to events on one loop of this process: open streams, and the sources that run for listeners.

How it works: every listener reads the log at its own pace. While nothing in it is for it, it waits in the
`LogFollower` of its type: that reads on for all of them, and wakes only those that get an event. An emission in this
process wakes the follower at once. Another process is heard of through Redis, or found by looking at the log twice a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from defserve.base.backoff import Backoff
from defserve.base.concurrency import BackgroundTasks, wait_for_shared
from defserve.base.redaction import get_logger
from defserve.core.messages import Params
from defserve.errors import DefserveError, LimitExceeded, Refused
from defserve.protocols.mcp.events.draft import (
    ACTIVE_NOTIFICATION,
    ERROR_NOTIFICATION,
    EVENT_NOTIFICATION,
    HEARTBEAT_NOTIFICATION,
    HEARTBEAT_SECONDS,
    TERMINATED_NOTIFICATION,
    EventError,
)
from defserve.protocols.mcp.events.event_log import Cursor, CursorCodec, EventLog, LogPage
from defserve.protocols.mcp.events.event_types import EventType, FilterIndex, encode_canonical_json, matches_filter
from defserve.protocols.mcp.subscriptions import SUBSCRIPTION_ID_META_KEY
from defserve.stores.identity import ServerStore
from defserve.stores.store import EVENT_NEWS_SPACE, Lease, StoreBusy, is_in_memory, make_lease_token

if TYPE_CHECKING:
    from defserve.core.call import Call


LOOK_SECONDS: Final = 0.5
NEWS_LOOK_SECONDS: Final = 60.0
"""How often the log is looked at without news: those of another process may have been lost on their way."""
RETRY_SECONDS: Final = 2.0
MAX_BEHIND: Final = 0.5
"""The part of a full log by which somebody may have come from behind, before that is written down at once."""
MIN_DUE: Final = 0.01
"""The part of all who wait that is woken together to write: it takes a look at all to find them."""
SHARED_PAGE_SECONDS: Final = 0.5
MAX_SHARED_PAGES: Final = 64
"""Those who read at other places of the log read for themselves."""
MAX_UNSENT: Final = 16
"""Messages of a stream that wait for their reader. Then the log is read no further for it."""
UNSENT_LOOK_SECONDS: Final = 0.02

SOURCE_LEASE_SECONDS: Final = 1.0
MAX_SOURCES: Final = 1_000
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0

log = get_logger()


class EventHub:
    """The listeners of one loop. `run_source` adds what a source yields to the log."""

    def __init__(self, events: EventLog, store: ServerStore, run_source: Callable[[EventType, Params], Any]) -> None:
        self.log, self._store, self._run_source = events, store, run_source
        self.tasks = BackgroundTasks()
        self.emitting = BackgroundTasks()
        """The events that nobody waits for, until the log has them."""
        self._marks: dict[str, int] = {}
        self._followers: dict[str, LogFollower] = {}
        self._pages: dict[tuple[str, Cursor], SharedPage] = {}
        self._following: asyncio.Task[None] | None = None
        self._sources: dict[tuple[str, bytes], RunningSource] = {}

    @contextmanager
    def listen(self, name: str) -> Generator[LogFollower]:
        """Somebody listens to a type of event, and waits for what is for it in this follower."""
        follower = self._followers.get(name)
        if follower is None:
            follower = self._followers[name] = LogFollower(self, name)
            # Pages that were read before may lack what was added while nobody listened.
            self._marks[name] = self._marks.get(name, 0) + 1
        follower.users += 1
        if self._following is None and not is_in_memory(self._store):
            self._following = asyncio.create_task(self._follow())
        try:
            yield follower
        finally:
            follower.users -= 1
            if not follower.users:
                del self._followers[name]
                follower.task.cancel()

    @contextmanager
    def hold_source_running(self, event: EventType, wanted: Params) -> Generator[None]:
        """If a type of event has a source, it runs meanwhile. Raises LimitExceeded."""
        source = self._start_source(event, wanted) if event.is_source else None
        try:
            yield
        finally:
            if source is not None:
                source.release()

    def is_source_running(self, event: EventType, wanted: Params) -> bool:
        """Whether the source of a type runs for these arguments, or waits for another process that runs it."""
        return (event.name, encode_canonical_json(wanted)) in self._sources

    def keep_source_for_seconds(self, event: EventType, wanted: Params, seconds: float) -> None:
        """Somebody polls a type of event, and will come back: its source runs for so long. Raises LimitExceeded."""
        if event.is_source:
            source = self._start_source(event, wanted)
            asyncio.get_running_loop().call_later(seconds, source.release)

    async def read_page(self, name: str, cursor: Cursor) -> LogPage:
        """The next events after a cursor. Those who ask at the same moment share what is read: many do, with news."""
        key, mark, now = (name, cursor), self._marks.get(name, 0), asyncio.get_running_loop().time()
        known = self._pages.get(key)
        if known is None or known.mark != mark or known.until < now:
            self._pages = {each: page for each, page in self._pages.items() if page.until >= now}
            if len(self._pages) >= MAX_SHARED_PAGES:
                return await self.log.read_page(name, cursor)
            reading = asyncio.create_task(self.log.read_page(name, cursor))
            known = self._pages[key] = SharedPage(mark, now + SHARED_PAGE_SECONDS, reading)
        return await wait_for_shared(known.reading)

    def wake(self, name: str = "") -> None:
        """Something was added to the log of this type. Without a name, perhaps to any, and types may have changed."""
        for known in [name] if name else list(self._followers):
            if (follower := self._followers.get(known)) is not None:
                self._marks[known] = self._marks.get(known, 0) + 1
                follower.wake()
                if not name:
                    follower.release_all()

    async def close(self) -> None:
        """The loop ends: nobody listens any more."""
        ending = [each.task for each in (*self._sources.values(), *self._followers.values())]
        ending += (*self.tasks, *self.emitting)
        if self._following is not None:
            ending.append(self._following)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # -- other processes ---------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Hear of what other processes emit."""
        if (follow := self._store.follow) is not None:
            async with aclosing(follow(EVENT_NEWS_SPACE)) as news:
                async for name in news:
                    self.wake(name)
            return
        ends: dict[str, Cursor] = {}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for name in list(self._followers):
                with suppress(Refused):
                    end = await self.log.ensure_end_cursor(name)
                    if ends.get(name) != end:
                        ends[name] = end
                        self.wake(name)

    # -- sources -----------------------------------------------------------------------------------------

    def _start_source(self, event: EventType, wanted: Params) -> RunningSource:
        key = event.name, encode_canonical_json(wanted)
        if (source := self._sources.get(key)) is None:
            if len(self._sources) >= MAX_SOURCES:
                raise LimitExceeded(
                    "too many different arguments are listened to", data={"limit": "event_sources", "max": MAX_SOURCES}
                )
            work = self._run_while_leased(event, wanted, key)
            source = self._sources[key] = RunningSource(asyncio.create_task(work), lambda: self._sources.pop(key, None))
        source.users += 1
        return source

    async def _run_while_leased(self, event: EventType, wanted: Params, key: tuple[str, bytes]) -> None:
        """Run a source in one process of the server. If that one ends, or loses its lease, another takes over."""
        from hashlib import sha256

        token, backoff = make_lease_token(), Backoff(FIRST_PAUSE, MAX_PAUSE, jitter=(0.8, 1.2))
        lease_name = f"event source {event.name} {sha256(key[1]).hexdigest()[:32]}"
        while True:
            lease = Lease(self._store, lease_name, token)
            try:
                await lease.acquire(SOURCE_LEASE_SECONDS)
            except StoreBusy:
                await asyncio.sleep(SOURCE_LEASE_SECONDS)
                continue
            except Refused:
                await asyncio.sleep(backoff.next_wait())
                continue
            until_lost = asyncio.timeout(None)
            lease.on_lost = partial(until_lost.reschedule, 0)
            try:
                async with until_lost:
                    await self._run_source(event, wanted)
                backoff.reset()
            except Exception as error:
                if isinstance(error, TimeoutError) and until_lost.expired():
                    log.warning("the source of event %s stops: another process may run it by now", event.name)
                    continue
                log.exception("the source of event %s failed, and is started again", event.name)
            finally:
                await lease.release()
            await asyncio.sleep(backoff.next_wait())


class SharedPage(NamedTuple):
    """A page of a log that is read for everybody who asks until then, if nothing was added since `mark`."""

    mark: int
    until: float
    reading: asyncio.Task[LogPage]


class RunningSource:
    """A source that runs for its `users`. With the last of them it is cancelled."""

    __slots__ = ("task", "users", "_forget")

    def __init__(self, task: asyncio.Task[None], forget: Callable[[], object]) -> None:
        self.task, self.users, self._forget = task, 0, forget

    def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            self._forget()
            self.task.cancel()


# -- Those who wait for an event.


class LogReader(Protocol):
    """Somebody who reads the log of a type: everything before `position` was looked at.

    `kept_number` is where it is as the store has it, if that is written down: it should not fall far behind.
    `read_soon` is told that there is something to read at the position, or that it `is_due` to be written down, and
    `report_failure` that the log cannot be read now.
    """

    position: Cursor

    @property
    def wanted_arguments(self) -> Params: ...

    @property
    def kept_number(self) -> int | None: ...

    def read_soon(self, is_due: bool = False) -> None: ...

    def report_failure(self, error: Exception) -> None: ...


class LogFollower:
    """Reads the log of one type for all who wait for an event in it, and wakes those for whom one comes.

    A reader that waits has looked at everything before the follower's position, or before the number with which it
    came if that is more: nothing is done for it while events pass that are not for it. Some readers come from behind
    the follower, after a restart for instance. They wait for a sweep: the log is read for all of them once more.

    If the log has let go of events that were not looked at, they may have been for anybody. So all who wait are woken,
    and find that out when they read.

    Those who write their position down are woken now and then to do so, twice while the log is renewed once. Whoever is
    furthest behind comes first: also where processes come and go before everybody had a turn.
    """

    def __init__(self, hub: EventHub, name: str) -> None:
        self.users = 0
        self._hub, self._name = hub, name
        self._index = FilterIndex[LogReader]()
        self._waiting: dict[LogReader, int] = {}
        """Those who wait, with the number at which they came."""
        self._position: Cursor
        self._sweep = 0
        self._swept: set[LogReader] = set()
        self._behind: set[LogReader] = set()
        """Those for whom the sweep reads, and those who wait for the next one. Both are in `_waiting`."""
        self._due, self._rotated_at = 0.0, asyncio.get_running_loop().time()
        self._waker, self._has_failed = asyncio.Event(), False
        self.task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Something may have been added to the log."""
        self._waker.set()

    def add(self, reader: LogReader) -> None:
        """A reader has nothing to read, and waits. It is woken by `read_soon`, and does not wait any more then."""
        if self._waiting and reader.position.epoch != self._position.epoch:
            # The log was lost, and one of them does not know that yet.
            self.release_all()
        if not self._waiting:
            self._position = reader.position
            self._waker.set()
        number = reader.position.number
        self._waiting[reader] = number
        self._index.add(reader.wanted_arguments, reader)
        if number < self._position.number:
            (self._swept if self._swept and number >= self._sweep else self._behind).add(reader)
            self._waker.set()

    def remove(self, reader: LogReader) -> None:
        """A reader waits no longer, if it did. It has its position."""
        if reader in self._waiting:
            self._take_out(reader, self._position.number)

    def release_all(self) -> None:
        """All have to look for themselves."""
        for reader in list(self._waiting):
            self._release(reader, self._position.number)

    def _release(self, reader: LogReader, number: int, *, is_due: bool = False) -> None:
        self._take_out(reader, number)
        reader.read_soon(is_due)

    def _take_out(self, reader: LogReader, number: int) -> None:
        """A reader waits no longer. `number` is how far the follower has looked."""
        came_at = self._waiting.pop(reader)
        self._index.remove(reader.wanted_arguments, reader)
        if reader in self._behind:
            number = came_at
        elif reader in self._swept:
            number = self._sweep
        self._behind.discard(reader)
        self._swept.discard(reader)
        reader.position = Cursor(self._position.epoch, max(came_at, number))

    async def _run(self) -> None:
        while True:
            self._waker.clear()
            try:
                is_behind = await self._read_on()
                is_behind = await self._sweep_on() or is_behind
                self._has_failed = False
            except Exception as error:  # nothing that is raised may end it: nobody would hear of an event again
                self._report_failure(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not is_behind:
                with suppress(TimeoutError):
                    async with asyncio.timeout(NEWS_LOOK_SECONDS):
                        await self._waker.wait()

    async def _read_on(self) -> bool:
        """Look at the next events for all who wait. Whether there are more."""
        if not self._waiting:
            return False
        start = self._position
        page = await self._hub.read_page(self._name, start)
        if self._position is not start or not self._waiting:
            return bool(self._waiting)  # all left meanwhile, and others came
        if page.is_truncated:
            self.release_all()
        for event in page.events:
            for reader in self._index.find(event.arguments, is_exact=event.is_exact):
                if self._waiting[reader] <= event.number:
                    self._release(reader, event.number)
        self._position = page.cursor
        self._wake_some_to_write(page.turnover)
        return page.has_more

    async def _sweep_on(self) -> bool:
        """Look at the next events for those who came from behind. Whether there are more."""
        if not self._swept:
            if not self._behind:
                return False
            self._swept, self._behind = self._behind, set[LogReader]()
            self._sweep = min(self._waiting[reader] for reader in self._swept)
        start = Cursor(self._position.epoch, self._sweep)
        page = await self._hub.log.read_page(self._name, start)
        await asyncio.sleep(0)  # a store in memory gives nobody else a turn
        if start != (self._position.epoch, self._sweep):
            return True
        if page.is_truncated:
            for reader in list(self._swept):
                self._release(reader, self._sweep)
        for event in page.events:
            self._sweep = event.number
            for reader in self._index.find(event.arguments, is_exact=event.is_exact):
                if reader in self._swept and self._waiting[reader] <= event.number:
                    self._release(reader, event.number)
        self._sweep = page.cursor.number
        if self._sweep >= self._position.number:
            swept, self._swept = self._swept, set[LogReader]()  # from here on they wait like the others
            per_event = page.turnover / max(1, self._sweep - start.number)
            for reader in swept:
                if (kept := reader.kept_number) is not None and (self._sweep - kept) * per_event >= MAX_BEHIND:
                    self._release(reader, self._position.number, is_due=True)
        return bool(self._swept or self._behind)

    def _wake_some_to_write(self, turnover: float) -> None:
        """Wake those whose position was written down longest ago, as many as the log was renewed by."""
        now = asyncio.get_running_loop().time()
        turnover, self._rotated_at = max(turnover, (now - self._rotated_at) / self._hub.log.max_age), now
        self._due += 2 * turnover * len(self._waiting)
        if self._due < max(1, MIN_DUE * len(self._waiting)):
            return
        count, self._due = int(self._due), self._due % 1
        kept = [(number, reader) for reader in self._waiting if (number := reader.kept_number) is not None]
        for _, reader in nsmallest(count, kept, key=lambda each: each[0]):
            self._release(reader, self._position.number, is_due=True)

    def _report_failure(self, error: Exception) -> None:
        """Once for each time that the store is away."""
        if not self._has_failed:
            self._has_failed = True
            is_unexpected = not isinstance(error, DefserveError)
            log.warning("events %s cannot be read: %s", self._name, error, exc_info=error if is_unexpected else None)
            for reader in list(self._waiting):
                reader.report_failure(error)


# -- One open `events/stream` request.


class EventStream:
    """Sends the events after a cursor to the caller of a request, until it is cancelled or the event ends for it.

    `check_event` gives the type if the caller may still have it, and raises EventError otherwise.
    """

    def __init__(
        self,
        call: Call,
        hub: EventHub,
        codec: CursorCodec,
        event: EventType,
        wanted: Params,
        check_event: Callable[[EventType], object],
    ) -> None:
        self._call, self._hub, self._codec = call, hub, codec
        self._event, self._check_event = event, check_event
        self.wanted_arguments, self.kept_number = wanted, None
        self.position: Cursor
        self._woken, self._has_failed = asyncio.Event(), False

    async def run(self, cursor: Cursor | None, max_age_ms: float | None) -> None:
        """Returns when the event has ended for this caller."""
        hub, name = self._hub, self._event.name
        clock = asyncio.get_running_loop()
        try:
            with hub.hold_source_running(self._event, self.wanted_arguments), hub.listen(name) as follower:
                is_truncated = False
                if cursor is None:
                    cursor = await hub.log.ensure_end_cursor(name)
                else:
                    self._woken.set()
                    start = await hub.log.read_page(name, cursor, max_age_ms=max_age_ms, limit=1)
                    is_truncated = start.is_truncated
                    if is_truncated:
                        cursor = start.cursor if not start.events else _before(start.cursor, start.events[0].number)
                self.position = cursor
                self._notify(ACTIVE_NOTIFICATION, {"cursor": self._encode(cursor), "truncated": is_truncated})
                beat_at = clock.time() + HEARTBEAT_SECONDS
                while True:
                    if self._woken.is_set():
                        self._woken.clear()
                        await self._send_new_events()
                    if clock.time() >= beat_at:
                        self._check_event(self._event)
                        self._notify(HEARTBEAT_NOTIFICATION, {"cursor": self._encode(self.position)})
                        beat_at = clock.time() + HEARTBEAT_SECONDS
                    follower.add(self)
                    try:
                        with suppress(TimeoutError):
                            async with asyncio.timeout_at(beat_at):
                                await self._woken.wait()
                    finally:
                        follower.remove(self)
        except EventError as error:
            self._notify(TERMINATED_NOTIFICATION, {"error": error.to_wire()})

    def read_soon(self, is_due: bool = False) -> None:
        """See `LogReader`."""
        self._woken.set()

    def report_failure(self, error: Exception) -> None:
        """See `LogReader`. A store that is away for a moment does not end the stream."""
        self._notify(ERROR_NOTIFICATION, {"error": {"code": -32603, "message": "events cannot be read now"}})

    async def _send_new_events(self) -> None:
        """Send what the log has at the position, as long as something is for this caller."""
        is_found = True
        while is_found:
            self._check_event(self._event)
            try:
                page = await self._hub.read_page(self._event.name, self.position)
            except Refused as error:
                if not self._has_failed:
                    self.report_failure(error)
                self._has_failed = True
                return
            self._has_failed, is_found = False, False
            if page.is_truncated:
                start = page.events[0].number if page.events else page.cursor.number
                self._notify(
                    ACTIVE_NOTIFICATION, {"cursor": self._encode(_before(page.cursor, start)), "truncated": True}
                )
            for event in page.events:
                if not matches_filter(self.wanted_arguments, event.arguments, is_exact=event.is_exact):
                    continue
                is_found = page.has_more
                await self._wait_for_reader()
                after = self._encode(Cursor(page.cursor.epoch, event.number + 1))
                if event.is_gap:
                    self._notify(ACTIVE_NOTIFICATION, {"cursor": after, "truncated": True})
                else:
                    self._notify(EVENT_NOTIFICATION, self._event.to_wire(event, after))
            self.position = page.cursor

    async def _wait_for_reader(self) -> None:
        while self._call.unsent > MAX_UNSENT:  # noqa: ASYNC110  (a call does not tell when its messages leave)
            await asyncio.sleep(UNSENT_LOOK_SECONDS)

    def _encode(self, cursor: Cursor) -> str:
        return self._codec.encode_cursor(self._event.name, cursor)

    def _notify(self, method: str, params: Params) -> None:
        meta = {**params.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: self._call.id}
        self._call.notify(method, {**params, "_meta": meta})


def _before(cursor: Cursor, number: int) -> Cursor:
    return Cursor(cursor.epoch, number)
