"""One HTTP request and its response, which is JSON for a single message, otherwise a stream of events.

Messages that wait for a slow client are in its outbox: in order and bounded. Answers and questions are never dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from defserve.auth.live_credentials import BearerCredential, LiveBearerCredentials
from defserve.auth.principals import Principal
from defserve.base.peer_bounds import truncate_text
from defserve.core.engine import await_started_coroutine
from defserve.core.messages import INVALID_REQUEST, RequestId, encode
from defserve.serve.http.request_heads import (
    RequestHeaders,
    is_json_content_type,
    is_json_requested,
    wants_html_page,
)
from defserve.serve.sockets import (
    BufferedRequest,
    ClientWatcher,
    Header,
    HeaderList,
    Receive,
    RecurringRequestHead,
    Scope,
    Send,
)

ErrorDataFactory: TypeAlias = Callable[[int, str], dict[str, Any] | None]
"""The code and the text of an error → its `data`, if it has any."""

JSON_CONTENT_TYPE = (b"content-type", b"application/json")
PLAIN_CONTENT_TYPE = (b"content-type", b"text/plain; charset=utf-8")
HTML_CONTENT_TYPE = (b"content-type", b"text/html; charset=utf-8")
NO_HEADERS = RequestHeaders(())


# -- Messages that wait to be written to one client: in order and bounded. Answers and questions are never dropped.


MAX_UNREAD_MESSAGES = 256
SLOW = 16
MAX_UNREAD_MESSAGE_BYTES = 1024 * 1024


class WritableMessage(Protocol):
    """A message for the peer, as the runner hands it over. An empty message ends its request without an answer."""

    release: Callable[[], None] | None

    @property
    def data(self) -> bytes: ...
    @property
    def answers(self) -> bool: ...
    @property
    def asks(self) -> int | str | bool: ...
    @property
    def code(self) -> int | None: ...
    @property
    def replaces(self) -> Hashable: ...
    @property
    def taken(self) -> Callable[[], None] | None: ...
    @property
    def bulk(self) -> bool: ...
    @property
    def relates_to(self) -> object | None: ...
    @property
    def audience(self) -> tuple[Any, ...] | None: ...


class UnreadMessage:
    """A message that is not written yet, and its event id, if it has one."""

    __slots__ = ("message", "id")

    def __init__(self, message: WritableMessage, id: str | None) -> None:
        self.message, self.id = message, id

    def report_message_taken(self) -> None:
        """The message was written, or was dropped."""
        if self.message.taken is not None:
            self.message.taken()


class Wakes(Protocol):
    """What `rouse` wakes: a future, or who stands for one."""

    def done(self) -> bool: ...

    def set_result(self, result: bool, /) -> None: ...


class UnreadMessages:
    """The messages that one client has not read. `finished`: no more will follow. `gone`: nobody reads any more."""

    __slots__ = ("finished", "gone", "unread", "_wake")

    def __init__(self) -> None:
        self.finished = self.gone = False
        # Mostly empty, and an empty deque takes ten times the room of an empty list.
        self.unread: list[UnreadMessage] = []
        self._wake: Wakes | None = None

    def add_message(self, message: WritableMessage, id: str | None = None) -> None:
        """Put a message at the end, or in front of the bulk of other calls.

        For a slow reader, a message replaces an older one with the same `replaces`. A full outbox drops messages that
        nobody waits for.
        """
        if message.replaces is not None and len(self.unread) >= SLOW:
            self._drop_first(lambda item: item.message.replaces == message.replaces)
        if self.gone or not message.data:
            UnreadMessage(message, id).report_message_taken()
            return
        if message.bulk or not self.unread:  # the sender of bulk limits itself
            self.unread.append(UnreadMessage(message, id))
            return
        while self.unread and self._has_no_room(len(message.data)):
            if not self._drop_first(lambda item: not (item.message.answers or item.message.asks or item.message.bulk)):
                break
        self.unread.insert(self._place(message), UnreadMessage(message, id))

    def _place(self, message: WritableMessage) -> int:
        """The index behind everything except bulk of other calls. Answers to a batch belong to no single call: last."""
        bulk = next((at for at, item in enumerate(self.unread) if item.message.bulk), None)
        if bulk is None or (message.answers and message.relates_to is None):
            return len(self.unread)
        own = (at for at, item in enumerate(self.unread) if item.message.relates_to is message.relates_to)
        return bulk if message.relates_to is None else max(bulk, 1 + max(own, default=-1))

    def take_unread(self) -> list[UnreadMessage]:
        """Take out all unread messages."""
        taken, self.unread = self.unread, []
        for item in taken:
            item.report_message_taken()
        return taken

    def abandon(self) -> None:
        """Nobody reads any more: what is unread is dropped, and so is what follows."""
        self.gone = True
        self.take_unread()

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing more should be read from this client."""
        return self._has_no_room(0)

    def _has_no_room(self, size: int) -> bool:
        waiting = [len(item.message.data) for item in self.unread if not item.message.bulk]
        return len(waiting) >= MAX_UNREAD_MESSAGES or sum(waiting) + size > MAX_UNREAD_MESSAGE_BYTES

    def wake_writer(self) -> None:
        """Wake up `wait`."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(True)

    def set_waker(self, waiting: Wakes | None) -> None:
        """Have `rouse` tell this one, as long as nobody waits here; None: nobody."""
        self._wake = waiting

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until there is something to write, or no more will follow. False when `seconds` passed first."""
        if self.unread or self.finished or self.gone:
            return True
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        timer = loop.call_later(seconds, _give_up, wake) if seconds is not None else None
        try:
            return await wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    def _drop_first(self, is_needless: Callable[[UnreadMessage], bool]) -> bool:
        found = next((item for item in self.unread if is_needless(item)), None)
        if found is not None:
            self.unread.remove(found)
            found.report_message_taken()
        return found is not None


def _give_up(wake: asyncio.Future[bool]) -> None:
    if not wake.done():
        wake.set_result(False)


class Exchange(UnreadMessages):
    """A request and its response. `push` may be called at any time. Messages are written in the order of `push`.

    `version` comes from its header. `routing` is the version, the method and the name, if headers give all of them
    (`headers.routing`). `prefers_events` is None until the Accept header was read. `is_doubted`: the client may have
    gone.
    """

    headers: RequestHeaders
    version: str | None
    routing: tuple[str, str, str | None] | None
    challenge: str
    """What the client is asked for; set only if a call ends for want of it."""
    encode_refusal: Callable[[int, str], bytes]
    """How a refusal is written for programs; set only where that is no JSON-RPC error."""

    __slots__ = (
        "headers",
        "principal",
        "live",
        "prefers_events",
        "is_doubted",
        "version",
        "routing",
        "refusal",
        "challenge",
        "encode_refusal",
        "_is_read",
        "_scope",
        "_whole",
        "_send",
        "_receive",
    )

    def __init__(
        self,
        scope: Scope | None,
        receive: Receive,
        send: Send,
        principal: Principal,
        refusal: ErrorDataFactory | None,
        live: LiveBearerCredentials | None = None,
        whole: BufferedRequest | None = None,
    ) -> None:
        """A request without a scope is a `whole` one, which has it."""
        UnreadMessages.__init__(self)  # `super()` is an object more for every request
        self.principal, self.refusal, self.live = principal, refusal, live
        self.prefers_events: bool | None = None
        self.is_doubted = self._is_read = False
        self._scope: Scope | None = scope
        self._receive, self._send, self._whole = receive, send, whole

    @property
    def scope(self) -> Scope:
        if self._scope is None:
            assert self._whole is not None
            self._scope = self._whole.scope
        return self._scope

    @property
    def head(self) -> RecurringRequestHead | None:
        """The head of the request, if it may come again."""
        return self._whole.head if self._whole is not None else None

    def list_credentials(self) -> tuple[BearerCredential, ...]:
        """The credential that the request shows, if credentials are checked."""
        return (
            self.live.extract_bearer_credentials(self.principal, self.scope["headers"]) if self.live is not None else ()
        )

    def read_head(self) -> None:
        """Read the headers, for a head that is not known yet."""
        self.headers = RequestHeaders(self.scope["headers"])
        self.version = self.headers.get("mcp-protocol-version")
        self.routing = None

    # -- from the runner ---------------------------------------------------------------------------------

    def push(self, message: WritableMessage, id: str | None = None) -> None:
        """Add a message that belongs to this request. The answer is the last."""
        if self.finished:
            if message.taken is not None:
                message.taken()
            return
        self.add_message(message, id)
        self.finished = message.answers
        self.wake_writer()

    def end_without_answer(self) -> None:
        """End the response without an answer. A client may resume it to get the rest."""
        self.finished = True
        self.wake_writer()

    # -- from the client ---------------------------------------------------------------------------------

    def get_buffered_body(self, limit: int) -> bytes | None:
        """The request's body, if it is there already. Otherwise `body` waits for it."""
        body = self._whole.take_body(limit) if self._whole is not None else None
        self._is_read = body is not None
        return body

    async def read_body(self, limit: int, seconds: float) -> bytes | None:
        """The request's body. None: it is larger than `limit`, or its client left half-way.

        Raises TimeoutError if it is not there in time.
        """
        if self._announces_more_than(limit):  # before it is read: reading tells the client to send it
            return None
        steps = self._receive().__await__()
        try:
            waiting_for = next(steps)
        except StopIteration as done:
            message = done.value
            if "body" in message and not message.get("more_body", False):
                # The body came with the headers, so it needs no timer.
                self._is_read = True
                return message["body"] if len(message["body"]) <= limit else None
            async with asyncio.timeout(seconds):
                return await self._read_body(limit, message)
        async with asyncio.timeout(seconds):
            return await self._read_body(limit, await await_started_coroutine(steps, waiting_for))

    def _announces_more_than(self, limit: int) -> bool:
        length = self.headers.get("content-length")
        return length is not None and length.isdecimal() and int(length) > limit

    async def _read_body(self, limit: int, message: MutableMapping[str, Any]) -> bytes | None:
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            if chunks:
                message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                return None
            chunks.append(message.get("body", b""))
            size, more = size + len(chunks[-1]), message.get("more_body", False)
            if size > limit:
                return None
        self._is_read = True
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def watch_client(self, left: Callable[[], None]) -> None:
        """Wait for the client to go away, then call `left`.

        Our own server says `http.request` again when the client has closed its side. It may read or be gone.
        """
        while (message := await self._receive())["type"] != "http.disconnect":
            if self._is_read:
                self.is_doubted = True
                self.wake_writer()
            self._is_read = not message.get("more_body", False)
        self.on_client_left(left)

    def set_watcher(self, watcher: ClientWatcher | None) -> bool:
        """Have `watcher` told what the client does. False: this server cannot; see `watch_client`."""
        return self._whole is not None and self._whole.set_watcher(watcher)

    def on_client_left(self, left: Callable[[], None]) -> None:
        if not self.gone:
            self.gone = True
            self.wake_writer()
            left()

    # -- to the client -----------------------------------------------------------------------------------

    def respond_json(self, status: int, body: bytes) -> Awaitable[None] | None:
        """Send one complete response of JSON. Returns the rest to await, or None."""
        if self._whole is not None and self._whole.respond(status, body):
            return None
        return self.respond(status, body)

    @property
    def is_browser_request(self) -> bool:
        """Whether this is the request of a browser that wants to show something to a person."""
        if self.version is not None or self.scope.get("method") not in ("GET", "HEAD"):
            return False
        return wants_html_page(self.headers.get("accept"))

    async def refuse(self, status: int, text: str, headers: HeaderList = (), code: int = INVALID_REQUEST) -> None:
        """Send a refusal: a page to a browser, a JSON-RPC error to who asks for JSON or sends it, else the text.

        Where the path has a form of its own for errors, programs get that.
        """
        if self.is_browser_request:
            from defserve.base.html_pages import make_html_headers, render_error_page

            about = [(name.encode(), value.encode()) for name, value in make_html_headers()]
            body = render_error_page(status, truncate_text(text))
            await self.respond(status, body, [*about, *headers], kind=HTML_CONTENT_TYPE)
            return
        if (encode_refusal := getattr(self, "encode_refusal", None)) is not None:
            await self.respond(status, encode_refusal(status, truncate_text(text)), headers)
        elif is_json_requested(self.headers.get("accept")) or is_json_content_type(self.headers.get("content-type")):
            await self.respond(status, self.encode_error(code, text), headers)
        else:
            await self.respond(status, truncate_text(text).encode(), headers, plain=True)

    def encode_error(
        self, code: int, text: str, id: RequestId | None = None, about: Mapping[str, Any] | None = None
    ) -> bytes:
        """A JSON-RPC error. Clients do not read one without an id, so an unknown id is null. `about` is in its data."""
        text = truncate_text(text)
        data = {**((self.refusal(code, text) if self.refusal is not None else None) or {}), **(about or {})}
        error = {"code": code, "message": text} | ({"data": data} if data else {})
        return encode({"jsonrpc": "2.0", "id": id, "error": error})

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        headers: HeaderList = (),
        *,
        plain: bool = False,
        kind: Header = JSON_CONTENT_TYPE,
    ) -> None:
        """Send one complete response. `kind` is the header of its media type."""
        kinds = (PLAIN_CONTENT_TYPE if plain else kind,) if body else ()
        # The length of a 304 would be that of the document, which is not sent. A 204 must have none (RFC 9110 §8.6).
        length = () if status in (204, 304) else ((b"content-length", b"%d" % len(body)),)
        headers = [*kinds, *length, *headers]
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
        except OSError:  # ASGI servers may raise it when the client has gone; `watch` notices that too
            pass

    @property
    def single_answer(self) -> WritableMessage | None:
        """The answer, if it is the only message."""
        alone = self.unread[0].message if self.finished and len(self.unread) == 1 else None
        return alone if alone is not None and alone.answers else None

    async def start_events(self, first: bytes = b"") -> None:
        """Begin a response that is a stream of events."""
        try:
            await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            await self._send({"type": "http.response.body", "body": first, "more_body": True})
        except OSError:  # as in `respond`
            pass

    async def stream(self, keep_alive: float, left: Callable[[], None]) -> None:
        """Write events until the request is answered or dropped, its client is gone, or it stops reading."""
        while not self.gone:
            if not await self.wait(keep_alive) or self.is_doubted:
                self.is_doubted = False
                await self._write(SSE_KEEP_ALIVE_COMMENT, left)
                continue
            events = b"".join(format_sse_event(item.message.data, id=item.id) for item in self.take_unread())
            await self._write(events, left)
            if self.finished and not self.unread:
                break
        await self._write(b"", left, last=True)

    def hold_open(self) -> BufferedRequest | None:
        """The request, whose response goes on without this task. None: this server cannot do that."""
        if self._whole is None or self.gone:
            return None
        self._whole.hold_open()
        # Nobody reads these any more, and they are a third of an idle stream.
        self.headers, self._scope = NO_HEADERS, {}
        return self._whole

    async def _write(self, data: bytes, left: Callable[[], None], *, last: bool = False) -> None:
        # Nothing can be written to a client that does not read, not even the end.
        if self.gone or not (data or last):
            return
        try:
            async with asyncio.timeout(MAX_STALL_SECONDS):
                await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        except (TimeoutError, OSError):  # ASGI servers may raise OSError once the client has gone
            self.on_client_left(left)


class ResponseRoute(Protocol):
    """Where the messages of one request go, and what it means when its client leaves."""

    @property
    def statuses(self) -> Mapping[int, int]:
        """Error code → HTTP status, where it is not 200."""
        ...

    def push(self, message: WritableMessage) -> None:
        """A message that belongs to the request."""

    def wants_events(self, exchange: Exchange) -> bool:
        """Whether even a single answer must be sent as an event."""
        ...

    def can_start_events(self, seconds: float) -> bool:
        """Whether the response becomes a stream of events after so many seconds without a message."""
        ...

    def start_events(self) -> bytes:
        """The response becomes a stream of events. Returns the first of them."""
        ...

    def on_response_started(self) -> None:
        """A response has begun. From here on its client may leave."""

    def on_client_left(self) -> None:
        """Its client went away."""

    def detach(self, exchange: Exchange) -> None:
        """The response has ended."""

    def finish(self) -> None:
        """The request has been dealt with."""


# -- Server-sent events as bytes (the WHATWG event stream format). No I/O.


CONTENT_TYPE = b"text/event-stream"

# Proxies must not cache, compress or buffer events, because they must arrive at once.
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

# A comment, which readers skip.
SSE_KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_UNSAFE = re.compile(r"[\r\n\0]")


def format_sse_event(data: bytes, *, id: str | None = None, retry: int | None = None, name: str | None = None) -> bytes:
    """One event. `data` may be any bytes; `retry` is in milliseconds; without a `name` it is a `message`.

    Raises ValueError for an `id` or a `name` that would end its line.
    """
    head = ""
    if id is not None:
        head = f"id: {_one_line(id)}\n"
    if retry is not None:
        head += f"retry: {retry:d}\n"
    if name is not None:
        head += f"event: {_one_line(name)}\n"
    if b"\n" not in data and b"\r" not in data:
        return b"%bdata: %b\n\n" % (head.encode(), data)
    return head.encode() + b"".join(b"data: %b\n" % line for line in _LINE_END.split(data)) + b"\n"


def _one_line(text: str) -> str:
    if _UNSAFE.search(text):
        raise ValueError(f"{text!r} does not fit on one line of an event stream")
    return text


MAX_STALL_SECONDS = 30.0


class CompleteReply:
    """A reply that the transport got directly from `begin`, not from the session's outlet."""

    __slots__ = ("data", "code", "release")

    answers, asks, bulk = True, False, False
    replaces = taken = relates_to = audience = None

    def __init__(self, data: bytes, code: int | None) -> None:
        self.data, self.code = data, code
        self.release: Callable[[], None] | None = None
