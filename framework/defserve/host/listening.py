"""News of a server as an async iterator.

In the stateless era it is one `subscriptions/listen` request. In a session the notifications come anyway.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from defserve.errors import PeerError, PeerTimeout
from defserve.host.conversation import ClientConversation, PendingRequest, peer_error
from defserve.host.eras import PREFIX, SessionTerms
from defserve.host.fields import object_of

UPDATED: Final = "notifications/resources/updated"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
SUBSCRIPTION: Final = PREFIX + "subscriptionId"

MOST_KEPT: Final = 1_000

# kind of news -> (its notification, its name in the listen filter)
KINDS: Final = {
    "tools": ("notifications/tools/list_changed", "toolsListChanged"),
    "prompts": ("notifications/prompts/list_changed", "promptsListChanged"),
    "resources": ("notifications/resources/list_changed", "resourcesListChanged"),
}


class News:
    """One notification."""

    __slots__ = ("method", "params")

    def __init__(self, method: str, params: dict[str, Any]) -> None:
        self.method, self.params = method, params

    def __repr__(self) -> str:
        return f"News({self.method!r}, {self.params!r})"


NewsT = TypeVar("NewsT", bound=News)


class NewsFilter(NamedTuple):
    """Which news a listener wants."""

    kinds: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    def wire(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {KINDS[kind][1]: True for kind in self.kinds}
        named = {"resourceSubscriptions": list(self.uris), "taskIds": list(self.tasks)}
        return {**wanted, **{name: ids for name, ids in named.items() if ids}}

    def matches(self, news: News) -> bool:
        if news.method == UPDATED:
            return news.params.get("uri") in self.uris
        return any(KINDS[kind][0] == news.method for kind in self.kinds)


class NewsStream(ABC, Generic[NewsT]):
    """An async context manager and iterator. It ends when the server ends the stream or leaves.

    Unread news are kept up to a limit; then the oldest are dropped.
    """

    def __init__(self, wanted: NewsFilter, listeners: set[NewsStream[Any]]) -> None:
        self.wanted, self._listeners = wanted, listeners
        self.honoured: dict[str, Any] = wanted.wire()
        self._queue: asyncio.Queue[NewsT | PeerError | None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Ask the server for news. Everything from now on is received."""
        # Before asking: the first notification may come before the reply.
        self._listeners.add(self)
        try:
            await self._begin()
        except BaseException:
            self._listeners.discard(self)
            raise

    async def close(self) -> None:
        """Stop listening, and tell the server so."""
        self._listeners.discard(self)
        await self._finish()

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def _finish(self) -> None: ...

    @abstractmethod
    def hear(self, news: News) -> None:
        """Take a notification of the server, if it is one of ours."""

    def _keep(self, news: NewsT) -> None:
        # A slow reader must not fill the memory. The oldest news matter least.
        if self._queue.qsize() >= MOST_KEPT:
            self._queue.get_nowait()
        self._queue.put_nowait(news)

    def end(self, reason: PeerError | None = None) -> None:
        """Let the reader finish the news that are there. Then iterating stops, or raises the reason."""
        self._queue.put_nowait(reason)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NewsT:
        item = await self._queue.get()
        if item is None or isinstance(item, PeerError):
            self._queue.put_nowait(item)
            raise item or StopAsyncIteration
        return item


class SessionNews(NewsStream[News]):
    """Handshake era: list changes come to every session; each resource has a subscription of its own."""

    def __init__(
        self,
        wanted: NewsFilter,
        listeners: set[NewsStream[Any]],
        subscribe: Callable[[str], Awaitable[object]],
        unsubscribe: Callable[[str], Awaitable[object]],
    ) -> None:
        super().__init__(wanted, listeners)
        self._subscribe, self._unsubscribe = subscribe, unsubscribe

    async def _begin(self) -> None:
        for uri in self.wanted.uris:
            await self._subscribe(uri)

    async def _finish(self) -> None:
        self.end()
        for uri in self.wanted.uris:
            try:
                await self._unsubscribe(uri)
            except PeerError:
                return

    def hear(self, news: News) -> None:
        if self.wanted.matches(news):
            self._keep(news)


class SubscribedNews(NewsStream[News]):
    """Stateless era: one open `subscriptions/listen` request. Its id tags the notifications that belong to it."""

    def __init__(
        self,
        wanted: NewsFilter,
        listeners: set[NewsStream[Any]],
        conversation: ClientConversation,
        agreement: SessionTerms,
        timeout: float | None,
    ) -> None:
        super().__init__(wanted, listeners)
        self._conversation, self._agreement, self._timeout = conversation, agreement, timeout
        self._pending: PendingRequest | None = None
        self._acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _begin(self) -> None:
        meta = self._agreement.offering("tasks") if self.wanted.tasks else {}
        params = self._agreement.with_envelope({"notifications": self.wanted.wire(), "_meta": meta}, None)
        pending = self._pending = await self._conversation.begin("subscriptions/listen", params)
        pending.reply.add_done_callback(self._ended)
        await asyncio.wait(
            (self._acknowledged, pending.reply), timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if self._acknowledged.done():
            return
        if not pending.reply.done():
            self._conversation.cancel(pending, "timed out")
            raise PeerTimeout(f"no acknowledgement of subscriptions/listen within {self._timeout:g} s")
        raise peer_error(pending.reply.result().error or {"message": "subscriptions/listen ended before it began"})

    async def _finish(self) -> None:
        self.end()
        if self._pending is not None and (sent := self._conversation.cancel(self._pending, "no longer listening")):
            await asyncio.shield(sent)

    def hear(self, news: News) -> None:
        tag = object_of(news.params.get("_meta")).get(SUBSCRIPTION)
        if self._pending is None or tag != self._pending.id:
            return
        if news.method != ACKNOWLEDGED:
            self._keep(news)
        elif not self._acknowledged.done():
            self.honoured = object_of(news.params.get("notifications"))
            self._acknowledged.set_result(None)

    def _ended(self, reply: asyncio.Future[Any]) -> None:
        error = None if reply.cancelled() else reply.exception()
        self.end(error if isinstance(error, PeerError) else None)
