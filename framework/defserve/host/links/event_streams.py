"""The event streams of a server at an http address: read as they come, opened again where they break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.errors import PeerError
from defserve.host.exchange.turns import Turns, pieces
from defserve.host.link import Hear
from defserve.host.links.endpoint import EVENTS, Endpoint, HttpResponse, media_type
from defserve.host.links.http_client.errors import Broken
from defserve.host.links.session_loss import GONE
from defserve.host.links.sse import SseParser
from defserve.transports.client_errors import NotRenewed
from defserve.wire.messages import Reply, Request

LAST_EVENT: Final = "Last-Event-ID"

MOST_FAILURES = 5
LINGER_SECONDS = 1.0
RETRY_SECONDS = 1.0
SHORTEST_RETRY, LONGEST_RETRY = 0.01, 60.0
MOST_DOUBLINGS: Final = 13
"""They lead from the shortest wait to the longest."""
PASSING: Final = frozenset((408, 409, 425, 429))
"""Refusals that pass, as those from 500 on do. 409: the server has not yet noticed that the last stream broke."""

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
        """GET a stream, again and again, until `request` is answered. None if the server has no such stream.

        After a few failures in a row it is given up, with one exception: without a `request`, a stream that was open
        once is asked for until the server refuses it, because nobody else would notice that messages no longer come.
        """
        failures, tries, was_open, wanted = 0, 0, False, 0.0
        while failures < MOST_FAILURES or (was_open and request is None):
            if tries or request is not None:
                await asyncio.sleep(_pause(stream.retry, failures, wanted))
            tries, wanted = tries + 1, 0.0
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
            except NotRenewed as error:
                if request is not None or not was_open:
                    raise
                if not failures:
                    log.warning("not listening to %s for now: %s", self._endpoint, error)
                failures += 1
                continue
            status = response.status
            if status == 200 and media_type(response) == EVENTS:
                failures, was_open = 0, True
                how.opened()
                if (reply := await self.read(response, stream, request, hear)) is not None:
                    return reply
                continue
            await response.aclose()
            if status < 500 and status not in PASSING:
                self._note_refusal(status, is_missed=was_open and request is None)
                if status in GONE and tries > 1:
                    how.lost()
                return None
            failures, wanted = failures + 1, _retry_after(response)
        return None

    def _note_refusal(self, status: int, *, is_missed: bool) -> None:
        if is_missed and status not in GONE:
            log.warning("no longer listening to %s: it answered HTTP %s", self._endpoint, status)
        else:
            log.debug("%s has no such stream: HTTP %s", self._endpoint, status)

    async def read(
        self, response: HttpResponse, stream: SseParser, request: Request | None, hear: Hear
    ) -> Reply | None:
        """Hand on the events of a stream until `request` is answered, or the stream ends or breaks. Closes it."""
        parts, lingers, turns = response.parts(), False, Turns()
        try:
            async for part in parts:
                reply = await self._hear(part, stream, request, hear, turns)
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
        turns = Turns()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                async for part in parts:
                    await self._hear(part, stream, None, self._overhear, turns)
        except TimeoutError:
            log.debug("%s leaves a stream open after its answer", self._endpoint)
        except (Broken, PeerError) as error:
            log.debug("a stream of %s broke: %r", self._endpoint, error)
        finally:
            await response.aclose()

    async def _hear(
        self, part: bytes, stream: SseParser, request: Request | None, hear: Hear, turns: Turns
    ) -> Reply | None:
        answer: Reply | None = None
        for piece in pieces(part):
            began = monotonic()
            for event in stream.feed(piece):
                if event.kind == "message":
                    answer = await self._take(event.data, None if answer else request, hear) or answer
                await turns.spend(began)
                began = monotonic()
            await turns.spend(began)
        return answer


def _pause(retry: float | None, failures: int, wanted: float) -> float:
    """Seconds before the next GET: the stream's `retry`, doubled with every failure, and no less than is `wanted`."""
    first = RETRY_SECONDS if retry is None else max(retry, SHORTEST_RETRY)
    return min(max(first * 2 ** min(failures, MOST_DOUBLINGS), wanted), LONGEST_RETRY)


def _retry_after(response: HttpResponse) -> float:
    """The seconds that the server wants to be left alone; 0 if it does not say."""
    said = response.headers.get("retry-after", "")
    return float(said) if said.isdecimal() and len(said) < 10 else 0.0
