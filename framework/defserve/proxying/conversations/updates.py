"""What a backend is asked to tell in one conversation: changes of its lists, and of single resources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from defserve.base.background import BackgroundTasks
from defserve.errors import PeerError, PeerGone
from defserve.host.listening import News, NewsFilter, NewsStream, SubscribedNews
from defserve.host.older.lacking import lacks_method

if TYPE_CHECKING:
    from defserve.proxying.conversations.channel import Channel

SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 2.0

log = logging.getLogger("defserve.proxying")


class OpenRequest(SubscribedNews):
    """An open `subscriptions/listen` request. Its news are heard by the conversation, like all others."""

    over: Callable[[], None]

    def _keep(self, news: News) -> None:
        """They are not kept."""

    def end(self, reason: PeerError | None = None) -> None:
        self.over()


class Updates:
    """The subscriptions of one conversation. `want` says what they should be, in either era."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = asyncio.Lock()
        self._kinds: tuple[str, ...] = ()
        self.uris: frozenset[str] = frozenset()
        self._stream: OpenRequest | None = None
        self._listeners: set[NewsStream[Any]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._is_deaf = False

    async def want(
        self, *, kinds: Collection[str] | None = None, uris: Callable[[], Collection[str]] | None = None
    ) -> None:
        """Ask for these changes, and for no others. Raises PeerError if the server refuses.

        `uris` is called when it is this one's turn: what another one asked for may have been refused meanwhile.
        """
        async with self._lock:
            kinds = self._kinds if kinds is None else tuple(kinds)
            wanted = self.uris if uris is None else frozenset(uris())
            if self._channel.stateless:
                if (kinds, wanted) != (self._kinds, self.uris) or self._stream is None:
                    await self._listen(kinds, wanted)
            else:
                await self._subscribe(wanted)
            self._kinds, self.uris = kinds, wanted

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """A notification of the server, which may belong to the open request."""
        news = News(method, params)
        for stream in tuple(self._listeners):
            stream.hear(news)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._stream = None

    async def _subscribe(self, wanted: frozenset[str]) -> None:
        """One by one. What was accepted before one is refused is known, so that it can be taken back."""
        for uri in sorted(wanted - self.uris):
            await self._channel.request("resources/subscribe", {"uri": uri}, SECONDS)
            self.uris |= {uri}
        for uri in self.uris - wanted:
            with suppress(PeerError):
                await self._channel.request("resources/unsubscribe", {"uri": uri}, SECONDS)

    async def _listen(self, kinds: tuple[str, ...], uris: frozenset[str]) -> None:
        old, channel = self._stream, self._channel
        if self._is_deaf:
            return
        stream: OpenRequest | None = None
        if kinds or uris:
            wanted = NewsFilter(kinds, tuple(sorted(uris)))
            stream = OpenRequest(wanted, self._listeners, channel.conversation, channel.terms, SECONDS)
            stream.over = lambda: self._over(stream)
        self._stream = stream
        try:
            if stream is not None:
                await stream.open()
        except PeerError as error:
            if isinstance(error, PeerGone):
                raise
            # Many servers have no such method. What they offer is then read again only when they are opened.
            self._is_deaf = lacks_method(error)
            log.debug("a backend does not tell of changes: %s", error.message)
        if old is not None:
            await old.close()

    def _over(self, stream: OpenRequest | None) -> None:
        """The server has ended the stream. Ask again in a moment, unless we have another one."""
        if stream is self._stream and self._channel.gone is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._reopen)

    def _reopen(self) -> None:
        self._stream = None
        self._tasks.start(self._wanted_again())

    async def _wanted_again(self) -> None:
        with suppress(PeerError):
            await self.want()
