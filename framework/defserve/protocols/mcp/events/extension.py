"""MCP Events as an extension: `events/list`, `events/poll` and `events/stream`, and how events are emitted.

`events/subscribe` and `events/unsubscribe` are in `webhooks`, which is imported when the first of them comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Offer
from defserve.core.messages import EncodedJson, Params
from defserve.core.registry import Registry
from defserve.errors import LimitExceeded, Refused, UsageError, did_you_mean
from defserve.protocols.mcp.errors import read_text_param
from defserve.protocols.mcp.events.draft import (
    DELIVERY_MODES,
    EVENTS_EXTENSION_ID,
    EVENTS_LIST_CHANGED_FILTER,
    EVENTS_LIST_CHANGED_NOTIFICATION,
    LIST_METHOD,
    POLL_METHOD,
    STREAM_METHOD,
    SUBSCRIBE_METHOD,
    UNSUBSCRIBE_METHOD,
    DeliveryMode,
    EventSettings,
    make_event_error,
)
from defserve.protocols.mcp.events.event_log import (
    MAX_EVENTS_AT_ONCE,
    BackendPosition,
    Cursor,
    CursorCodec,
    EventLog,
    load_events_secret,
)
from defserve.protocols.mcp.events.event_types import EventType, matches_filter, read_filter, read_non_negative_param
from defserve.protocols.mcp.events.streams import EventHub, EventStream
from defserve.protocols.mcp.items import ListMethod
from defserve.protocols.mcp.subscriptions import SUBSCRIPTION_ID_META_KEY, GrantedFilter, SendNotification
from defserve.stores.store import EVENT_NEWS_SPACE, is_in_memory

if TYPE_CHECKING:
    from collections.abc import Generator

    from defserve.auth.auth_options import Auth
    from defserve.protocols.mcp.asking.server_secret import ServerSecret
    from defserve.protocols.mcp.events.webhooks import Webhooks
    from defserve.protocols.mcp.subscriptions import Subscriptions
    from defserve.stores.identity import ServerStore


MAX_EVENTS_A_POLL: Final = 100
MAX_SCANNED: Final = 1_000
"""Events that one poll looks at. If more may follow, the client asks again at once."""
MAX_EARLY_EVENTS: Final = 1_000
"""Events that are emitted before the server serves, and kept until it does."""
FAREWELL_SECONDS: Final = 5.0
"""How long the end of a server waits for events that are on their way to the store."""
POLLS_KEPT: Final = 3
"""A source goes on running for as long as so many polls would take."""

log = get_logger()


class Events(Extension):
    """The events of a server. `store` keeps the log; `secret` and `auth` are the server's."""

    name = "events"
    listing = frozenset({LIST_METHOD})

    def __init__(
        self,
        store: ServerStore,
        secret: ServerSecret,
        subscriptions: Subscriptions,
        settings: EventSettings,
        auth: Auth | None,
    ) -> None:
        self.auth = auth
        self.store, self.settings, self.log = store, settings, EventLog(store, settings, on_added=self._on_added)
        self.registry: Registry[EventType] = Registry("event")
        self.is_loopback_allowed = settings.allow_loopback
        """Whether webhooks may go to this machine."""
        self._secret = secret
        self._list = ListMethod("events", self.registry)
        self._codec: CursorCodec | None = None
        self._hubs: dict[asyncio.AbstractEventLoop, EventHub] = {}
        self._unannounced: set[str] = set()
        self._early: deque[Callable[[], Any]] = deque(maxlen=MAX_EARLY_EVENTS)
        self._streams: dict[str, int] = {}
        self._list_followers: set[SendNotification] = set()
        self._webhooks: Webhooks | None = None
        self._before_list: Callable[[Call], Awaitable[None]] | None = None
        self._wait_for_name: Callable[[Call, str], Awaitable[object]] | None = None
        subscriptions.add_filter_member(EVENTS_LIST_CHANGED_FILTER, self.follow_list)
        self.registry.watch(self._on_list_changed)

    # -- the plug ----------------------------------------------------------------------------------------

    def negotiate(self, offer: Offer) -> object | None:
        return self if offer.stateless else None

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        """Both dialects' words for it."""
        return {"extensions": {EVENTS_EXTENSION_ID: {"listChanged": True}}, "events": {}} if offer.stateless else {}

    def methods(self) -> Mapping[str, Handler]:
        return {
            LIST_METHOD: self.list_types,
            POLL_METHOD: self.poll,
            STREAM_METHOD: self.stream,
            SUBSCRIBE_METHOD: self.subscribe,
            UNSUBSCRIBE_METHOD: self.unsubscribe,
        }

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        if self._secret.of_group is not None and is_in_memory(self.store):
            log.warning(
                "several processes serve, and each keeps its events to itself: an event reaches only those who listen "
                "at the process that emits it. To change that, give the server a store: Server(store='postgres://…') or 'redis://…'"
            )
        hub = self._hubs[loop] = EventHub(self.log, self.store, lambda event, wanted: event.run_source(self, wanted))
        while self._early:
            hub.emitting.start(_log_failure(self._early.popleft()()))
        if not is_in_memory(self.store) and (
            self.has_backends or any("webhook" in event.delivery for event in self.registry)
        ):
            hub.tasks.start(self._resume_deliveries(hub))
        try:
            yield
        finally:
            await _finish_emitting(hub)
            del self._hubs[loop]
            if self._webhooks is not None:
                await self._webhooks.stop_deliveries(hub)
            await hub.close()
            await self.log.finish_writing(FAREWELL_SECONDS)
            self._unannounced.clear()
            if not self._hubs:
                await self.store.close()

    @property
    def has_backends(self) -> bool:
        """Whether servers behind this one may have events, which come and go with them."""
        return self._before_list is not None

    def list_available_delivery_modes(self) -> Sequence[DeliveryMode]:
        """The ways in which this server can deliver: webhooks need an HTTP client."""
        has_client = find_spec("httpx2") is not None
        return [mode for mode in DELIVERY_MODES if mode != "webhook" or has_client]

    def ignore_allow_loopback_option(self) -> None:
        """Other machines reach this server: `allow_loopback`, which is for tests and development, does not count."""
        if self.is_loopback_allowed:
            self.is_loopback_allowed = False
            log.warning(
                "EventSettings(allow_loopback=True) is ignored: this server is reached from other machines, and "
                "whoever may subscribe could make it send requests to this one"
            )

    # -- emitting ----------------------------------------------------------------------------------------

    async def emit(self, event: Any, payload: Any, arguments: Mapping[str, Any], event_id: str | None) -> str:
        """Add an event to the log, and return its id. From any loop. See `Server.emit_event`."""
        found = self.find_declared(event)
        data, packed = found.pack_payload(payload), found.pack_emitted_arguments(arguments)
        loop = asyncio.get_running_loop()
        if loop in self._hubs or not self._hubs:
            return await self.append(found, packed, data, event_id or None)
        # A store may belong to the loop that serves.
        work = self.append(found, packed, data, event_id or None)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, next(iter(self._hubs))))

    def emit_soon(self, event: Any, payload: Any, arguments: Mapping[str, Any], event_id: str | None) -> None:
        """Emit from code that cannot await, in any thread. See `Server.emit_event_soon`."""
        found = self.find_declared(event)
        data, packed = found.pack_payload(payload), found.pack_emitted_arguments(arguments)

        def make_work() -> Any:
            return self.append(found, packed, data, event_id or None)

        hub = next(iter(self._hubs.items()), None)
        if hub is None:
            if len(self._early) == MAX_EARLY_EVENTS:
                raise LimitExceeded(
                    f"{MAX_EARLY_EVENTS} events were emitted before the server serves, and no more are kept",
                    data={"limit": "early_events", "max": MAX_EARLY_EVENTS},
                )
            self._early.append(make_work)
        else:
            hub[0].call_soon_threadsafe(lambda: hub[1].emitting.start(_log_failure(make_work())))

    def find_declared(self, event: Any) -> EventType:
        """The type that an author means, by its function or name. Raises UsageError if there is none."""
        if isinstance(event, str):
            if (found := self.registry.get(event)) is not None:
                return found
            raise UsageError(
                f"there is no event {event!r}",
                fix=did_you_mean(event, [one.name for one in self.registry], "declare it"),
            )
        for one in self.registry:
            if one.function.signature.function is event:
                return one
        raise UsageError(f"{event!r} is not an event of this server", fix="declare it with @server.event")

    async def append(
        self,
        event: EventType,
        arguments: Params,
        data: Params,
        id: str | None = None,
        *,
        is_exact: bool = False,
        at: int | None = None,
        origin: BackendPosition | None = None,
    ) -> str:
        """Add an event to the log, wake those who wait for it, and return its id. See `EventLog.append`."""
        name = event.name
        added = await self.log.append(name, arguments, data, id, is_exact=is_exact, at=at, origin=origin)
        for feed in event.feeds:
            feed(added)
        if asyncio.get_running_loop() not in self._hubs:
            await self._announce(name)
        return added.id

    def _on_added(self, name: str) -> None:
        """Wake those who wait for events of a type, here and in other processes."""
        for loop, hub in list(self._hubs.items()):
            loop.call_soon_threadsafe(hub.wake, name)
        if (hub := self._hubs.get(asyncio.get_running_loop())) is not None and name not in self._unannounced:
            self._unannounced.add(name)
            hub.tasks.start(self._announce(name))

    async def _announce(self, name: str) -> None:
        """Tell other processes that events of a type were added: once for all that are added until it is told."""
        self._unannounced.discard(name)
        if (announce := self.store.announce) is not None:
            try:
                await announce(EVENT_NEWS_SPACE, name)
            except Refused as error:
                # It is in the log: those who listen elsewhere find it with the next one, or when they reconnect.
                log.warning("other processes were not told of an event: %s", error)

    # -- what clients ask for ----------------------------------------------------------------------------

    async def list_types(self, call: Call, params: Params) -> EncodedJson:
        """`events/list`."""
        if self._before_list is not None:
            await self._before_list(call)
        return self._list.build_page(call, params)

    async def poll(self, call: Call, params: Params) -> Params:
        """`events/poll`: the events after a cursor. Without a cursor, only the cursor to begin with."""
        event, wanted = await self.find_requested_event_type(call, params, "poll")
        codec, name = await self.load_codec(), event.name
        max_age, limit = (
            read_non_negative_param(params, "maxAgeMs"),
            read_non_negative_param(params, "maxEvents") or MAX_EVENTS_A_POLL,
        )
        await event.check_subscriber(call, self, wanted)
        hub = self._hubs[asyncio.get_running_loop()]
        hub.keep_source_for_seconds(event, wanted, POLLS_KEPT * event.poll_ms / 1000)
        if params.get("cursor") is None:
            cursor = await self.log.ensure_end_cursor(name)
            found, is_truncated, has_more = list[Params](), False, False
        else:
            cursor = codec.decode_cursor(name, params["cursor"])
            found, cursor, is_truncated, has_more = await self._collect(
                event, wanted, cursor, max_age, min(limit, MAX_EVENTS_A_POLL)
            )
        return {
            "events": found,
            "cursor": codec.encode_cursor(name, cursor),
            "truncated": is_truncated,
            "hasMore": has_more,
            "nextPollMs": event.poll_ms,
        }

    async def _collect(
        self, event: EventType, wanted: Params, cursor: Cursor, max_age: int | None, limit: int
    ) -> tuple[list[Params], Cursor, bool, bool]:
        """The next matching events, the cursor behind them, and whether some are gone, or more may follow."""
        found, is_truncated, scanned = list[Params](), False, 0
        while True:
            page = await self.log.read_page(event.name, cursor, max_age_ms=max_age)
            is_truncated = is_truncated or page.is_truncated
            for one in page.events:
                if len(found) == limit:
                    return found, Cursor(page.cursor.epoch, one.number), is_truncated, True
                if not matches_filter(wanted, one.arguments, is_exact=one.is_exact):
                    continue
                if one.is_gap:
                    is_truncated = True
                else:
                    found.append(event.to_wire(one))
            cursor, scanned = page.cursor, scanned + MAX_EVENTS_AT_ONCE
            if not page.has_more or scanned >= MAX_SCANNED:
                return found, cursor, is_truncated, page.has_more

    async def stream(self, call: Call, params: Params) -> Params:
        """`events/stream`: stays open until the client cancels it, the event ends for it or the server drains."""
        event, wanted = await self.find_requested_event_type(call, params, "push")
        codec, max_age = await self.load_codec(), read_non_negative_param(params, "maxAgeMs")
        given = params.get("cursor")
        cursor = codec.decode_cursor(event.name, given) if given is not None else None
        hub = self._hubs[asyncio.get_running_loop()]
        opened = EventStream(call, hub, codec, event, wanted, lambda one: self.check_alive(call, one))
        with self._count_stream(call):
            await event.check_subscriber(call, self, wanted)
            call.endless = True
            call.session.make_room(1)
            try:
                await opened.run(cursor, max_age)
            except BaseException:
                if call.cancelled or not call.session.composition.draining:
                    raise
            finally:
                call.session.make_room(-1)
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: call.id}}

    @contextmanager
    def _count_stream(self, call: Call) -> Generator[None]:
        """Raises EventError if the caller, or all together, have too many streams."""
        settings, caller = self.settings, call.principal
        mine, total = self._streams.get(caller, 0), sum(self._streams.values())
        if mine >= settings.streams or total >= settings.streams_total:
            most = settings.streams if mine >= settings.streams else settings.streams_total
            raise make_event_error(
                call, "resource_exhausted", f"too many open streams: {most} is the most", limit="streams", max=most
            )
        self._streams[caller] = mine + 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]

    async def subscribe(self, call: Call, params: Params) -> Params:
        """`events/subscribe`: see `webhooks`."""
        return await (await self._need_webhooks()).subscribe(call, params, self._hubs[asyncio.get_running_loop()])

    async def unsubscribe(self, call: Call, params: Params) -> Params:
        """`events/unsubscribe`: see `webhooks`."""
        return await (await self._need_webhooks()).unsubscribe(call, params, self._hubs[asyncio.get_running_loop()])

    async def _resume_deliveries(self, hub: EventHub) -> None:
        """Deliver to those who subscribed before this process began, as soon as the store can be reached."""
        backoff = Backoff(0.5, 30.0)
        while True:
            try:
                (await self._need_webhooks()).start_deliveries(hub)
                return
            except Refused as error:
                log.warning("webhooks wait for the store: %s", error)
                await asyncio.sleep(backoff.next_wait())

    async def _need_webhooks(self) -> Webhooks:
        codec = await self.load_codec()
        if self._webhooks is None:
            from defserve.protocols.mcp.events.webhooks import Webhooks

            self._webhooks = Webhooks(self, codec)
        return self._webhooks

    # -- for the ways of delivery ------------------------------------------------------------------------

    def attach_backend_sources(
        self,
        wait_before_listing: Callable[[Call], Awaitable[None]],
        meta: Callable[[Call], Params],
        wait_for_name: Callable[[Call, str], Awaitable[object]],
    ) -> None:
        """Servers behind this one have events, too; see `MCP.attach_backend_sources`."""
        self._before_list, self._list.meta, self._wait_for_name = wait_before_listing, meta, wait_for_name

    async def find_requested_event_type(
        self, call: Call, params: Params, mode: DeliveryMode
    ) -> tuple[EventType, Params]:
        """The type that a request names, and its filter. Raises EventError or InvalidParams."""
        name = read_text_param(params, "name")
        if self._wait_for_name is not None and self.registry.get(name) is None:
            await self._wait_for_name(call, name)
        event = self.find_visible(call, name)
        if mode not in event.delivery:
            raise make_event_error(
                call, "unsupported", f"{event.name} is not delivered by {mode}", feature="delivery", value=mode
            )
        return event, read_filter(event, params)

    def find_visible(self, call: Call, name: str) -> EventType:
        """The type of this name. Raises EventError if there is none that the caller may see."""
        event = self.registry.get(name)
        if event is None or not call.session.composition.visible(call, event):
            raise make_event_error(call, "not_found", f"Unknown event: {name}", kind="event")
        call.subject = event
        return event

    def check_alive(self, call: Call, event: EventType) -> None:
        """Raises EventError if a type is gone, has changed, or the caller may no longer see it."""
        current = self.registry.get(event.name)
        if current is None and event.is_missing_temporarily:
            return
        if current is None:
            raise make_event_error(call, "not_found", f"{event.name} is no longer an event", kind="event")
        if current is not event and not current.is_compatible(event):
            raise make_event_error(
                call, "unsupported", f"{event.name} has changed: subscribe again", reason="schema_changed"
            )
        if not call.session.composition.visible(call, current):
            raise make_event_error(call, "forbidden", f"you may no longer have {event.name}")

    def is_source_running(self, event: EventType, wanted: Params) -> bool:
        """Whether the source of a type runs for these arguments."""
        return self._hubs[asyncio.get_running_loop()].is_source_running(event, wanted)

    async def load_codec(self) -> CursorCodec:
        """How cursors are written: with the server's secret, or else with one that lies in the store."""
        if self._codec is None:
            secret = self._secret.get_lasting_secret() or await load_events_secret(self.store)
            self._codec = CursorCodec(self.store.identity.derive_key(secret, "event cursor"))
        return self._codec

    def get_lasting_secret(self) -> bytes | None:
        """The secret that the server was given; None if there is none that outlives this process."""
        return self._secret.get_lasting_secret()

    # -- changes of the list -----------------------------------------------------------------------------

    async def follow_list(self, call: Call, wanted: Any, tell: SendNotification) -> GrantedFilter:
        """`eventsListChanged` in the filter of `subscriptions/listen`."""

        def tell_here(method: str, params: Params) -> None:
            call.engine.post_to_loop(lambda: tell(method, params))

        def begin() -> None:
            self._list_followers.add(tell_here)

        return GrantedFilter(True, begin, lambda: self._list_followers.discard(tell_here)) if wanted is True else _NO

    def _on_list_changed(self) -> None:
        # Who listens to what was removed is told so.
        for loop, hub in list(self._hubs.items()):
            loop.call_soon_threadsafe(hub.wake)
        for tell in list(self._list_followers):
            tell(EVENTS_LIST_CHANGED_NOTIFICATION, {})


_NO: Final = GrantedFilter(False, lambda: None, lambda: None)


async def _log_failure(work: Any) -> None:
    """An event that nobody waits for."""
    try:
        await work
    except Exception as error:
        log.error("an event could not be emitted: %s", error)


async def _finish_emitting(hub: EventHub) -> None:
    """Give the store a moment for the events that nobody waits for, and say how many it did not take."""
    await asyncio.sleep(0)  # what was emitted in this very moment
    if hub.emitting:
        await asyncio.wait(hub.emitting, timeout=FAREWELL_SECONDS)
    if hub.emitting:
        log.error("the server ends, and %d events that were emitted are not in the store", len(hub.emitting))
