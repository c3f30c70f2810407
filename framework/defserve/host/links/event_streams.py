"""The event streams of a server at an http address: read as they come, opened again where they break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.errors import PeerError
from defserve.host.link import Hear
from defserve.host.links.endpoint import EVENTS, Endpoint, HttpResponse, media_type
from defserve.host.links.http_client.errors import Broken
from defserve.host.links.session_loss import GONE
from defserve.host.links.sse import SseEvent, SseParser
from defserve.wire.messages import Reply, Request

LAST_EVENT: Final = "Last-Event-ID"

MOST_FAILURES = 5
LINGER_SECONDS = 1.0
RETRY_SECONDS = 1.0
SHORTEST_RETRY, LONGEST_RETRY = 0.01, 60.0

Take: TypeAlias = Callable[[bytes, Request | None, Hear], Awaitable[Reply | None]]
"""Hands on what is not the answer to a request, and gives back the answer."""
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], object]

log = logging.getLogger("defserve.host")


class Polling(NamedTuple):
    """How a stream is asked for, and who is told that it is open, or that the server no longer knows it."""

    headers: Callable[[], dict[str, str]]
    opened: Callable[[], object]
    lost: Callable[[], object]


class EventStreams:
    """Reads the streams of one endpoint. `spawn` runs what goes on after an answer."""

    def __init__(self, endpoint: Endpoint, take: Take, spawn: Spawn, overhear: Hear) -> None:
        self._endpoint, self._take, self._spawn, self._overhear = endpoint, take, spawn, overhear

    async def poll(self, stream: SseParser, request: Request | None, hear: Hear, how: Polling) -> Reply | None:
        """GET a stream, again and again, until `request` is answered. None if the server has no such stream."""
        failures, tries = 0, 0
        while failures < MOST_FAILURES:
            if tries or request is not None:
                await asyncio.sleep(_pause(stream.retry, failures))
            tries += 1
            headers = {**how.headers(), "accept": EVENTS}
            if stream.last_id:
                headers[LAST_EVENT] = stream.last_id
            stream.restart()
            try:
                response = await self._endpoint.send("GET", headers, repeatable=True)
            except Broken as error:
                log.debug("no stream from %s: %r", self._endpoint, error)
                failures += 1
                continue
            if response.status == 200 and media_type(response) == EVENTS:
                failures = 0
                how.opened()
                if (reply := await self.read(response, stream, request, hear)) is not None:
                    return reply
                continue
            await response.aclose()
            if response.status < 500:
                log.debug("%s has no such stream: HTTP %s", self._endpoint, response.status)
                if response.status in GONE and tries > 1:
                    how.lost()
                return None
            failures += 1
        return None

    async def read(
        self, response: HttpResponse, stream: SseParser, request: Request | None, hear: Hear
    ) -> Reply | None:
        """Hand on the events of a stream until `request` is answered, or the stream ends or breaks. Closes it."""
        parts, lingers = response.parts(), False
        try:
            async for part in parts:
                reply = await self._hear(stream.feed(part), request, hear)
                if reply is not None:
                    lingers = not response.is_over
                    if lingers:
                        self._spawn(self._linger(response, parts, stream), "defserve.host lingering")
                    return reply
        except Broken as error:
            log.debug("a stream of %s broke: %r", self._endpoint, error)
        finally:
            if not lingers:
                await response.aclose()
        return None

    async def _linger(self, response: HttpResponse, parts: AsyncGenerator[bytes], stream: SseParser) -> None:
        """A connection that is read to its end can be used again, but not every server ends a stream."""
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                async for part in parts:
                    await self._hear(stream.feed(part), None, self._overhear)
        except TimeoutError:
            log.debug("%s leaves a stream open after its answer", self._endpoint)
        except (Broken, PeerError) as error:
            log.debug("a stream of %s broke: %r", self._endpoint, error)
        finally:
            await response.aclose()

    async def _hear(self, events: list[SseEvent], request: Request | None, hear: Hear) -> Reply | None:
        answer: Reply | None = None
        for event in events:
            if event.kind == "message":
                answer = await self._take(event.data, None if answer else request, hear) or answer
        return answer


def _pause(wanted: float | None, failures: int) -> float:
    """Seconds before the next GET: what the server wants, doubled with every failure."""
    pause = (RETRY_SECONDS if wanted is None else wanted) * 2**failures
    return min(max(pause, SHORTEST_RETRY), LONGEST_RETRY)
