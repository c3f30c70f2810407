"""What happens at a server that speaks MGP: its events (§13.2, §13.3), its health, its end (§11.3, §11.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from defserve.base.peer_bounds import RecentItems, estimate_value_bytes
from defserve.client.answers import SendRequest
from defserve.client.eras import ServerUpdate, UpdateFilter, UpdateStream
from defserve.client.replies import filter_strings, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.core.shapes import (
    BOOLEAN,
    NUMBER,
    OBJECT,
    TEXT,
    MemberKind,
    ShapeT,
    WireShape,
    wire_member,
    wire_shape,
)
from defserve.errors import InvalidParams, PeerError, Refused

EVENT_NOTIFICATION: Final = "notifications/mgp.event"
MAX_EARLY_EVENTS: Final = 256


class ServerEvent(ServerUpdate):
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


class EventStream(UpdateStream[ServerEvent]):
    """`async with client.subscribe_events(["tool.*"]) as events: async for event in events`."""

    subscribed: tuple[str, ...] = ()
    """The channels that matched, as the server names them."""
    unsupported: tuple[str, ...] = ()
    """The patterns that matched none."""

    def __init__(self, params: Mapping[str, Any], listeners: set[UpdateStream[Any]], request: SendRequest) -> None:
        super().__init__(UpdateFilter(), listeners)
        self._params, self._request, self._last = params, request, 0

    async def __anext__(self) -> ServerEvent:
        event = await super().__anext__()
        event.missed = max(event.sequence - self._last - 1, 0)
        self._last = max(event.sequence, self._last)
        return event


class SessionEventStream(EventStream):
    """A subscription of this session. Closing it unsubscribes."""

    def __init__(self, params: Mapping[str, Any], listeners: set[UpdateStream[Any]], request: SendRequest) -> None:
        super().__init__(params, listeners, request)
        self.id: str | None = None
        self._early: RecentItems[ServerEvent] = RecentItems(
            MAX_EARLY_EVENTS, measure=lambda event: estimate_value_bytes(event.params)
        )

    async def _begin(self) -> None:
        reply = await self._request("mgp/events/subscribe", self._params)
        if not isinstance(reply.get("subscription_id"), str):
            raise PeerError("the server gave the subscription no subscription_id")
        self.id = reply["subscription_id"]
        self.subscribed = tuple(filter_strings(reply.get("subscribed")))
        self.unsupported = tuple(filter_strings(reply.get("unsupported")))
        for event in self._early:
            self.receive_update(event)
        self._early.clear()

    async def _finish(self) -> None:
        if self.id is not None:
            with suppress(PeerError, Refused):  # the server left, or has no such subscription: it is over in any case
                await self._request("mgp/events/unsubscribe", {"subscription_id": self.id})

    def receive_update(self, news: ServerUpdate) -> None:
        if news.method != EVENT_NOTIFICATION:
            return
        event = news if isinstance(news, ServerEvent) else ServerEvent(news.params)
        if self.id is None:
            # On a stream of its own, the first event may come before the reply with our subscription's id.
            self._early.append(event)
        elif event.params.get("subscription_id") == self.id:
            self._queue_news(event)


class PolledEventStream(EventStream):
    """Without a session nothing can be pushed, so this polls for the events since the last time."""

    def __init__(
        self, params: Mapping[str, Any], listeners: set[UpdateStream[Any]], request: SendRequest, every: float
    ) -> None:
        super().__init__(params, listeners, request)
        self._every, self._seen = every, 0
        self._since: str | None = None

    async def _begin(self) -> None:
        reply = await self._poll()
        self.unsupported = tuple(filter_strings(reply.get("unsupported")))
        self.subscribed = tuple(pattern for pattern in self._params["channels"] if pattern not in self.unsupported)

    def receive_update(self, news: ServerUpdate) -> None:
        """Nothing is pushed."""

    async def __anext__(self) -> ServerEvent:
        while self._unread.is_empty:
            reply = await self._poll()
            self._seen += reply.get("gap") is True
            found = reply.get("events")
            for event in filter(is_object, found if is_array(found) else ()):
                self._seen += 1
                self._queue_news(ServerEvent({**event, "sequence": self._seen}))
            if self._unread.is_empty:
                await asyncio.sleep(self._every)
        return await super().__anext__()

    async def _poll(self) -> dict[str, Any]:
        reply = await self._request("mgp/events/replay", {**self._params, "since": self._since})
        at = string_or_none(reply.get("next"))
        self._since = self._since if at is None else at
        return reply


# -- MGP §11.3, §11.4: the health of a server, changes of its state, and asking it to end.


LIFECYCLE_CHANGED: Final = "notifications/mgp.lifecycle"

ShutdownReason: TypeAlias = Literal[
    "operator_request", "configuration_change", "resource_limit", "idle_timeout", "kernel_shutdown"
]


AS_TEXT = MemberKind("a string", str)
COUNT = MemberKind("a number", lambda value: int(NUMBER.read(value)))
CHECKS = MemberKind("an object", lambda value: {name: passed is True for name, passed in OBJECT.read(value).items()})
PROBLEMS = MemberKind("an object", lambda value: {name: str(problem) for name, problem in OBJECT.read(value).items()})


@wire_shape
class HealthPong(WireShape):
    """The answer to a health ping. `status` is "healthy", "degraded" or "unhealthy"."""

    status: str = wire_member("status", TEXT)
    uptime_secs: float = wire_member("uptime_secs", NUMBER, default=0, lenient=True)
    server_id: str = wire_member("server_id", AS_TEXT, default="")
    timestamp: str = wire_member("timestamp", AS_TEXT, default="")


@wire_shape
class Health(WireShape):
    """The health of a server. Fields that the server does not send are empty. `problems`: a text per failed check."""

    status: str = wire_member("status", TEXT)
    uptime_secs: float = wire_member("uptime_secs", NUMBER, default=0, lenient=True)
    tools_available: int = wire_member("tools_available", COUNT, default=0, lenient=True)
    tools_total: int = wire_member("tools_total", COUNT, default=0, lenient=True)
    pending_requests: int = wire_member("pending_requests", COUNT, default=0, lenient=True)
    resources: dict[str, Any] = wire_member("resources", OBJECT, default_factory=dict, lenient=True)
    checks: dict[str, bool] = wire_member("checks", CHECKS, default_factory=dict, lenient=True)
    problems: dict[str, str] = wire_member("problems", PROBLEMS, default_factory=dict, lenient=True)

    @property
    def is_healthy(self) -> bool:
        """Whether the status is "healthy"; "degraded" is not."""
        return self.status == "healthy"


@wire_shape
class ShutdownAnswer(WireShape):
    """A server's answer to a shutdown request: whether it will end, and how long its open calls may take."""

    accepted: bool = wire_member("accepted", BOOLEAN, default=False, lenient=True)
    pending_requests: int = wire_member("pending_requests", COUNT, default=0, lenient=True)
    estimated_drain_ms: int = wire_member("estimated_drain_ms", COUNT, default=0, lenient=True)


def read_health(kind: type[ShapeT], reply: dict[str, Any]) -> ShapeT:
    """What a server says of its health. Raises PeerError if it gives no status."""
    try:
        return kind.from_wire(reply)
    except InvalidParams:
        raise PeerError("the server reported its health without a status") from None


class LifecycleChange(ServerUpdate):
    """A server went from one state to another."""

    __slots__ = ("server_id", "previous", "state", "reason", "timestamp")

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(LIFECYCLE_CHANGED, params)
        self.server_id, self.reason = str(params.get("server_id")), str(params.get("reason"))
        self.previous, self.state = str(params.get("previous_state")), str(params.get("new_state"))
        self.timestamp = str(params.get("timestamp"))

    def __repr__(self) -> str:
        return f"Change({self.previous!r} to {self.state!r}, {self.reason!r})"


class LifecycleChanges(UpdateStream[LifecycleChange]):
    """`async with client.lifecycle() as changes: async for change in changes`.

    If the server announced that it would leave, iterating stops when it does, without an error.
    """

    _leaving = False

    def __init__(self, listeners: set[UpdateStream[Any]]) -> None:
        super().__init__(UpdateFilter(), listeners)

    def __aiter__(self) -> LifecycleChanges:
        self._listeners.add(self)
        return self

    async def _begin(self) -> None:
        """Nothing to ask for: the server tells every client that negotiated it."""

    def receive_update(self, news: ServerUpdate) -> None:
        if news.method == LIFECYCLE_CHANGED:
            change = LifecycleChange(news.params)
            self._leaving = change.state in ("draining", "disconnected")
            self._queue_news(change)

    def end(self, reason: PeerError | None = None) -> None:
        super().end(None if self._leaving else reason)
