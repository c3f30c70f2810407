"""A server that speaks HTTP+SSE of 2024: all its messages come on one event stream, ours are POSTs to another address.

The address of such a server usually ends with `/sse`. Its stream begins with an `endpoint` event: where to POST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final
from urllib.parse import urljoin, urlsplit

from defserve.errors import PeerError, PeerGone
from defserve.host.exchange.turns import Turns, pieces
from defserve.host.link import Authorizer, Resolve
from defserve.host.links.authorizing import endpoint_at
from defserve.host.links.endpoint import EVENTS, LONGEST_MESSAGE, Endpoint, media_type
from defserve.host.links.http_client.errors import Broken
from defserve.host.links.sse import SseParser
from defserve.transports.client_errors import HttpRefusal

MOST_WAITING: Final = 256
OPEN_SECONDS = 10.0
TELL_SECONDS = 30.0


class LegacySseLink:
    """Speaks to one server over its event stream. `LegacySseLink.connect` opens it."""

    def __init__(self, url: str, at: Callable[[str], Endpoint]) -> None:
        self._url, self._at = url, at
        self._stream = at(url)
        self._inbox: asyncio.Queue[bytes | PeerGone | None] = asyncio.Queue(MOST_WAITING)
        self._posts: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(), name="defserve.host events")

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        resolve: Resolve | None = None,
        authorizer: Authorizer | None = None,
    ) -> LegacySseLink:
        """Open the stream and wait for the address to POST to.

        Raises PeerError if there is no such stream, PeerGone if there is no server.
        """
        link = cls(url, lambda there: endpoint_at(there, headers, token, resolve, authorizer))
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await asyncio.shield(link._posts)
        except TimeoutError:
            await link.aclose()
            raise PeerError(f"{link._stream} sent no `endpoint` event within {OPEN_SECONDS:g} s") from None
        except BaseException:
            await link.aclose()
            raise
        return link

    async def send(self, message: bytes) -> None:
        """POST one message. Raises PeerGone if the server is gone, PeerError if it refuses the message."""
        posts = self._posts.result()
        try:
            async with asyncio.timeout(TELL_SECONDS):
                response = await posts.send("POST", {}, message)
                try:
                    if refusal := await posts.refusal(response):
                        raise refusal
                finally:
                    await response.aclose()
        except TimeoutError:
            raise PeerGone(f"{posts} did not take a message within {TELL_SECONDS:g} s") from None
        except Broken as error:
            raise posts.unreachable(error) from None

    async def receive(self) -> bytes | None:
        """The next message. Raises PeerGone once the stream has ended."""
        item = await self._inbox.get()
        if isinstance(item, PeerGone):
            raise item
        return item

    async def aclose(self) -> None:
        """Close the stream; the server ends the session then. Safe to call twice."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._stream.aclose()
        if self._posts.done() and not self._posts.cancelled() and self._posts.exception() is None:
            await self._posts.result().aclose()

    async def _read(self) -> None:
        try:
            response = await self._stream.send("GET", {"accept": EVENTS}, repeatable=True)
            try:
                if refusal := await self._stream.refusal(response):
                    raise refusal
                if media_type(response) != EVENTS:
                    raise HttpRefusal(f"{self._stream} is not an event stream", data={"status": response.status})
                parser, turns = SseParser(LONGEST_MESSAGE), Turns()
                async for part in response.parts():
                    for piece in pieces(part):
                        began = monotonic()
                        for event in parser.feed(piece):
                            await self._hear(event.kind, event.data)
                        await turns.spend(began)
            finally:
                await response.aclose()
            ended: PeerError = PeerGone(f"{self._stream} ended its stream")
        except Broken as error:
            ended = self._stream.unreachable(error)
        except PeerError as error:
            ended = error
        if not self._posts.done():
            self._posts.set_exception(ended)
        await self._inbox.put(ended if isinstance(ended, PeerGone) else PeerGone(ended.message))

    async def _hear(self, kind: str, data: bytes) -> None:
        if kind == "message":
            await self._inbox.put(data)
        elif kind == "endpoint" and not self._posts.done():
            there = urljoin(self._url, data.decode(errors="replace").strip())
            # Our credentials go there, so it must be the same server.
            if urlsplit(there)[:2] != urlsplit(self._url)[:2]:
                raise PeerError(f"{self._stream} wants messages sent to another server")
            self._posts.set_result(self._at(there))
