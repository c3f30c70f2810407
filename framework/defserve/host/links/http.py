"""A server at an http(s) address (Streamable HTTP, both eras): each message is a POST, the response is JSON or an event
stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from defserve.errors import PeerError, PeerGone
from defserve.host.conversation import peer_error
from defserve.host.fields import object_of
from defserve.host.link import Lost
from defserve.host.links.endpoint import EVENTS, JSON, LONGEST_MESSAGE, Endpoint, authorized, body_of, media_type
from defserve.host.links.request_headers import request_headers, version_of
from defserve.host.links.sse import SseParser
from defserve.host.links.tool_headers import ToolHeaders, ToolPages
from defserve.transports.http.headers import METHOD, VERSION
from defserve.wire.codec import decode, encode
from defserve.wire.codec import message as message_of
from defserve.wire.messages import Id, Message, Notification, Reply, Request

if TYPE_CHECKING:
    import httpx2

SESSION: Final = "Mcp-Session-Id"
LAST_EVENT: Final = "Last-Event-ID"
HEADER_MISMATCH: Final = -32020
METHOD_NOT_FOUND: Final = -32601

MOST_REQUESTS = 100
MOST_WAITING = 256
MOST_FAILURES = 5
TELL_SECONDS = 30.0
FAREWELL_SECONDS = 2.0
LINGER_SECONDS = 1.0
RETRY_SECONDS = 1.0
SHORTEST_RETRY, LONGEST_RETRY = 0.01, 60.0

log = logging.getLogger("defserve.host")


class HttpLink:
    """Speaks to one endpoint. Nothing is sent before the first message.

    headers   sent with every request
    token     a bearer token, sent as `Authorization`
    listens   whether a session opens the stream of messages that are not responses (handshake era)

    If one request fails, it is `Lost` with the reason, and the link stays open. If the server ends the session, the
    link ends. In the stateless era, cancelling a request closes its stream. Raises UsageError without httpx2.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, token: str | None = None, listens: bool = True
    ) -> None:
        self._endpoint = Endpoint(url, authorized(headers, token))
        self._listens = listens
        self._session: str | None = None
        self._version: str | None = None
        self._stateless: str | None = None
        self._tool_headers = ToolHeaders()
        self._inbox: asyncio.Queue[bytes | Lost | PeerGone | None] = asyncio.Queue(MOST_WAITING)
        self._room = asyncio.Semaphore(MOST_REQUESTS)
        self._asking: dict[Id, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def session_id(self) -> str | None:
        """The id of the session, if the server opened one."""
        return self._session

    async def send(self, message: bytes) -> None:
        """Send one message. The answer to a request comes later.

        Raises PeerGone if the server is gone, PeerError if it refuses the message.
        """
        if self._closed:
            raise PeerGone("the client was closed")
        # Not `decode`: the server decides how deep our own arguments may be.
        said = message_of(from_json(message))
        if isinstance(said, Request):
            task = self._asking[said.id] = self._spawn(self._ask(said, message), f"defserve.host {said.method}")
            task.add_done_callback(lambda done: self._asked(said.id, done))
        elif isinstance(said, Notification) and said.method == "notifications/cancelled":
            await self._cancel(said, message)
        else:
            # Awaited: later messages must not overtake a notification.
            await self._tell(said, message)

    async def receive(self) -> bytes | Lost | None:
        """The next message, or a lost request; None once this link is closed.

        Raises PeerGone with the reason once the server has left.
        """
        if self._closed:
            return None
        item = await self._inbox.get()
        if isinstance(item, PeerGone):
            raise item
        return item

    async def aclose(self) -> None:
        """End all requests and the session, if there is one. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._end_session()
        await self._endpoint.aclose()
        if self._inbox.empty():
            self._inbox.put_nowait(None)

    async def _ask(self, request: Request, data: bytes) -> None:
        version = version_of(request)
        self._stateless = version or self._stateless
        try:
            async with self._room:
                answered = await self._exchange(request, data, version)
            lost = None if answered else PeerGone(f"the stream of {request.method} ended before its answer")
        except PeerError as error:
            lost = error
        except self._endpoint.Broken as error:
            lost = self._endpoint.unreachable(error)
        except Exception as error:
            log.exception("%s failed", request.method)
            lost = PeerGone(f"{request.method} failed: {error}")
        if lost:
            await self._inbox.put(Lost(request.id, lost))

    async def _exchange(self, request: Request, data: bytes, version: str | None) -> bool:
        """Send a request and hand on all that comes back. Whether its answer came."""
        stream = SseParser(LONGEST_MESSAGE)
        try:
            answered = await self._post(request, data, version, stream)
        except PeerError as refused:
            if refused.code != HEADER_MISMATCH or request.method != "tools/call" or not await self._learn(request):
                raise
            answered = await self._post(request, data, version, stream)
        if not answered and not version and stream.last_id:
            answered = await self._poll(stream, request)
        return answered

    async def _post(self, request: Request, data: bytes, version: str | None, stream: SseParser) -> bool:
        mirrors = self._tool_headers.mirrors(request)
        headers = request_headers(request, version, mirrors) if version else self._session_headers()
        async with self._endpoint.response("POST", headers, data) as response:
            await self._check(response)
            if request.method == "initialize":
                self._session = response.headers.get(SESSION)
            if media_type(response) == EVENTS:
                return await self._read_events(response, stream, request)
            if media_type(response) == JSON:
                return await self._hear(await body_of(response), request)
            what = f"HTTP {response.status_code} and {media_type(response) or 'nothing'}"
            raise PeerError(f"the server answered {request.method} with {what}, neither JSON nor an event stream")

    async def _tell(self, said: Message, data: bytes) -> None:
        headers = self._session_headers()
        if self._version is None and self._stateless and isinstance(said, Notification):
            headers = {VERSION: self._stateless, METHOD: said.method}
        try:
            async with asyncio.timeout(TELL_SECONDS), self._endpoint.response("POST", headers, data) as response:
                await self._check(response)
        except TimeoutError:
            raise PeerGone(f"{self._endpoint} did not take a message within {TELL_SECONDS:g} s") from None
        except self._endpoint.Broken as error:
            raise self._endpoint.unreachable(error) from None
        if self._listens and isinstance(said, Notification) and said.method == "notifications/initialized":
            self._spawn(self._listen(), "defserve.host listening")

    async def _cancel(self, said: Notification, data: bytes) -> None:
        task = self._asking.get(said.params.get("requestId", ""))
        try:
            if self._version is not None:
                await self._tell(said, data)
        finally:
            # In the stateless era closing the stream is the cancellation. In a session nothing more comes on it.
            if task is not None:
                task.cancel()

    async def _learn(self, request: Request) -> bool:
        """List the tools to learn their headers. Whether the call needs other headers than it was sent with."""
        before, pages = self._tool_headers.mirrors(request), ToolPages(request)
        for page in pages:
            said = await self._fetch(page)
            self._tool_headers.read(page, said)
            pages.turn(said)
        return self._tool_headers.mirrors(request) != before

    async def _fetch(self, request: Request) -> Message | list[Message]:
        """The answer to a stateless request that the link itself makes."""
        content = encode({"jsonrpc": "2.0", "id": request.id, "method": request.method, "params": request.params})
        headers = request_headers(request, version_of(request) or "", {})
        async with self._endpoint.response("POST", headers, content) as response:
            await self._check(response)
            if media_type(response) != EVENTS:
                return decode(await body_of(response))
            stream = SseParser(LONGEST_MESSAGE)
            async for chunk in response.aiter_bytes():
                for event in stream.feed(chunk):
                    if _answer_to(request, said := decode(event.data)):
                        return said
        raise PeerGone(f"the stream of {request.method} ended before its answer")

    async def _listen(self) -> None:
        """Read the messages that are not responses. Many servers have no such stream."""
        try:
            await self._poll(SseParser(LONGEST_MESSAGE), None)
        except PeerError as error:
            log.warning("no longer listening to %s: %s", self._endpoint, error)

    async def _poll(self, stream: SseParser, request: Request | None) -> bool:
        """GET a stream, again and again, until `request` is answered. False if the server has no such stream."""
        failures, first = 0, request is None
        while failures < MOST_FAILURES:
            if not first:
                await asyncio.sleep(_pause(stream.retry, failures))
            first = False
            headers = {**self._session_headers(), "accept": EVENTS}
            if stream.last_id:
                headers[LAST_EVENT] = stream.last_id
            stream.restart()
            try:
                async with self._endpoint.response("GET", headers) as response:
                    if response.status_code == 200 and media_type(response) == EVENTS:
                        failures = 0
                        if await self._read_events(response, stream, request):
                            return True
                        continue
                    if response.status_code < 500:
                        log.debug("%s has no such stream: HTTP %s", self._endpoint, response.status_code)
                        return False
            except self._endpoint.Broken as error:
                log.debug("no stream from %s: %r", self._endpoint, error)
            failures += 1
        return False

    async def _read_events(self, response: httpx2.Response, stream: SseParser, request: Request | None) -> bool:
        """Hand on the events of a stream until it ends or breaks. Whether `request` was answered."""
        answered = False
        try:
            async with asyncio.timeout(None) as lingering:
                async for chunk in response.aiter_bytes():
                    for event in stream.feed(chunk):
                        if event.kind == "message" and await self._hear(event.data, request):
                            answered = True
                            # A connection that is read to its end can be reused, but not every server ends it.
                            lingering.reschedule(asyncio.get_running_loop().time() + LINGER_SECONDS)
        except TimeoutError:
            log.debug("%s leaves a stream open after its answer", self._endpoint)
        except self._endpoint.Broken as error:
            log.debug("a stream of %s broke: %r", self._endpoint, error)
        return answered

    async def _hear(self, data: bytes, request: Request | None) -> bool:
        """Hand on one message. Whether it is the answer to `request`."""
        said = decode(data)
        answer = _answer_to(request, said) if request else None
        if request is None or answer is None:
            await self._inbox.put(data)
            return False
        if answer.id is None:
            await self._inbox.put(Lost(request.id, peer_error(answer.error or {})))
            return True
        if request.method == "initialize":
            version = object_of(answer.result).get("protocolVersion")
            self._version = version if isinstance(version, str) else None
        await self._inbox.put(self._tool_headers.read(request, said) or data)
        return True

    async def _check(self, response: httpx2.Response) -> None:
        """Raises PeerError for a refusal, PeerGone if it means that the session is over."""
        refusal = await self._endpoint.refusal(response)
        if refusal is None:
            return
        of_session = SESSION in response.request.headers
        if response.status_code == 404 and of_session and refusal.code != METHOD_NOT_FOUND:
            self._session = None
            await self._inbox.put(PeerGone("the server ended the session"))
            raise PeerGone("the server ended the session")
        raise refusal

    async def _end_session(self) -> None:
        try:
            async with (
                asyncio.timeout(FAREWELL_SECONDS),
                self._endpoint.response("DELETE", self._session_headers()) as response,
            ):
                log.debug("the end of the session was answered with HTTP %s", response.status_code)
        except (TimeoutError, PeerError, self._endpoint.Broken) as error:
            log.debug("the server was not told of the end of the session: %r", error)

    def _session_headers(self) -> dict[str, str]:
        headers = {SESSION: self._session, VERSION: self._version}
        return {name: value for name, value in headers.items() if value is not None}

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _asked(self, id: Id, task: asyncio.Task[None]) -> None:
        if self._asking.get(id) is task:
            del self._asking[id]


def _answer_to(request: Request, said: Message | list[Message]) -> Reply | None:
    """The reply to `request`. An error without an id, on the stream of a request, is its answer too."""
    for one in said if isinstance(said, list) else (said,):
        if isinstance(one, Reply) and (one.id == request.id or (one.id is None and one.error is not None)):
            return one
    return None


def _pause(wanted: float | None, failures: int) -> float:
    """Seconds before the next GET: what the server wants, doubled with every failure."""
    pause = (RETRY_SECONDS if wanted is None else wanted) * 2**failures
    return min(max(pause, SHORTEST_RETRY), LONGEST_RETRY)
