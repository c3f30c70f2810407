"""Events of backends (MCP Events, a draft), as events of this server.

How it works: while somebody listens to an event of a backend, a source follows it in the backend's own conversation,
and adds what happens to our log. So polls, streams and webhooks are ours: our cursors, our rights, our outbox. The
place in the backend up to which its events were added is kept with them, so that nothing is lost or added twice when
this server is started again. What the backend itself has lost is marked in the log.

    backend ─ poll from the place, then stream ─→ source ─ one change: event and place ─→ our log → our subscribers

A place is a cursor of the backend, and how many of the events behind it were added: "2 QUJD".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.client.events import EventListener, ServerOccurrence, make_stream_params
from defserve.client.replies import Json, number_or_none, object_or_empty, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, PeerError, PeerTimeout, UsageError
from defserve.protocols.mcp.errors import SERVER_ID_META_KEY
from defserve.protocols.mcp.events.draft import (
    EVENT_ERROR_CODES,
    EVENTS_EXTENSION_ID,
    LIST_METHOD,
    MAX_EVENT_DATA_BYTES,
    MIN_POLL_MS,
    POLL_METHOD,
    make_event_error,
)
from defserve.protocols.mcp.events.event_log import BackendPosition, BackendPositionMoved, Occurrence
from defserve.protocols.mcp.events.event_types import EventType, EventTypeOptions, encode_canonical_json
from defserve.proxying import boundary
from defserve.proxying.catalogue import ListKind
from defserve.proxying.items import BackendItemMixin, RelayedFunction, UncheckedArguments

if TYPE_CHECKING:
    from collections.abc import Hashable

    from defserve.auth.principals import Principal
    from defserve.core.call import Call
    from defserve.core.messages import Params
    from defserve.core.registry import Registry
    from defserve.protocols.mcp.events.extension import Events
    from defserve.protocols.mcp.lifecycle import Dialect
    from defserve.proxying.backend import Backend
    from defserve.proxying.channel import BackendChannel


EVENT_LIST: Final = ListKind(EVENTS_EXTENSION_ID, LIST_METHOD, "events", "name", is_extension=True)
REQUEST_SECONDS: Final = 10.0
CATCH_UP_SECONDS: Final = 30.0
"""How long somebody who begins to listen waits for the events of before."""
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
MAX_POLL_SECONDS: Final = 3_600.0
MAX_EVENTS_A_POLL: Final = 100
MAX_CURSOR_LENGTH: Final = 4_096
MAX_ID_LENGTH: Final = 256

log = get_logger("proxying")


class EventRelay:
    """The events of this server, in which backends show theirs. `kind` is how a backend lists them."""

    kind: Final = EVENT_LIST

    def __init__(self, events: Events) -> None:
        self.events = events

    @property
    def registry(self) -> Registry[EventType]:
        return self.events.registry

    def make_event(self, backend: Backend, name: str, raw: Json) -> RemoteEvent:
        """The event of a backend as one of ours. Raises UsageError for one that cannot be followed."""
        return RemoteEvent(backend, name, raw, self.events)

    def can_hear_list_changes(self, capabilities: Mapping[str, Any]) -> bool:
        """Whether a backend tells when its list of events has changed."""
        extensions = object_or_empty(capabilities.get("extensions"))
        return object_or_empty(extensions.get(EVENTS_EXTENSION_ID)).get("listChanged") is True


class RemoteEvent(BackendItemMixin, EventType):
    """An event of a backend. `inner` is its name there, `raw` its listing. How it is delivered here is up to us."""

    __slots__ = ("backend", "fronts", "inner", "raw", "_ways")

    fronts: set[Hashable] | None

    def __init__(self, backend: Backend, name: str, raw: Json, events: Events) -> None:
        self.backend, self.inner, self.raw, self.fronts = backend, str(raw["name"]), raw, None
        listed = raw.get("delivery")
        self._ways = {way for way in ("poll", "push") if is_array(listed) and way in listed}
        if not self._ways:
            raise UsageError("it can neither be polled nor streamed", fix="have its server offer one of the two")
        options = EventTypeOptions(name=name, description=string_or_none(raw.get("description")) or "")
        arguments = UncheckedArguments(object_or_empty(raw.get("inputSchema")))
        # Not `EventType.__init__`, which reads an author's function.
        super(EventType, self).__init__(name, options, RelayedFunction(name, arguments, _refuse_call), None)
        self.delivery, self.feeds = tuple(events.list_available_delivery_modes()), ()
        self.payload_schema = object_or_empty(raw.get("payloadSchema"))

    @property
    def is_source(self) -> bool:
        return True

    def describe(self, dialect: Dialect) -> Params:
        return {**super().describe(dialect), "_meta": self._make_meta(self.raw)}

    def to_wire(self, occurrence: Occurrence, cursor: str | None = None) -> Params:
        return {**super().to_wire(occurrence, cursor), "_meta": self._make_meta({})}

    def _make_meta(self, raw: Json) -> Json:
        """What it says of itself, and whose it is. What it says about the latter does not count."""
        return {**object_or_empty(raw.get("_meta")), SERVER_ID_META_KEY: self.backend.id}

    def is_open_to(self, caller: Principal) -> bool:
        return self.backend.open_to is None or self.backend.open_to(None, caller)

    @property
    def is_missing_temporarily(self) -> bool:
        return self.backend.state != "connected"

    async def check_subscriber(self, call: Call, events: Events, wanted: Params) -> None:
        """Have our log up to date, so that "from now on" means the same here and there."""
        if events.is_source_running(self, wanted):
            return
        follower = EventFollower(self, events, wanted)
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                channel = await self.backend.conversations.require_main_channel()
                while True:
                    with suppress(BackendPositionMoved):  # another subscriber does the same: go on behind it
                        await follower.catch_up(channel)
                        return
        except (DefserveError, TimeoutError) as error:
            # What was followed before is followed again as soon as the backend is back. If there is more than can be
            # added in time, the source goes on with it.
            if await follower.read_place() is None:
                failure = PeerTimeout("it did not answer in time") if isinstance(error, TimeoutError) else error
                raise self._explain_failure(call, failure) from None

    async def run_source(self, events: Events, wanted: Params) -> None:
        """Follow it for as long as somebody listens.

        A stream that ends is opened again after a pause, which is longer each time if they end soon and bring nothing.
        """
        backoff, loop = Backoff(FIRST_PAUSE, MAX_PAUSE), asyncio.get_running_loop()
        while True:
            began = loop.time()
            # Another server may have taken the place of the one that had it.
            current = events.registry.get(self.name)
            event = current if isinstance(current, RemoteEvent) else self
            follower = EventFollower(event, events, wanted)
            try:
                channel = await event.backend.conversations.require_main_channel()
                seconds = await follower.catch_up(channel)
                if not event.can_stream:
                    backoff.reset()
                    await asyncio.sleep(seconds)
                    continue
                await follower.follow_stream(channel)
            except BackendPositionMoved:
                continue  # another process has added some: go on behind them
            except DefserveError as error:
                text = self.backend.redact_secrets(str(error))
                log.warning("server %r: its event %r cannot be followed now: %s", self.backend.id, self.inner, text)
            if follower.has_added or loop.time() - began > MAX_PAUSE:
                backoff.reset()
            await asyncio.sleep(backoff.next_wait())

    @property
    def can_poll(self) -> bool:
        return "poll" in self._ways

    @property
    def can_stream(self) -> bool:
        return "push" in self._ways

    def _explain_failure(self, call: Call, error: DefserveError) -> Exception:
        """What a subscriber is told: an error of events in the dialect of its own request."""
        if not isinstance(error, PeerError):
            return error
        backend = self.backend
        for name, numbers in EVENT_ERROR_CODES.items():
            if error.code == numbers["sep"]:
                data = backend.secrets.redact_sure_secrets(object_or_empty(error.data))
                return make_event_error(call, name, backend.redact_secrets(error.message), **data)
        return boundary.make_call_error(backend.id, error, backend.state, backend.secrets)


class EventFollower:
    """Adds the events of a backend, for one set of arguments, to our log."""

    def __init__(self, event: RemoteEvent, events: Events, wanted: Params) -> None:
        self._event, self._events, self._wanted = event, events, wanted
        self._origin = sha256(encode_canonical_json(wanted)).hexdigest()[:32]
        self._place = ""
        self.has_added = False
        self._warned: set[str] = set()

    async def read_place(self) -> str | None:
        """Where it has come to; None if it was never followed."""
        return await self._events.log.read_backend_position(self._event.name, self._origin)

    async def catch_up(self, channel: BackendChannel) -> float:
        """Add what has happened since the place, and return the seconds until a poll makes sense.

        Raises PeerError, and BackendPositionMoved if another process does the same.
        """
        place, backoff = await self.read_place(), Backoff(FIRST_PAUSE, MAX_PAUSE)
        if not self._event.can_poll:
            self._place = place or ""
            return 0.0
        if place is None:
            await self._store_first_place(_read_cursor(await self._poll(channel, None)))
            place = await self.read_place()
        self._place = place or ""
        while True:
            added, cursor = _split_place(self._place)
            page = await self._poll(channel, cursor)
            found, after = page.get("events"), _read_cursor(page)
            events = [ServerOccurrence(each) for each in found if is_object(each)] if is_array(found) else []
            has_added, is_marked = False, page.get("truncated") is True
            if is_marked:
                await self._add_gap()
                added = 0
            for number, event in enumerate(events[added:], added + 1):
                # One mark is enough for those that follow each other on a page.
                after_event = f"{number} {cursor}" if number < len(events) else f"0 {after}"
                is_marked = not await self._add(event, after_event, is_marked)
                has_added = has_added or not is_marked
            if after != cursor and self._place != f"0 {after}":
                await self._events.log.move_backend_position(
                    self._event.name, BackendPosition(self._origin, self._place, f"0 {after}")
                )
                self._place = f"0 {after}"
            if page.get("hasMore") is not True or after == cursor:
                wanted = max(number_or_none(page.get("nextPollMs")) or 0, MIN_POLL_MS) / 1000
                return min(wanted, MAX_POLL_SECONDS)
            if has_added:
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_wait())

    async def follow_stream(self, channel: BackendChannel) -> None:
        """Add what happens from the place on, until the backend ends the stream. Raises PeerError."""
        added, cursor = _split_place(self._place)
        params = make_stream_params(self._event.inner, cursor, None, self._wanted)
        listeners, talk = channel.event_listeners, channel.conversation
        async with EventListener(listeners, talk, channel.terms, params, REQUEST_SECONDS) as stream:
            if not self._place:
                await self._store_first_place(_check_cursor(stream.cursor))
                self._place = await self.read_place() or ""
                added, cursor = _split_place(self._place)
            async for event in stream:
                if event.is_after_gap:
                    await self._add_gap()
                if added:
                    added -= 1  # it was added before
                    continue
                known = _split_place(self._place)
                is_cursor = event.cursor is not None and len(event.cursor) <= MAX_CURSOR_LENGTH
                await self._add(event, f"0 {event.cursor}" if is_cursor else f"{known[0] + 1} {known[1]}")

    async def _store_first_place(self, cursor: str) -> None:
        await self._events.log.store_first_backend_position(self._event.name, self._origin, f"0 {cursor}")

    async def _poll(self, channel: BackendChannel, cursor: str | None) -> Json:
        params: Json = {"name": self._event.inner, "arguments": self._wanted, "cursor": cursor}
        if cursor is not None:
            params["maxEvents"] = MAX_EVENTS_A_POLL
        meta = channel.terms.make_extension_meta("events")
        complete = channel.terms.with_envelope({**params, "_meta": meta}, None)
        return object_or_empty(await channel.conversation.request(POLL_METHOD, complete, within=REQUEST_SECONDS))

    async def _add(self, event: ServerOccurrence, after: str, is_marked: bool = False) -> bool:
        """Whether it could be added. If not, that is a gap, which may be marked already."""
        backend, now = self._event.backend, self._events.log.now()
        data = backend.secrets.redact_sure_secrets(event.data)
        if not 0 < len(event.id) <= MAX_ID_LENGTH or len(json.dumps(data)) > MAX_EVENT_DATA_BYTES:
            self._warn("server %r: an event %r is too large, or has no id")
            if not is_marked:
                await self._append({}, "", now, after)
            return False
        at = now
        with suppress(ValueError, OverflowError):
            at = min(now, max(0, round(datetime.fromisoformat(event.timestamp).timestamp() * 1000)))
        await self._append(data, event.id, at, after)
        return True

    async def _add_gap(self) -> None:
        """The backend has lost events. Without an id, an event is the mark of that."""
        self._warn("server %r: events %r were lost there")
        await self._append({}, "", self._events.log.now(), self._place)

    def _warn(self, text: str) -> None:
        """Once for each poll or stream: how many such events there are, the backend decides."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text, self._event.backend.id, self._event.inner)

    async def _append(self, data: Params, id: str, at: int, after: str) -> None:
        origin = BackendPosition(self._origin, self._place, after)
        await self._events.append(self._event, self._wanted, data, id, is_exact=True, at=at, origin=origin)
        self._place, self.has_added = after, self.has_added or id != ""


def _split_place(place: str) -> tuple[int, str | None]:
    added, _, cursor = place.partition(" ")
    return int(added or 0), cursor or None


def _read_cursor(page: Json) -> str:
    return _check_cursor(page.get("cursor"))


def _check_cursor(cursor: Any) -> str:
    if not isinstance(cursor, str) or not 0 < len(cursor) <= MAX_CURSOR_LENGTH:
        raise PeerError("it gives no usable cursor")
    return cursor


async def _refuse_call(call: Call, arguments: Json) -> None:
    """An event is not called."""
