"""What happens at a server that speaks MGP: its events (§13.2, §13.3), its health, its end (§11.3, §11.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from defserve.base.peer_bounds import RecentItems, weight_of
from defserve.client.answers import SendRequest
from defserve.client.eras import News, NewsFilter, NewsStream
from defserve.client.replies import text_of, texts_of
from defserve.core.json_values import is_array, is_object
from defserve.core.shapes import FLAG, NUMBER, OBJECT, TEXT, Kind, Shape, ShapeType, member, shape
from defserve.errors import InvalidParams, PeerError, Refused

EVENT_NOTIFICATION: Final = "notifications/mgp.event"
MAX_EARLY_EVENTS: Final = 256


class Event(News):
    """One event. `missed` counts the events dropped just before it, by the server or this client.

    For polled events, `missed` is a lower bound.
    """

    __slots__ = ("channel", "data", "timestamp", "severity", "sequence", "missed")

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(EVENT_NOTIFICATION, params)
        sequence = params.get("sequence")
        self.channel = str(params.get("channel"))
        self.data: Any = params.get("data")
        self.timestamp, self.severity = str(params.get("timestamp")), str(params.get("severity", "info"))
        self.sequence = sequence if isinstance(sequence, int) else 0
        self.missed = 0

    def __repr__(self) -> str:
        return f"Event({self.channel!r}, {self.data!r}, sequence={self.sequence}, missed={self.missed})"


class EventStream(NewsStream[Event]):
    """`async with client.subscribe_events(["tool.*"]) as events: async for event in events`."""

    subscribed: tuple[str, ...] = ()
    """The channels that matched, as the server names them."""
    unsupported: tuple[str, ...] = ()
    """The patterns that matched none."""

    def __init__(self, params: Mapping[str, Any], listeners: set[NewsStream[Any]], request: SendRequest) -> None:
        super().__init__(NewsFilter(), listeners)
        self._params, self._request, self._last = params, request, 0

    async def __anext__(self) -> Event:
        event = await super().__anext__()
        event.missed = max(event.sequence - self._last - 1, 0)
        self._last = max(event.sequence, self._last)
        return event


class PushedEvents(EventStream):
    """A subscription of this session. Closing it unsubscribes."""

    def __init__(self, params: Mapping[str, Any], listeners: set[NewsStream[Any]], request: SendRequest) -> None:
        super().__init__(params, listeners, request)
        self.id: str | None = None
        self._early: RecentItems[Event] = RecentItems(MAX_EARLY_EVENTS, measure=lambda event: weight_of(event.params))

    async def _begin(self) -> None:
        reply = await self._request("mgp/events/subscribe", self._params)
        if not isinstance(reply.get("subscription_id"), str):
            raise PeerError("the server gave the subscription no subscription_id")
        self.id = reply["subscription_id"]
        self.subscribed = tuple(texts_of(reply.get("subscribed")))
        self.unsupported = tuple(texts_of(reply.get("unsupported")))
        for event in self._early:
            self.hear(event)
        self._early.clear()

    async def _finish(self) -> None:
        if self.id is not None:
            with suppress(PeerError, Refused):  # the server left, or has no such subscription: it is over in any case
                await self._request("mgp/events/unsubscribe", {"subscription_id": self.id})

    def hear(self, news: News) -> None:
        if news.method != EVENT_NOTIFICATION:
            return
        event = news if isinstance(news, Event) else Event(news.params)
        if self.id is None:
            # On a stream of its own, the first event may come before the reply with our subscription's id.
            self._early.append(event)
        elif event.params.get("subscription_id") == self.id:
            self._queue_news(event)


class PolledEvents(EventStream):
    """Without a session nothing can be pushed, so this polls for the events since the last time."""

    def __init__(
        self, params: Mapping[str, Any], listeners: set[NewsStream[Any]], request: SendRequest, every: float
    ) -> None:
        super().__init__(params, listeners, request)
        self._every, self._seen = every, 0
        self._since: str | None = None

    async def _begin(self) -> None:
        reply = await self._poll()
        self.unsupported = tuple(texts_of(reply.get("unsupported")))
        self.subscribed = tuple(pattern for pattern in self._params["channels"] if pattern not in self.unsupported)

    def hear(self, news: News) -> None:
        """Nothing is pushed."""

    async def __anext__(self) -> Event:
        while self._unread.is_empty:
            reply = await self._poll()
            self._seen += reply.get("gap") is True
            found = reply.get("events")
            for event in filter(is_object, found if is_array(found) else ()):
                self._seen += 1
                self._queue_news(Event({**event, "sequence": self._seen}))
            if self._unread.is_empty:
                await asyncio.sleep(self._every)
        return await super().__anext__()

    async def _poll(self) -> dict[str, Any]:
        reply = await self._request("mgp/events/replay", {**self._params, "since": self._since})
        at = text_of(reply.get("next"))
        self._since = self._since if at is None else at
        return reply


# -- MGP §11.3, §11.4: the health of a server, changes of its state, and asking it to end.


LIFECYCLE_CHANGED: Final = "notifications/mgp.lifecycle"

Reason: TypeAlias = Literal[
    "operator_request", "configuration_change", "resource_limit", "idle_timeout", "kernel_shutdown"
]


AS_TEXT = Kind("a string", str)
COUNT = Kind("a number", lambda value: int(NUMBER.read(value)))
CHECKS = Kind("an object", lambda value: {name: passed is True for name, passed in OBJECT.read(value).items()})
PROBLEMS = Kind("an object", lambda value: {name: str(problem) for name, problem in OBJECT.read(value).items()})


@shape
class Pong(Shape):
    """The answer to a health ping. `status` is "healthy", "degraded" or "unhealthy"."""

    status: str = member("status", TEXT)
    uptime_secs: float = member("uptime_secs", NUMBER, default=0, lenient=True)
    server_id: str = member("server_id", AS_TEXT, default="")
    timestamp: str = member("timestamp", AS_TEXT, default="")


@shape
class Health(Shape):
    """The health of a server. Fields that the server does not send are empty. `problems`: a text per failed check."""

    status: str = member("status", TEXT)
    uptime_secs: float = member("uptime_secs", NUMBER, default=0, lenient=True)
    tools_available: int = member("tools_available", COUNT, default=0, lenient=True)
    tools_total: int = member("tools_total", COUNT, default=0, lenient=True)
    pending_requests: int = member("pending_requests", COUNT, default=0, lenient=True)
    resources: dict[str, Any] = member("resources", OBJECT, default_factory=dict, lenient=True)
    checks: dict[str, bool] = member("checks", CHECKS, default_factory=dict, lenient=True)
    problems: dict[str, str] = member("problems", PROBLEMS, default_factory=dict, lenient=True)

    @property
    def is_healthy(self) -> bool:
        """Whether the status is "healthy"; "degraded" is not."""
        return self.status == "healthy"


@shape
class Drain(Shape):
    """A server's answer to a shutdown request: whether it will end, and how long its open calls may take."""

    accepted: bool = member("accepted", FLAG, default=False, lenient=True)
    pending_requests: int = member("pending_requests", COUNT, default=0, lenient=True)
    estimated_drain_ms: int = member("estimated_drain_ms", COUNT, default=0, lenient=True)


def read_health(kind: type[ShapeType], reply: dict[str, Any]) -> ShapeType:
    """What a server says of its health. Raises PeerError if it gives no status."""
    try:
        return kind.from_wire(reply)
    except InvalidParams:
        raise PeerError("the server reported its health without a status") from None


class Change(News):
    """A server went from one state to another."""

    __slots__ = ("server_id", "previous", "state", "reason", "timestamp")

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(LIFECYCLE_CHANGED, params)
        self.server_id, self.reason = str(params.get("server_id")), str(params.get("reason"))
        self.previous, self.state = str(params.get("previous_state")), str(params.get("new_state"))
        self.timestamp = str(params.get("timestamp"))

    def __repr__(self) -> str:
        return f"Change({self.previous!r} to {self.state!r}, {self.reason!r})"


class LifecycleChanges(NewsStream[Change]):
    """`async with client.lifecycle() as changes: async for change in changes`.

    If the server announced that it would leave, iterating stops when it does, without an error.
    """

    _leaving = False

    def __init__(self, listeners: set[NewsStream[Any]]) -> None:
        super().__init__(NewsFilter(), listeners)

    def __aiter__(self) -> LifecycleChanges:
        self._listeners.add(self)
        return self

    async def _begin(self) -> None:
        """Nothing to ask for: the server tells every client that negotiated it."""

    def hear(self, news: News) -> None:
        if news.method == LIFECYCLE_CHANGED:
            change = Change(news.params)
            self._leaving = change.state in ("draining", "disconnected")
            self._queue_news(change)

    def end(self, reason: PeerError | None = None) -> None:
        super().end(None if self._leaving else reason)
