"""MGP §13.2, §13.3: a server's events as an async iterator. In a session they are pushed, otherwise they are polled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from defserve.errors import PeerError, Refused
from defserve.host.caller import SendRequest
from defserve.host.fields import text_of, texts_of
from defserve.host.listening import News, NewsFilter, NewsStream
from defserve.wire.jsonvalue import is_array, is_object

EVENT: Final = "notifications/mgp.event"
MOST_EARLY: Final = 256


class Event(News):
    """One event. `missed` counts the events dropped just before it, by the server or this client.

    For polled events, `missed` is a lower bound.
    """

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
        self._early: list[Event] = []

    async def _begin(self) -> None:
        reply = await self._request("mgp/events/subscribe", self._params)
        if not isinstance(reply.get("subscription_id"), str):
            raise PeerError("the server gave the subscription no subscription_id")
        self.id = reply["subscription_id"]
        self.subscribed = tuple(texts_of(reply.get("subscribed")))
        self.unsupported = tuple(texts_of(reply.get("unsupported")))
        early, self._early = self._early, []
        for event in early:
            self.hear(event)

    async def _finish(self) -> None:
        self.end()
        if self.id is not None:
            try:
                await self._request("mgp/events/unsubscribe", {"subscription_id": self.id})
            except (PeerError, Refused):  # the server left, or has no such subscription: it is over in any case
                pass

    def hear(self, news: News) -> None:
        if news.method != EVENT:
            return
        event = news if isinstance(news, Event) else Event(news.params)
        if self.id is None:
            # On a stream of its own, the first event may come before the reply with our subscription's id.
            self._early = [*self._early[-MOST_EARLY:], event]
        elif event.params.get("subscription_id") == self.id:
            self._keep(event)


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

    async def _finish(self) -> None:
        self.end()

    def hear(self, news: News) -> None:
        """Nothing is pushed."""

    async def __anext__(self) -> Event:
        while self._queue.empty():
            reply = await self._poll()
            self._seen += reply.get("gap") is True
            found = reply.get("events")
            for event in filter(is_object, found if is_array(found) else ()):
                self._seen += 1
                self._keep(Event({**event, "sequence": self._seen}))
            if self._queue.empty():
                await asyncio.sleep(self._every)
        return await super().__anext__()

    async def _poll(self) -> dict[str, Any]:
        reply = await self._request("mgp/events/replay", {**self._params, "since": self._since})
        at = text_of(reply.get("next"))
        self._since = self._since if at is None else at
        return reply


def subscription(
    request: SendRequest,
    listeners: set[NewsStream[Any]],
    channels: Sequence[str],
    *,
    min_severity: str | None,
    every: float | None,
) -> EventStream:
    """A stream of the events in these channels: pushed, or polled every `every` seconds."""
    params: dict[str, Any] = {"channels": list(channels)}
    if min_severity is not None:
        params["filter"] = {"min_severity": min_severity}
    return (
        PushedEvents(params, listeners, request) if every is None else PolledEvents(params, listeners, request, every)
    )
