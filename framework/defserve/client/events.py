"""Events of a server (MCP Events, a draft), on the client's side: list, poll, listen, and webhooks for others.

    async for event in client.listen_events("pushed", repository="x"):
        print(event.data)

Requests declare the extension, so a server answers them in the dialect of the SEP. What an event says is a server's
word, as untrusted as the result of a tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from defserve.base.peer_bounds import estimate_value_bytes
from defserve.client.eras import OpenRequestStream, ServerUpdate, SessionTerms, UpdateFilter, UpdateStream
from defserve.client.replies import Json, number_or_none, object_or_empty, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.core.peer import make_peer_error
from defserve.errors import PeerError, PeerTimeout
from defserve.protocols.mcp.events.draft import (
    ACTIVE_NOTIFICATION,
    EVENT_NOTIFICATION,
    HEARTBEAT_NOTIFICATION,
    HEARTBEAT_SECONDS,
    LIST_METHOD,
    MIN_POLL_MS,
    POLL_METHOD,
    STREAM_METHOD,
    SUBSCRIBE_METHOD,
    TERMINATED_NOTIFICATION,
    UNSUBSCRIBE_METHOD,
)
from defserve.protocols.mcp.subscriptions import SUBSCRIPTION_ID_META_KEY

if TYPE_CHECKING:
    from defserve.client.answers import SendRequest
    from defserve.client.conversation import ClientConversation


MAX_SILENT_BEATS: Final = 3
"""A stream of which nothing is heard for so many heartbeats counts as lost."""
MAX_POLL_SECONDS: Final = 3_600.0


class ServerOccurrence(ServerUpdate):
    """One event. `cursor` is where to go on after it. `is_after_gap`: events before it are gone."""

    __slots__ = ("id", "name", "timestamp", "data", "cursor", "is_after_gap")

    def __init__(self, params: Json, *, is_after_gap: bool = False) -> None:
        super().__init__(EVENT_NOTIFICATION, params)
        self.id, self.name = str(params.get("eventId")), str(params.get("name"))
        self.timestamp, self.data = str(params.get("timestamp")), object_or_empty(params.get("data"))
        self.cursor, self.is_after_gap = string_or_none(params.get("cursor")), is_after_gap

    def __repr__(self) -> str:
        return f"ServerOccurrence({self.name!r}, {self.data!r}, id={self.id!r})"


class ClientEvents:
    """`client.events`: what a server tells, and who else is to be told."""

    def __init__(
        self,
        request: SendRequest,
        pages: Callable[[str, str, Mapping[str, Any]], Awaitable[list[Json]]],
        terms: Callable[[], SessionTerms],
    ) -> None:
        self._send, self._pages, self._terms = request, pages, terms

    async def list_types(self) -> list[Json]:
        """Every type of event as the server lists it, all pages."""
        return await self._pages(LIST_METHOD, "events", {"_meta": self._make_meta()})

    async def fetch_page(
        self,
        name: str,
        cursor: str | None = None,
        *,
        max_age_ms: int | None = None,
        max_events: int | None = None,
        **arguments: Any,
    ) -> Json:
        """One poll, as the server answers it. Without a cursor it brings only one to begin with."""
        params = {"name": name, "arguments": arguments, "cursor": cursor}
        options = {"maxAgeMs": max_age_ms, "maxEvents": max_events}
        return await self._request(
            POLL_METHOD, params | {key: value for key, value in options.items() if value is not None}
        )

    async def poll_events(
        self, name: str, cursor: str | None = None, *, every: float | None = None, **arguments: Any
    ) -> AsyncGenerator[ServerOccurrence]:
        """Ask for events again and again: `async for event in client.events.poll_events("pushed", repository="x")`.

        It asks as often as the server wants, or `every` so many seconds. It never ends by itself. Of the events of one
        answer, the last has the cursor to go on with.
        """
        while True:
            page = await self.fetch_page(name, cursor, **arguments)
            cursor = string_or_none(page.get("cursor"))
            found: Any = page.get("events")
            events = [event for event in found if is_object(event)] if is_array(found) else []
            for place, event in enumerate(events, 1):
                last = {"cursor": cursor} if place == len(events) else {}
                yield ServerOccurrence({**event, **last}, is_after_gap=place == 1 and page.get("truncated") is True)
            if page.get("hasMore") is not True:
                wanted = max(number_or_none(page.get("nextPollMs")) or 0, MIN_POLL_MS) / 1000
                await asyncio.sleep(min(wanted, MAX_POLL_SECONDS) if every is None else every)

    async def subscribe_webhook(
        self,
        name: str,
        url: str,
        secret: str,
        *,
        cursor: str | None = None,
        max_age_ms: int | None = None,
        ttl_ms: int | None = -1,
        **arguments: Any,
    ) -> WebhookSubscription:
        """Have events sent to an address. `secret` signs them: see `defserve.protocols.mcp.events.sending`.

        Without `ttl_ms` the server chooses how long; None asks for a subscription that does not end by itself.
        """
        options: Json = {"cursor": cursor, "maxAgeMs": max_age_ms}
        params = {key: value for key, value in options.items() if value is not None}
        if ttl_ms is None or ttl_ms >= 0:
            params["ttlMs"] = ttl_ms
        made = WebhookSubscription(self._request, {"name": name, "arguments": arguments, **params}, url)
        await made.refresh(secret)
        return made

    async def _request(self, method: str, params: Mapping[str, Any]) -> Json:
        return await self._send(method, {**params, "_meta": self._make_meta()})

    def _make_meta(self) -> Json:
        return self._terms().make_extension_meta("events")


class WebhookSubscription:
    """A subscription as the server knows it: `id`, `refresh_before` (None: it does not end), `cursor`, `status`."""

    def __init__(self, request: SendRequest, params: Json, url: str) -> None:
        self._request, self._params, self.url = request, params, url
        self.id = self._secret = ""
        self.cursor: str | None = None
        self.refresh_before: str | None = None
        self.status: Json = {}

    async def refresh(self, secret: str | None = None) -> None:
        """Keep it for longer; with a `secret`, sign with that one from now on."""
        self._secret = secret or self._secret
        delivery = {"mode": "webhook", "url": self.url, "secret": self._secret}
        found = await self._request(SUBSCRIBE_METHOD, {**self._params, "delivery": delivery})
        self.id = str(found.get("id"))
        self.cursor, self.refresh_before = (string_or_none(found.get(key)) for key in ("cursor", "refreshBefore"))
        self.status = object_or_empty(found.get("deliveryStatus"))

    async def unsubscribe(self) -> None:
        """End it. Raises PeerError if the server does not know it any more."""
        params = {name: self._params[name] for name in ("name", "arguments")}
        await self._request(UNSUBSCRIBE_METHOD, {**params, "delivery": {"mode": "webhook", "url": self.url}})

    def __repr__(self) -> str:
        return f"WebhookSubscription({self.id!r}, {self.url!r})"


class EventListener(OpenRequestStream[ServerOccurrence]):
    """An open stream, to iterate. It opens with the first event that is asked for, or as an async context manager.

    Raises PeerError when the server ends the event for this client, and PeerTimeout when nothing is heard of it.
    """

    def __init__(
        self,
        listeners: set[UpdateStream[Any]],
        conversation: ClientConversation,
        terms: SessionTerms,
        params: Json,
        timeout: float | None,
    ) -> None:
        super().__init__(UpdateFilter(), listeners, conversation, terms, timeout)
        self._params = params
        self._heard = asyncio.Event()
        self._is_after_gap = False
        self.cursor: str | None = None
        """Where to go on, by what was heard last."""

    async def _begin(self) -> None:
        params = {**self._params, "_meta": self._terms.make_extension_meta("events")}
        await self._open_request(STREAM_METHOD, params, f"{STREAM_METHOD} did not begin")

    async def __anext__(self) -> ServerOccurrence:
        if self._pending is None:
            await self.open()
        while True:
            self._heard.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_SILENT_BEATS * HEARTBEAT_SECONDS):
                    return await super().__anext__()
            if not self._heard.is_set():
                await self.close()
                raise PeerTimeout(f"nothing was heard of a stream for {MAX_SILENT_BEATS * HEARTBEAT_SECONDS:g} s")

    def receive_update(self, news: ServerUpdate) -> None:
        meta = object_or_empty(news.params.get("_meta"))
        if self._pending is None or meta.get(SUBSCRIPTION_ID_META_KEY) != self._pending.id:
            return
        self._heard.set()
        if news.method == EVENT_NOTIFICATION:
            event = ServerOccurrence(news.params, is_after_gap=self._is_after_gap)
            # If nobody reads, the stream ends here, and who listens again goes on after what was read.
            if not self._unread.put_if_room(event, estimate_value_bytes(news.params)):
                self.end(PeerError("events came faster than they were read: listen again after the last cursor"))
                self._conversation.cancel(self._pending, "its events are not read")
                return
            self._is_after_gap, self.cursor = False, event.cursor
        elif news.method == TERMINATED_NOTIFICATION:
            self.end(make_peer_error(object_or_empty(news.params.get("error"))))
        elif news.method in (ACTIVE_NOTIFICATION, HEARTBEAT_NOTIFICATION):
            self.cursor = string_or_none(news.params.get("cursor"))
            self._is_after_gap = self._is_after_gap or news.params.get("truncated") is True
            if not self._begun.done():
                self._begun.set_result(None)


def make_stream_params(name: str, cursor: str | None, max_age_ms: int | None, arguments: Json) -> Json:
    """What `events/stream` is asked with."""
    params: Json = {"name": name, "arguments": arguments, "cursor": cursor}
    return params if max_age_ms is None else {**params, "maxAgeMs": max_age_ms}
