"""A server at an http(s) address (Streamable HTTP, both eras): each message is a POST, the response is JSON or an event
stream.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_core import from_json

from defserve.base.concurrency import BackgroundTasks
from defserve.base.http_connection import BrokenHttpConnection
from defserve.base.peer_bounds import FirstComeTable
from defserve.base.redaction import get_logger
from defserve.client.eras import MCP_KEY_PREFIX
from defserve.client.link import LostRequest, MessageHandler, ResolveHost, SessionLost
from defserve.client.links.endpoint import (
    EVENT_STREAM_MEDIA_TYPE,
    JSON_MEDIA_TYPE,
    MAX_MESSAGE_BYTES,
    HttpExchange,
    HttpResponse,
    get_response_media_type,
    make_endpoint,
    read_body,
)
from defserve.client.links.event_streams import (
    EventStreams,
    SseParser,
    is_session_lost_error,
    is_session_refusal,
)
from defserve.client.replies import ByteBoundedQueue, object_or_empty, read_raw_reply
from defserve.core.json_values import is_array
from defserve.core.messages import Message, Notification, Reply, Request, RequestId, encode
from defserve.core.messages import parse_json_message as message_of
from defserve.core.peer import make_peer_error
from defserve.errors import PeerError, PeerGone
from defserve.protocols.mcp.tool_options import find_param_headers
from defserve.serve.http.request_heads import (
    METHOD_HEADER,
    NAME_HEADER,
    NAME_PARAMETERS,
    PROTOCOL_VERSION_HEADER,
    SENTINEL,
    SENTINEL_END,
)

if TYPE_CHECKING:
    from defserve.client.signin.authorizer import ServerAuthorizer

SESSION: Final = "Mcp-Session-Id"
HEADER_MISMATCH: Final = -32020

# They change nothing, so a kept connection that ends under them is no reason to fail.
REPEATABLE: Final = frozenset(
    (
        "ping",
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "prompts/list",
        "completion/complete",
        "logging/setLevel",
    )
)

MAX_REQUESTS = 100
MAX_WAITING_MESSAGES = 256

# A server may open the stream only when it has something to say.
LISTEN_SECONDS = 0.25
FAREWELL_SECONDS = 2.0

log = get_logger("client")


class HttpLink:
    """Speaks to one endpoint. Nothing is sent before the first message.

    headers   sent with every request
    token     a bearer token, sent as `Authorization`
    authorizer  gives tokens as they are needed, instead of `token`
    resolve   gives the addresses that each connection may go to
    listens   whether a session opens the stream of messages that are not responses (handshake era)

    If one request fails, it is `LostRequest` with the reason, and the link stays open. If the server ends the session,
    the link ends. In the stateless era, cancelling a request closes its stream. If the environment names a proxy for
    the address, httpx2 is needed: raises UsageError without it.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        listens: bool = True,
        resolve: ResolveHost | None = None,
        authorizer: ServerAuthorizer | None = None,
    ) -> None:
        self._endpoint = make_endpoint(url, headers, token, resolve, authorizer)
        self._tasks = BackgroundTasks()
        self._streams = EventStreams(self._endpoint, self._hear, self._tasks.start, self._overhear)
        self._listens = listens
        self._session: str | None = None
        self._version: str | None = None
        self._stateless: str | None = None
        self._tool_headers = ToolHeaders()
        self._inbox: ByteBoundedQueue[bytes | LostRequest | PeerGone | None] = ByteBoundedQueue(MAX_WAITING_MESSAGES)
        self._room = asyncio.Semaphore(MAX_REQUESTS)
        self._asking: dict[RequestId, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._listened = asyncio.Event()
        self._closed = False
        self.on_hang_up: Callable[[RequestId], object] | None = None
        """See `PollingLink`."""
        self.on_session_lost: Callable[[], object] | None = None
        """Called if the stream or an answer says that the session is over. If None, that is the end of the link."""

    @property
    def session_id(self) -> str | None:
        """The id of the session, if the server opened one."""
        return self._session

    @property
    def target(self) -> str:
        """The address."""
        return str(self._endpoint)

    @property
    def is_signing_in(self) -> bool:
        """Whether requests wait until somebody has signed in."""
        return self._endpoint.is_signing_in

    def watch(self, watcher: Callable[[HttpExchange], object]) -> None:
        """Have `watcher` called with every HTTP exchange, once the head of its response is there."""
        self._endpoint.watcher = watcher

    async def send(self, message: bytes) -> None:
        """Send one message. The answer to a request comes later.

        Raises PeerGone if the server is gone, PeerError if it refuses the message.
        """
        if self._closed:
            raise PeerGone("the client was closed")
        # Not `decode`: the server decides how deep our own arguments may be.
        said = message_of(from_json(message))
        if isinstance(said, Request):
            task = self._asking[said.id] = self._tasks.start(self._ask(said, message), f"defserve.client {said.method}")
            task.add_done_callback(lambda done: self._on_request_done(said.id, done))
        elif isinstance(said, Notification) and said.method == "notifications/cancelled":
            await self._cancel(said, message)
        else:
            # Awaited: later messages must not overtake a notification.
            await self._post_message(said, message)

    async def receive(self) -> bytes | LostRequest | None:
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
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._session is not None:
                await self._end_session()
        finally:
            if self._inbox.empty():
                self._inbox.put_nowait(None)
            await self._endpoint.aclose()

    async def _end_session(self) -> None:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                response = await self._endpoint.send("DELETE", self._session_headers(), repeatable=True)
            log.debug("the end of the session was answered with HTTP %s", response.status)
        except (TimeoutError, PeerError, BrokenHttpConnection) as error:
            log.debug("the server was not told of the end of the session: %r", error)

    async def send_request(self, request: Request, message: bytes, hear: MessageHandler) -> Reply:
        """Send a request and wait for its answer. Whatever else comes on its stream is given to `hear`.

        Cancelling it closes the stream, which in the stateless era cancels the request.
        Raises PeerGone if the answer is lost, PeerError if the server refuses the request.
        """
        if self._closed:
            raise PeerGone("the client was closed")
        version = version_of(request)
        self._stateless = version or self._stateless
        try:
            async with self._room:
                reply = await self._exchange(request, message, version, hear)
        except PeerError:
            raise
        except BrokenHttpConnection as error:
            raise self._endpoint.make_unreachable_error(error) from None
        except Exception as error:
            log.exception("%s failed", request.method)
            raise PeerGone(f"{request.method} failed: {error}") from error
        if reply is None:
            raise PeerGone(f"the stream of {request.method} ended before its answer")
        return reply

    async def _ask(self, request: Request, data: bytes) -> None:
        """The same for somebody who reads all messages from this link."""
        try:
            reply = await self.send_request(request, data, self._overhear)
            lost = make_peer_error(reply.error or {}) if reply.id is None else None
            outcome = {"result": reply.result} if reply.error is None else {"error": reply.error}
            item = LostRequest(request.id, lost) if lost else encode({"jsonrpc": "2.0", "id": request.id, **outcome})
        except PeerError as error:
            item = LostRequest(request.id, error)
        await self._inbox.put(item)

    async def _exchange(self, request: Request, data: bytes, version: str | None, hear: MessageHandler) -> Reply | None:
        """Send a request and hand on all that comes back. Its answer, if it came."""
        stream = SseParser(MAX_MESSAGE_BYTES)
        try:
            reply = await self._post(request, data, version, stream, hear)
        except PeerError as refused:
            if refused.code != HEADER_MISMATCH or request.method != "tools/call" or not await self._learn(request):
                raise
            reply = await self._post(request, data, version, stream, hear)
        if reply is None and not version and stream.last_id:
            if self.on_hang_up is not None:
                self.on_hang_up(request.id)
            reply = await self._poll(stream, request, hear)
        return reply

    async def _post(
        self, request: Request, data: bytes, version: str | None, stream: SseParser, hear: MessageHandler
    ) -> Reply | None:
        mirrors = self._tool_headers.get_mirrored_headers(request)
        headers = request_headers(request, version, mirrors) if version else self._session_headers()
        response = await self._endpoint.send("POST", headers, data, repeatable=request.method in REPEATABLE)
        kind = ""
        try:
            if response.status >= 400:
                await self._check(response, of_session=SESSION in headers)
            if request.method == "initialize":
                self._session = response.headers.get(SESSION.lower())
            kind = get_response_media_type(response)
            if kind == JSON_MEDIA_TYPE:
                if (answer := await self._hear(await read_body(response), request, hear)) is None:
                    raise PeerGone(f"the server answered {request.method} with JSON that is no reply to it")
                return answer
            if kind == EVENT_STREAM_MEDIA_TYPE:
                return await self._streams.read_events_until_answered(response, stream, request, hear)
            raise PeerError(
                f"the server answered {request.method} with HTTP {response.status} and {kind or 'nothing'},"
                " neither JSON nor an event stream"
            )
        finally:
            if kind != EVENT_STREAM_MEDIA_TYPE:
                await response.aclose()

    async def _post_message(self, said: Message, data: bytes) -> None:
        headers = self._session_headers()
        if self._version is None and self._stateless and isinstance(said, Notification):
            headers = {PROTOCOL_VERSION_HEADER: self._stateless, METHOD_HEADER: said.method}
        of_session = SESSION in headers
        await self._endpoint.post_message(headers, data, lambda response: self._check(response, of_session=of_session))
        if self._listens and isinstance(said, Notification) and said.method == "notifications/initialized":
            self._listened.clear()
            self._listening = self._tasks.start(self._listen(), "defserve.client listening")
            # What a server says on this stream while it is not open, a question for one, is lost.
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTEN_SECONDS):
                    await self._listened.wait()

    async def _cancel(self, said: Notification, data: bytes) -> None:
        task = self._asking.get(said.params.get("requestId", ""))
        try:
            if self._version is not None:
                await self._post_message(said, data)
        finally:
            # In the stateless era closing the stream is the cancellation. In a session nothing more comes on it.
            if task is not None:
                task.cancel()

    async def _learn(self, request: Request) -> bool:
        """List the tools to learn their headers. Whether the call needs other headers than it was sent with."""
        before, version = self._tool_headers.get_mirrored_headers(request), version_of(request)
        params: dict[str, Any] = {"_meta": object_or_empty(request.params.get("_meta"))}
        for number in range(MAX_PAGES):
            page = Request(f"{request.id}-tools-{number}", "tools/list", params, {})
            content = encode({"jsonrpc": "2.0", "id": page.id, "method": page.method, "params": params})
            reply = await self._post(page, content, version, SseParser(MAX_MESSAGE_BYTES), self._overhear)
            if reply is None:
                raise PeerGone("the stream of tools/list ended before its answer")
            if (cursor := object_or_empty(reply.result).get("nextCursor")) is None:
                break
            params = {**params, "cursor": cursor}
        return self._tool_headers.get_mirrored_headers(request) != before

    async def _listen(self) -> None:
        """Read the messages that are not responses. Many servers have no such stream."""
        try:
            await self._poll(SseParser(MAX_MESSAGE_BYTES), None, self._overhear)
        except PeerError as error:
            log.warning("no longer listening to %s: %s", self._endpoint, error)
        finally:
            self._listened.set()

    async def _overhear(self, message: Message, data: bytes) -> None:
        """Hand on a message that belongs to no request."""
        await self._inbox.put(data)

    def _poll(
        self, stream: SseParser, request: Request | None, hear: MessageHandler
    ) -> Coroutine[Any, Any, Reply | None]:
        session = self._session

        def on_lost() -> None:
            if session and self.on_session_lost is not None:
                self.on_session_lost()

        return self._streams.poll(
            stream,
            request,
            hear,
            make_headers=self._session_headers,
            on_opened=lambda: self._listened.set() if request is None else None,
            on_lost=on_lost,
        )

    async def _hear(self, data: bytes, request: Request | None, hear: MessageHandler) -> Reply | None:
        """Hand on what is not the answer to `request`, and give back the answer."""
        said = read_raw_reply(data)
        answer = _answer_to(request, said) if request else None
        if answer is not said:
            for one in said if isinstance(said, list) else (said,):
                if one is not answer:
                    raw: Any = getattr(one, "raw", None)
                    await hear(one, encode(raw) if isinstance(said, list) and raw else data)
        if answer is None or request is None:
            return None
        if request.method == "initialize":
            version = object_or_empty(answer.result).get("protocolVersion")
            self._version = version if isinstance(version, str) else None
        elif (lost := self.on_session_lost) and self._session and is_session_lost_error(answer.error or {}):
            lost()
        return self._tool_headers.learn_from_reply(request, answer)

    async def _check(self, response: HttpResponse, *, of_session: bool) -> None:
        """Raises PeerError for a refusal, SessionLost if it means that the session is over."""
        refusal = await self._endpoint.read_refusal(response)
        if refusal is None:
            return
        words = refusal.message.removeprefix(str(self._endpoint))
        if not of_session or not is_session_refusal(response.status, refusal, words):
            raise refusal
        if self.on_session_lost is None:
            self._session = None
            await self._inbox.put(SessionLost())
        raise SessionLost

    def forget_session(self) -> None:
        """The next request opens a new session; the stream of the old one is left."""
        self._session = self._version = None
        if self._listening is not None:
            self._listening.cancel()

    def _session_headers(self) -> dict[str, str]:
        headers = {SESSION: self._session, PROTOCOL_VERSION_HEADER: self._version}
        return {name: value for name, value in headers.items() if value is not None}

    def _on_request_done(self, id: RequestId, task: asyncio.Task[None]) -> None:
        if self._asking.get(id) is task:
            del self._asking[id]


def _answer_to(request: Request, said: Message | list[Message]) -> Reply | None:
    """The reply to `request`. An error without an id, on the stream of a request, is its answer too."""
    for one in said if isinstance(said, list) else (said,):
        if isinstance(one, Reply) and (one.id == request.id or (one.id is None and one.error is not None)):
            return one
    return None


# -- Which arguments of which tools a call repeats in HTTP headers, learned from the tool lists that the server sends.


MAX_TOOLS: Final = 10_000
MAX_PAGES: Final = 100
NO_MIRRORS: Final[Mirrors] = {}


class ToolHeaders:
    """Keeps only the tools that want headers."""

    __slots__ = ("_mirrors",)

    def __init__(self) -> None:
        self._mirrors: FirstComeTable[Mirrors] = FirstComeTable(MAX_TOOLS)

    def get_mirrored_headers(self, request: Request) -> Mirrors:
        """What a request must repeat in headers, as far as it is known."""
        if request.method != "tools/call":
            return NO_MIRRORS
        return self._mirrors.get(str(request.params.get("name"))) or NO_MIRRORS

    def learn_from_reply(self, request: Request, reply: Reply) -> Reply:
        """Learn from the answer to a stateless `tools/list`. Gives back the answer.

        The specification says to leave out a tool that asks for a forbidden header.
        """
        if request.method != "tools/list" or version_of(request) is None:
            return reply
        result = object_or_empty(reply.result)
        tools: Any = result.get("tools")
        if not is_array(tools):
            return reply
        fit = [tool for tool in tools if self._learn(object_or_empty(tool))]
        return reply if len(fit) == len(tools) else Reply(reply.id, {**result, "tools": fit}, None)

    def _learn(self, tool: Mapping[str, Any]) -> bool:
        name = str(tool.get("name"))
        try:
            mirrors = find_param_headers(object_or_empty(tool.get("inputSchema")))
        except ValueError as error:
            log.warning("the tool %s is left out: %s", name, error)
            return False
        if mirrors:
            self._mirrors.store_value(name, mirrors)
        else:
            self._mirrors.drop(name)
        return True


# -- The HTTP headers in which a stateless request repeats parts of its body (2026-07-28: Streamable HTTP).


Mirrors: TypeAlias = Mapping[tuple[str, ...], str]
"""The path of a value in a tool's arguments, and the header that repeats it."""

# The only characters that a header may have. It also loses blanks at its ends.
PLAIN_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def version_of(request: Request) -> str | None:
    """The protocol version that a stateless request names; None for a request of the handshake era."""
    version = object_or_empty(request.params.get("_meta")).get(MCP_KEY_PREFIX + "protocolVersion")
    return version if isinstance(version, str) else None


def request_headers(request: Request, version: str, mirrors: Mirrors) -> dict[str, str]:
    """The headers of one request. `mirrors` are those of the tool that it calls."""
    headers = {PROTOCOL_VERSION_HEADER: version, METHOD_HEADER: request.method}
    name = request.params.get(NAME_PARAMETERS.get(request.method, ""))
    if isinstance(name, str):
        headers[NAME_HEADER] = encode_value(name)
    for path, header in mirrors.items():
        value: Any = request.params.get("arguments")
        for key in path:
            value = object_or_empty(value).get(key)
        if (text := _header_text(value)) is not None:
            headers[header] = encode_value(text)
    return headers


def encode_value(text: str) -> str:
    """`text` as a header value: unchanged, or in Base64 if HTTP could change, refuse or misread it."""
    if PLAIN_VALUE.fullmatch(text) and not (text.startswith(SENTINEL) and text.endswith(SENTINEL_END)):
        return text
    return f"{SENTINEL}{base64.b64encode(text.encode()).decode()}{SENTINEL_END}"


def _header_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, str | int) else None
