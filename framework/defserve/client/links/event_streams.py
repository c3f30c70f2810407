"""Event streams of a server at an http address: parsed chunk by chunk, opened again where they break.

Also the older transport that has nothing else: HTTP+SSE of 2024.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from defserve.base.backoff import compute_backoff, parse_retry_after
from defserve.base.http_connection import BrokenHttpConnection
from defserve.base.redaction import get_logger
from defserve.client.link import LoopTimeBudget, MessageHandler, ResolveHost, split_into_pieces
from defserve.client.links.endpoint import (
    EVENT_STREAM_MEDIA_TYPE,
    MAX_MESSAGE_BYTES,
    HttpEndpoint,
    HttpResponse,
    get_response_media_type,
    make_endpoint,
)
from defserve.client.links.http_client import RequestAddress
from defserve.client.replies import ByteBoundedQueue
from defserve.core.messages import METHOD_NOT_FOUND, Reply, Request
from defserve.errors import PeerError, PeerGone
from defserve.serve.address import HttpRefusal, TokenNotRenewed

if TYPE_CHECKING:
    from defserve.client.signin.authorizer import ServerAuthorizer

LAST_EVENT: Final = "Last-Event-ID"

MAX_FAILURES = 5
LINGER_SECONDS = 1.0
RETRY_SECONDS = 1.0
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.01, 60.0
PASSING: Final = frozenset((408, 409, 425, 429))
"""Refusals that pass, as those from 500 on do. 409: the server has not yet noticed that the last stream broke."""

Take: TypeAlias = Callable[[bytes, Request | None, MessageHandler], Awaitable[Reply | None]]
"""Hands on what is not the answer to a request, and gives back the answer."""

log = get_logger("client")


class EventStreams:
    """Reads the streams of one endpoint. `spawn` runs what goes on after an answer."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        take: Take,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        overhear: MessageHandler,
    ) -> None:
        self._endpoint, self._take, self._spawn, self._overhear = endpoint, take, spawn, overhear

    async def poll(
        self,
        stream: SseParser,
        request: Request | None,
        hear: MessageHandler,
        *,
        make_headers: Callable[[], dict[str, str]],
        on_opened: Callable[[], object],
        on_lost: Callable[[], object],
    ) -> Reply | None:
        """GET a stream, again and again, until `request` is answered. None if the server has no such stream.

        `on_opened` is told that it is open, `on_lost` that the server no longer knows it.

        After a few failures in a row it is given up, with one exception: without a `request`, a stream that was open
        once is asked for until the server refuses it, because nobody else would notice that messages no longer come.
        """
        failures, tries, was_open, wanted = 0, 0, False, 0.0
        while failures < MAX_FAILURES or (was_open and request is None):
            if tries or request is not None:
                await asyncio.sleep(_pause(stream.retry, failures, wanted))
            tries, wanted = tries + 1, 0.0
            headers = {**make_headers(), "accept": EVENT_STREAM_MEDIA_TYPE}
            if stream.last_id:
                headers[LAST_EVENT] = stream.last_id
            stream.restart()
            try:
                response = await self._endpoint.send("GET", headers, repeatable=True)
            except BrokenHttpConnection as error:
                log.debug("no stream from %s: %r", self._endpoint, error)
                failures += 1
                continue
            except TokenNotRenewed as error:
                if request is not None or not was_open:
                    raise
                if not failures:
                    log.warning("not listening to %s for now: %s", self._endpoint, error)
                failures += 1
                continue
            status = response.status
            if status == 200 and get_response_media_type(response) == EVENT_STREAM_MEDIA_TYPE:
                failures, was_open = 0, True
                on_opened()
                if (reply := await self.read_events_until_answered(response, stream, request, hear)) is not None:
                    return reply
                continue
            await response.aclose()
            if status < 500 and status not in PASSING:
                if was_open and request is None and status not in SESSION_GONE:
                    log.warning("no longer listening to %s: it answered HTTP %s", self._endpoint, status)
                else:
                    log.debug("%s has no such stream: HTTP %s", self._endpoint, status)
                if status in SESSION_GONE and tries > 1:
                    on_lost()
                return None
            failures, wanted = failures + 1, parse_retry_after(response.headers)
        return None

    async def read_events_until_answered(
        self, response: HttpResponse, stream: SseParser, request: Request | None, hear: MessageHandler
    ) -> Reply | None:
        """Hand on the events of a stream until `request` is answered, or the stream ends or breaks. Closes it."""
        parts, lingers, turns = response.iter_parts(), False, LoopTimeBudget()
        try:
            async for part in parts:
                reply = await self._hear(part, stream, request, hear, turns)
                if reply is not None:
                    lingers = not response.is_over
                    if lingers:
                        self._spawn(self._linger(response, parts, stream), "defserve.client lingering")
                    return reply
        except BrokenHttpConnection as error:
            log.debug("a stream of %s broke: %r", self._endpoint, error)
        finally:
            if not lingers:
                await response.aclose()
        return None

    async def _linger(self, response: HttpResponse, parts: AsyncGenerator[bytes], stream: SseParser) -> None:
        """A connection that is read to its end can be used again, but not every server ends a stream."""
        turns = LoopTimeBudget()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                async for part in parts:
                    await self._hear(part, stream, None, self._overhear, turns)
        except TimeoutError:
            log.debug("%s leaves a stream open after its answer", self._endpoint)
        except (BrokenHttpConnection, PeerError) as error:
            log.debug("a stream of %s broke: %r", self._endpoint, error)
        finally:
            await response.aclose()

    async def _hear(
        self, part: bytes, stream: SseParser, request: Request | None, hear: MessageHandler, turns: LoopTimeBudget
    ) -> Reply | None:
        answer: Reply | None = None
        for piece in split_into_pieces(part):
            began = monotonic()
            for event in stream.feed(piece):
                if event.kind == "message":
                    answer = await self._take(event.data, None if answer else request, hear) or answer
                await turns.charge_time(began)
                began = monotonic()
            await turns.charge_time(began)
        return answer


def _pause(retry: float | None, failures: int, wanted: float) -> float:
    """Seconds before the next GET: the stream's `retry`, doubled with every failure, and no less than is `wanted`."""
    first = RETRY_SECONDS if retry is None else max(retry, MIN_RETRY_SECONDS)
    return min(max(compute_backoff(failures, first, MAX_RETRY_SECONDS), wanted), MAX_RETRY_SECONDS)


# -- Whether a server says that it does not know a session. The specification has one way (404), servers have many.


SESSION_GONE: Final = frozenset((404, 410))
SESSION_UNCLEAR: Final = frozenset((400, 503))
"""They mean other things too, so the words decide."""
SESSION_CODES: Final = frozenset((-32000, -32001))

SESSION_WORDS: Final = re.compile(
    r"\bsession(?:[ _-]?id)?\b.*\b(?:not found|unknown|invalid|expired|terminated|closed|ended|gone|missing|required"
    r"|not valid|no longer|does not exist|not exist)\b"
    r"|\b(?:unknown|invalid|expired|terminated|missing|no valid|no active|no such|not find|not found)\b.*\bsession"
    r"|\bserver not initialized\b",
    re.IGNORECASE | re.DOTALL,
)
MAX_SEARCHED_LENGTH: Final = 1000


def is_session_refusal(status: int, refusal: PeerError, words: str) -> bool:
    """Whether an HTTP refusal of a message in a session means that the session is over."""
    if status in SESSION_GONE:
        return refusal.code != METHOD_NOT_FOUND
    plain = isinstance(refusal, HttpRefusal) or refusal.code in SESSION_CODES
    return status in SESSION_UNCLEAR and plain and _names_session(words)


def is_session_lost_error(error: Mapping[str, Any]) -> bool:
    """Whether an answer with an error means that. It came as an answer, so the request may have run."""
    return error.get("code") in SESSION_CODES and _names_session(str(error.get("message")))


def _names_session(words: str) -> bool:
    return SESSION_WORDS.search(words[:MAX_SEARCHED_LENGTH]) is not None


# -- Parses a stream of server-sent events (WHATWG HTML §9.2.6), chunk by chunk. No I/O.


BOM: Final = b"\xef\xbb\xbf"
MAX_ID_LENGTH: Final = 4096
MAX_RETRY_DIGITS: Final = 9
"""Digits. A longer `retry` is a mistake, and not parsed."""


class SseEvent(NamedTuple):
    """One event with data. Its lines are joined by LF."""

    kind: str
    data: bytes


class SseParser:
    """Takes chunks, gives whole events. An event that the end of the stream cuts off does not count.

    last_id  the id of the last whole event, also of one without data: the `Last-Event-ID` for the next connection;
             empty if that event has an id that cannot be sent
    retry    how many seconds to wait before that connection; None if the server has not said
    """

    __slots__ = ("limit", "last_id", "retry", "_rest", "_first", "_after_cr", "_kind", "_data", "_size", "_id")

    def __init__(self, limit: int) -> None:
        self.limit, self.last_id = limit, ""
        self.retry: float | None = None
        self.restart()

    def restart(self) -> None:
        """A new connection continues the stream. Half an event is dropped; `last_id` and `retry` stay."""
        self._rest, self._first, self._after_cr = bytearray(), True, False
        self._kind, self._id, self._size = "", self.last_id, 0
        self._data = bytearray()

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes. Raises PeerError if one is longer than `limit` bytes."""
        if self._after_cr and chunk:
            # CR LF is one line ending, even if a chunk ends between the two.
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        events: list[SseEvent] = []
        # `bytes.splitlines` splits at CR, LF and CR LF only, as this format requires.
        for line in chunk.splitlines(keepends=True):
            text = line.rstrip(b"\r\n")
            self._size += len(text)
            if self._size > self.limit:
                raise PeerError(f"the server sent an event of more than {self.limit} bytes")
            if len(text) == len(line):
                self._rest += line
                break
            if self._rest:
                text = bytes(self._rest) + text
                self._rest.clear()
            self._line(text, events)
        self._after_cr = chunk.endswith(b"\r") if chunk else self._after_cr
        return events

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            self._dispatch(events)
        elif line.startswith(b":"):
            # Comments keep the connection alive. They do not count towards the size of the event.
            self._size -= len(line)
        else:
            name, _, value = line.partition(b":")
            self._field(name, value.removeprefix(b" "))

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            # Not a list of lines: short ones would take many times their size.
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            # One that no header can carry, or a huge one, is no help: without it the stream begins anew.
            text = value.decode(errors="replace") if len(value) <= MAX_ID_LENGTH else ""
            self._id = text if text.isascii() and text.isprintable() else ""
        elif name == b"retry" and value.isdigit() and len(value) <= MAX_RETRY_DIGITS:
            self.retry = int(value) / 1000

    def _dispatch(self, events: list[SseEvent]) -> None:
        self.last_id = self._id
        del self._data[-1:]
        if self._data:
            events.append(SseEvent(self._kind or "message", bytes(self._data)))
        self._kind, self._size = "", 0
        self._data.clear()


# -- A server that speaks HTTP+SSE of 2024: all its messages come on one event stream, ours are POSTs to another
# address.
#
# The address of such a server usually ends with `/sse`. Its stream begins with an `endpoint` event: where to POST.


MAX_WAITING_MESSAGES: Final = 256
OPEN_SECONDS = 10.0


class LegacySseLink:
    """Speaks to one server over its event stream. `LegacySseLink.connect` opens it."""

    def __init__(self, url: str, at: Callable[[str], HttpEndpoint]) -> None:
        self._url, self._at = url, at
        self._stream = at(url)
        self._closed = False
        self._inbox: ByteBoundedQueue[bytes | PeerGone | None] = ByteBoundedQueue(MAX_WAITING_MESSAGES)
        self._posts: asyncio.Future[HttpEndpoint] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read_events(), name="defserve.client events")

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        resolve: ResolveHost | None = None,
        authorizer: ServerAuthorizer | None = None,
    ) -> LegacySseLink:
        """Open the stream and wait for the address to POST to.

        Raises PeerError if there is no such stream, PeerGone if there is no server.
        """
        link = cls(url, lambda there: make_endpoint(there, headers, token, resolve, authorizer))
        try:
            await link._wait_for_address()
        except BaseException:
            await link.aclose()
            raise
        return link

    @property
    def is_signing_in(self) -> bool:
        """Whether messages wait until somebody has signed in."""
        return self._stream.is_signing_in

    async def _wait_for_address(self) -> None:
        """Wait for the address to POST to. While somebody signs in, the clock stands still."""
        is_waiting = True
        while is_waiting:
            was_signing_in = self._stream.is_signing_in
            done, _ = await asyncio.wait((self._posts,), timeout=OPEN_SECONDS)
            is_waiting = not done and (was_signing_in or self._stream.is_signing_in)
        if not self._posts.done():
            raise PeerError(f"{self._stream} sent no `endpoint` event within {OPEN_SECONDS:g} s")
        self._posts.result()

    async def send(self, message: bytes) -> None:
        """POST one message. Raises PeerGone if the server is gone, PeerError if it refuses the message."""
        posts = self._posts.result()

        async def check(response: HttpResponse) -> None:
            if refusal := await posts.read_refusal(response):
                raise refusal

        await posts.post_message({}, message, check)

    async def receive(self) -> bytes | None:
        """The next message; None once this link is closed. Raises PeerGone once the stream has ended."""
        if self._closed:
            return None
        item = await self._inbox.get()
        if isinstance(item, PeerGone):
            raise item
        return item

    async def aclose(self) -> None:
        """Close the stream; the server ends the session then. Safe to call twice."""
        self._closed = True
        self._reader.cancel()
        try:
            await asyncio.gather(self._reader, return_exceptions=True)
        finally:
            if self._inbox.empty():
                self._inbox.put_nowait(None)
            try:
                await self._stream.aclose()
            finally:
                if self._posts.done() and not self._posts.cancelled() and self._posts.exception() is None:
                    await self._posts.result().aclose()

    async def _read_events(self) -> None:
        try:
            response = await self._stream.send("GET", {"accept": EVENT_STREAM_MEDIA_TYPE}, repeatable=True)
            try:
                if refusal := await self._stream.read_refusal(response):
                    raise refusal
                if get_response_media_type(response) != EVENT_STREAM_MEDIA_TYPE:
                    raise HttpRefusal(f"{self._stream} is not an event stream", data={"status": response.status})
                parser, turns = SseParser(MAX_MESSAGE_BYTES), LoopTimeBudget()
                async for part in response.iter_parts():
                    for piece in split_into_pieces(part):
                        began = monotonic()
                        for event in parser.feed(piece):
                            await self._hear(event.kind, event.data)
                        await turns.charge_time(began)
            finally:
                await response.aclose()
            ended: PeerError = PeerGone(f"{self._stream} ended its stream")
        except BrokenHttpConnection as error:
            ended = self._stream.make_unreachable_error(error)
        except PeerError as error:
            ended = error
        if not self._posts.done():
            self._posts.set_exception(ended)
        await self._inbox.put(ended if isinstance(ended, PeerGone) else PeerGone(ended.message))

    async def _hear(self, kind: str, data: bytes) -> None:
        if kind == "message":
            await self._inbox.put(data)
        elif kind == "endpoint" and not self._posts.done():
            here = RequestAddress(self._url)
            try:
                there = here.join(data.decode(errors="replace").strip())
            except ValueError:
                raise PeerError(f"{self._stream} sent what is not an address as its `endpoint` event") from None
            # Our credentials go there, so it must be the same server.
            if there.origin != here.origin:
                raise PeerError(f"{self._stream} wants messages sent to another server")
            # With the user and password of our own address. Not joined: a path may begin with `//`.
            path, _, query = there.target.partition("?")
            ours = urlsplit(here.url)._replace(path=path, query=query, fragment="")
            self._posts.set_result(self._at(ours.geturl()))
