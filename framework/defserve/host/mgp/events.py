"""A server's events (MGP §13.2, §13.3) as an async iterator: pushed to a session, or asked for where there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from defserve.errors import PeerError, Refused
from defserve.host.listening import News, NewsFilter, NewsStream
from defserve.wire.jsonvalue import is_array, is_object

EVENT: Final = "notifications/mgp.event"
MOST_EARLY: Final = 256

Ask: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Event(News):
    """One event. `missed` is how many the server, or this client, had to drop just before it; at least so many, where
    events are asked for."""

    __slots__ = ("channel", "data", "timestamp", "severity", "sequence", "missed")

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(EVENT, params)
        sequence = params.get("sequence")
        self.channel = str(params.get("channel"))
        self.data: Any = params.get("data")
        self.timestamp, self.severity = str(params.get("timestamp")), str(params.get("severity", "info"))
        self.sequence = sequence if isinstance(sequence, int) else 0
        self.missed = 0

    def __repr__(self) -> str:
        return f"Event({self.channel!r}, {self.data!r}, sequence={self.sequence}, missed={self.missed})"


class EventStream(NewsStream):
    """`async with client.subscribe_events(["tool.*"]) as events: async for event in events`."""

    subscribed: tuple[str, ...] = ()
    """The channels that fit, as the server names them."""
    unsupported: tuple[str, ...] = ()
    """The wishes that fit none."""

    def __init__(self, wishes: Mapping[str, Any], audience: set[NewsStream], ask: Ask) -> None:
        super().__init__(NewsFilter((), ()), audience)
        self._wishes, self._ask, self._last = wishes, ask, 0

    async def __aenter__(self) -> EventStream:
        await self.open()
        return self

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        event = await super().__anext__()
        assert isinstance(event, Event)
        event.missed = max(event.sequence - self._last - 1, 0)
        self._last = max(event.sequence, self._last)
        return event


class PushedEvents(EventStream):
    """A subscription of this session; closing it unsubscribes."""

    def __init__(self, wishes: Mapping[str, Any], audience: set[NewsStream], ask: Ask) -> None:
        super().__init__(wishes, audience, ask)
        self.id: str | None = None
        self._early: list[Event] = []

    async def _begin(self) -> None:
        reply = await self._ask("mgp/events/subscribe", self._wishes)
        if not isinstance(reply.get("subscription_id"), str):
            raise PeerError("the server subscribed us without a subscription_id")
        self.id = reply["subscription_id"]
        self.subscribed, self.unsupported = _texts(reply.get("subscribed")), _texts(reply.get("unsupported"))
        early, self._early = self._early, []
        for event in early:
            self.hear(event)

    async def _finish(self) -> None:
        self.end()
        if self.id is not None:
            try:
                await self._ask("mgp/events/unsubscribe", {"subscription_id": self.id})
            except (PeerError, Refused):  # it has left, or knows of none: either way it is over
                pass

    def hear(self, news: News) -> None:
        if news.method != EVENT:
            return
        event = news if isinstance(news, Event) else Event(news.params)
        if self.id is None:
            # On a stream of its own the first event may be faster than the reply that says which are ours.
            self._early = [*self._early[-MOST_EARLY:], event]
        elif event.params.get("subscription_id") == self.id:
            self._keep(event)


class PolledEvents(EventStream):
    """Without a session nothing can be pushed: what happened since we last looked is asked for."""

    def __init__(self, wishes: Mapping[str, Any], audience: set[NewsStream], ask: Ask, every: float) -> None:
        super().__init__(wishes, audience, ask)
        self._every = every
        self._since: str | None = None
        self._seen = 0

    async def _begin(self) -> None:
        reply = await self._look()
        self.unsupported = _texts(reply.get("unsupported"))
        self.subscribed = tuple(wish for wish in self._wishes["channels"] if wish not in self.unsupported)

    async def _finish(self) -> None:
        self.end()

    def hear(self, news: News) -> None:
        """Nothing of this comes by itself."""

    async def __anext__(self) -> Event:
        while self._queue.empty():
            reply = await self._look()
            self._seen += reply.get("gap") is True
            found = reply.get("events")
            for event in filter(is_object, found if is_array(found) else ()):
                self._seen += 1
                self._keep(Event({**event, "sequence": self._seen}))
            if self._queue.empty():
                await asyncio.sleep(self._every)
        return await super().__anext__()

    async def _look(self) -> dict[str, Any]:
        reply = await self._ask("mgp/events/replay", {**self._wishes, "since": self._since})
        at = reply.get("next")
        self._since = at if isinstance(at, str) else self._since
        return reply


def subscription(
    ask: Ask, audience: set[NewsStream], channels: Sequence[str], *, min_severity: str | None, every: float | None
) -> EventStream:
    """Wishes as a stream: pushed, or asked for `every` so many seconds."""
    wishes: dict[str, Any] = {"channels": list(channels)}
    if min_severity is not None:
        wishes["filter"] = {"min_severity": min_severity}
    return PushedEvents(wishes, audience, ask) if every is None else PolledEvents(wishes, audience, ask, every)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if is_array(value) else ()
