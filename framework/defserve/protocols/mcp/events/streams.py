"""Who listens to events on one loop of this process: open streams, and the sources that run for listeners.

How it works: every listener reads the log at its own pace, and sleeps in `EventHub.wait_for_news` while there is
nothing to read. An emission in this process wakes it at once. Another process is heard of through Redis, or found by
looking at the log twice a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.base.backoff import Backoff
from defserve.base.concurrency import BackgroundTasks
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
from defserve.protocols.mcp.events.event_types import EventType, encode_canonical_json, matches_filter
from defserve.protocols.mcp.subscriptions import SUBSCRIPTION_ID_META_KEY
from defserve.stores.identity import ServerStore
from defserve.stores.store import EVENT_NEWS_SPACE, Lease, StoreBusy, is_in_memory, make_lease_token

if TYPE_CHECKING:
    from defserve.core.call import Call


LOOK_SECONDS: Final = 0.5
SHARED_PAGE_SECONDS: Final = 0.5
MAX_SHARED_PAGES: Final = 64
"""Those who read at other places of the log read for themselves."""
MAX_UNSENT: Final = 16
"""Messages of a stream that wait for their reader. Then the log is read no further for it."""
UNSENT_LOOK_SECONDS: Final = 0.02

SOURCE_LEASE_SECONDS: Final = 1.0
MAX_SOURCES: Final = 1_000
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0

log = logging.getLogger("defserve")


class EventHub:
    """The listeners of one loop. `emit` adds what a source yields to the log."""

    def __init__(self, events: EventLog, store: ServerStore, run_source: Callable[[EventType, Params], Any]) -> None:
        self.log, self._store, self._run_source = events, store, run_source
        self.tasks = BackgroundTasks()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._marks: dict[str, int] = {}
        self._listeners: dict[str, int] = {}
        self._callbacks: dict[str, set[Callable[[], object]]] = {}
        self._pages: dict[tuple[str, Cursor], SharedPage] = {}
        self._following: asyncio.Task[None] | None = None
        self._sources: dict[tuple[str, bytes], RunningSource] = {}

    @contextmanager
    def listen(self, event: EventType, wanted: Params, on_news: Callable[[], object] | None = None) -> Generator[None]:
        """Somebody listens to a type of event. If it has a source, it runs meanwhile. Raises LimitExceeded.

        `on_news` is called whenever something may have been added to the log of this type.
        """
        source = self._start_source(event, wanted) if event.is_source else None
        self._listeners[event.name] = self._listeners.get(event.name, 0) + 1
        if on_news is not None:
            self._callbacks.setdefault(event.name, set()).add(on_news)
        if self._following is None and not is_in_memory(self._store):
            self._following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self._listeners[event.name] -= 1
            if not self._listeners[event.name]:
                del self._listeners[event.name]
                self._callbacks.pop(event.name, None)
            elif on_news is not None:
                self._callbacks[event.name].discard(on_news)
            if source is not None:
                source.release()

    def runs_source(self, event: EventType, wanted: Params) -> bool:
        """Whether the source of a type runs for these arguments, or waits for another process that runs it."""
        return (event.name, encode_canonical_json(wanted)) in self._sources

    def keep_source(self, event: EventType, wanted: Params, seconds: float) -> None:
        """Somebody polls a type of event, and will come back: its source runs for so long. Raises LimitExceeded."""
        if event.is_source:
            source = self._start_source(event, wanted)
            asyncio.get_running_loop().call_later(seconds, source.release)

    def get_mark(self, name: str) -> int:
        """Changes whenever something may have been added to the log of this type. Get it before you read the log."""
        return self._marks.get(name, 0)

    async def wait_for_news(self, name: str, mark: int, seconds: float) -> None:
        """Wait until the mark of a type has changed, for so many seconds at most."""
        if self.get_mark(name) != mark:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, set()).add(waiting)
        try:
            await asyncio.wait((waiting,), timeout=seconds)
        finally:
            self._waiting[name].discard(waiting)
            if not self._waiting[name]:
                del self._waiting[name]

    async def read_page(self, name: str, cursor: Cursor) -> LogPage:
        """The next events after a cursor. Those who ask at the same moment share what is read: many do, with news."""
        key, mark, now = (name, cursor), self.get_mark(name), asyncio.get_running_loop().time()
        known = self._pages.get(key)
        if known is None or known.mark != mark or known.until < now:
            self._pages = {each: page for each, page in self._pages.items() if page.until >= now}
            if len(self._pages) >= MAX_SHARED_PAGES:
                return await self.log.read_page(name, cursor)
            reading = asyncio.create_task(self.log.read_page(name, cursor))
            known = self._pages[key] = SharedPage(mark, now + SHARED_PAGE_SECONDS, reading)
        return await asyncio.shield(known.reading)

    def wake(self, name: str = "") -> None:
        """Something was added to the log of this type; without a name, perhaps to any."""
        if name and name not in self._listeners and name not in self._waiting:
            return
        for known in [name] if name else list(self._waiting.keys() | self._listeners.keys()):
            self._marks[known] = self._marks.get(known, 0) + 1
            for waiting in self._waiting.get(known, ()):
                if not waiting.done():
                    waiting.set_result(None)
            for on_news in self._callbacks.get(known, ()):
                on_news()

    async def close(self) -> None:
        """The loop ends: nobody listens any more."""
        ending = [*(source.task for source in self._sources.values()), *self.tasks]
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
            for name in list(self._listeners):
                with suppress(Refused):
                    end = await self.log.find_end(name)
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
        """Run a source in one process of the server. If that one ends, another takes over."""
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
            try:
                await self._run_source(event, wanted)
                backoff.reset()
            except Exception as error:
                log.error("the source of event %s failed, and is started again", event.name, exc_info=error)
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
        self._event, self._wanted, self._check_event = event, wanted, check_event
        self._has_failed = False

    async def run(self, cursor: Cursor | None, max_age_ms: float | None) -> None:
        """Returns when the event has ended for this caller."""
        hub, name = self._hub, self._event.name
        clock = asyncio.get_running_loop()
        try:
            with hub.listen(self._event, self._wanted):
                is_truncated = False
                if cursor is None:
                    cursor, max_age_ms = await hub.log.find_end(name), None
                else:
                    start = await hub.log.read_page(name, cursor, max_age_ms=max_age_ms, limit=1)
                    is_truncated = start.is_truncated
                    if is_truncated:
                        cursor = start.cursor if not start.events else _before(start.cursor, start.events[0].number)
                self._notify(ACTIVE_NOTIFICATION, {"cursor": self._encode(cursor), "truncated": is_truncated})
                beat_at = clock.time() + HEARTBEAT_SECONDS
                while True:
                    mark = hub.get_mark(name)
                    cursor = await self._send_new_events(cursor)
                    if clock.time() >= beat_at:
                        self._check_event(self._event)
                        self._notify(HEARTBEAT_NOTIFICATION, {"cursor": self._encode(cursor)})
                        beat_at = clock.time() + HEARTBEAT_SECONDS
                    await hub.wait_for_news(name, mark, max(0.0, beat_at - clock.time()))
        except EventError as error:
            self._notify(TERMINATED_NOTIFICATION, {"error": error.to_wire()})

    async def _send_new_events(self, cursor: Cursor) -> Cursor:
        """Send what the log has after the cursor. A store that is away for a moment does not end the stream."""
        has_more = True
        while has_more:
            self._check_event(self._event)
            try:
                page = await self._hub.log.read_page(self._event.name, cursor)
            except Refused as error:
                self._report_failure(error)
                return cursor
            self._has_failed = False
            if page.is_truncated:
                start = page.events[0].number if page.events else page.cursor.number
                self._notify(
                    ACTIVE_NOTIFICATION, {"cursor": self._encode(_before(page.cursor, start)), "truncated": True}
                )
            for event in page.events:
                if not matches_filter(self._wanted, event.arguments, is_exact=event.is_exact):
                    continue
                await self._wait_for_reader()
                after = self._encode(Cursor(page.cursor.epoch, event.number + 1))
                if event.is_gap:
                    self._notify(ACTIVE_NOTIFICATION, {"cursor": after, "truncated": True})
                else:
                    self._notify(EVENT_NOTIFICATION, self._event.to_wire(event, after))
            cursor, has_more = page.cursor, page.has_more
        return cursor

    def _report_failure(self, error: DefserveError) -> None:
        """Once for each time that the store is away."""
        if not self._has_failed:
            self._has_failed = True
            self._notify(ERROR_NOTIFICATION, {"error": {"code": -32603, "message": "events cannot be read now"}})
            log.warning("events of a stream cannot be read: %s", error)

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
