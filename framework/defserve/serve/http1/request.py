"""One HTTP request and its response, as ASGI's `receive` and `send`, or in one piece. And heads seen before."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from defserve.base.redaction import get_logger
from defserve.serve.sockets import BUFFERED_REQUEST_KEY, log_failed_request

if TYPE_CHECKING:
    from defserve.serve.http1.connection import HttpConnection
    from defserve.serve.sockets import ClientWatcher, Scope


log = get_logger()

# A complete response up to this size is written in one piece.
MAX_WHOLE_BODY_BYTES: Final = 65_536
_STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
JSON_RESPONSE_HEADS: Final = {
    status: b"%bcontent-type: application/json\r\ncontent-length: " % line for status, line in _STATUS_LINES.items()
}
_UNSAFE: Final = re.compile(rb"[\r\n\0]")
_NO_BODY: Final = frozenset((204, 304))


class HttpRequest:
    """A request and its response, as ASGI's `receive` and `send`. It is a `serve.sockets.BufferedRequest` too."""

    __slots__ = (
        *("connection", "head", "body", "has_more", "keeps_alive", "is_head", "is_old"),
        *("has_started", "is_complete", "is_disconnected", "expects_continue", "ignores_upgrade", "is_taken"),
        *("is_held", "watcher", "_scope", "_length", "_event", "_head_bytes", "_left", "_is_chunked"),
    )

    def __init__(
        self,
        connection: HttpConnection,
        scope: Scope | None,
        head: CachedRequestHead | None = None,
        length: bytes = b"",
        body: bytes = b"",
    ) -> None:
        """Of a request with a known head the body is there, and the scope is made when it is asked for."""
        self.connection, self._scope, self.body = connection, scope, body
        self.head, self._length = head, length
        """What has come of the body, and was not received yet."""
        self.keeps_alive = True
        self.has_more = self.is_head = self.is_old = self.is_taken = False
        self.expects_continue = self.ignores_upgrade = False
        self.has_started = self.is_complete = self.is_disconnected = self.is_held = False
        self.watcher: ClientWatcher | None = None
        self._event: asyncio.Event | None = None
        self._head_bytes: bytes | None = None
        self._left: int | None = None
        self._is_chunked = False

    async def run(self) -> None:
        """Run the app, and answer for it if it fails."""
        state, head = self.connection.state, self.head
        try:
            if head is not None and head.note is not None and state.answer_known_head is not None:
                rest = state.answer_known_head(self)
                if rest is not None:
                    await rest
            else:
                scope = self.scope
                scope[BUFFERED_REQUEST_KEY] = self  # which the app removes
                await state.app(scope, self.receive, self.send)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                log_failed_request("a request failed", error, self.scope)
            await self._end_failed()
            if not isinstance(error, Exception):
                raise
            return
        if not (self.is_complete or self.is_disconnected or self.is_held):
            log.error("the app returned without a complete response")
            await self._end_failed()

    @property
    def scope(self) -> Scope:
        if (scope := self._scope) is None:
            assert self.head is not None
            scope = self._scope = self.connection.complete_scope(self.head.make_scope(self._length))
        return scope

    @property
    def client(self) -> HttpConnection:
        return self.connection

    async def _end_failed(self) -> None:
        if self.is_disconnected or self.is_complete:
            return
        if self.has_started:
            self.connection.transport.abort()
            return
        self.keeps_alive, self._head_bytes = False, None
        head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21")]
        await self.send({"type": "http.response.start", "status": 500, "headers": head})
        await self.send({"type": "http.response.body", "body": b"Internal Server Error"})

    # -- from the connection -----------------------------------------------------------------------------

    @property
    def has_head(self) -> bool:
        """Whether the head of the response is made: what it says of the connection holds."""
        return self.has_started or self._head_bytes is not None

    def add_body_part(self, part: bytes, *, has_more: bool) -> None:
        """A part of the body came."""
        self.body = self.body + part if self.body else part
        self.has_more = has_more
        self.expects_continue = self.expects_continue and not part
        if part or not has_more:
            self.wake_app()

    def on_client_left(self) -> None:
        """The client is gone: nobody reads the response."""
        self.is_disconnected, self.body = True, b""
        self.wake_app()
        watcher, self.watcher = self.watcher, None  # each holds the other
        if watcher is not None:
            watcher.on_client_left()

    def probe_half_closed_client(self) -> None:
        """The client has closed its side: have the app write to it."""
        self.wake_app()
        if self.watcher is not None:
            self.watcher.on_client_doubted()

    def wake_app(self) -> None:
        """Let `receive` return. Behind the end of the body it returns an empty part again."""
        if self._event is not None:
            self._event.set()

    # -- ASGI --------------------------------------------------------------------------------------------

    async def receive(self) -> MutableMapping[str, Any]:
        if not (self.is_disconnected or self.is_complete):
            if self._event is None:
                self._event = asyncio.Event()
                if not self.is_taken and (self.body or not self.has_more):
                    self._event.set()
            connection = self.connection
            if not self._event.is_set():
                connection.resume_reading()
                if self.expects_continue and not self.has_started:
                    self.expects_continue = False
                    connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._event.wait()
            self._event.clear()
        if self.is_disconnected or self.is_complete:
            return {"type": "http.disconnect"}
        body, self.body, self.is_taken = self.body, b"", True
        return {"type": "http.request", "body": body, "more_body": self.has_more}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        connection, kind = self.connection, message["type"]
        if connection.is_write_paused:
            await connection.drain()
        if self.is_disconnected or self.is_complete:
            return
        if self._head_bytes is None and not self.has_started:
            if kind != "http.response.start":
                raise RuntimeError(f"the app sent {kind} before http.response.start")
            self._head_bytes = self._make_head(message["status"], message.get("headers", ()))
            return
        if kind != "http.response.body":
            raise RuntimeError(f"the app sent {kind} in the middle of a response")
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        data = self._frame(body, is_last=is_last)
        if not self.has_started:
            self.has_started, head, self._head_bytes = True, self._head_bytes, None
            data = (head or b"") + data
        if data:
            connection.transport.write(data)
        if is_last:
            self._complete()

    def _make_head(self, status: int, headers: Any) -> bytes:
        lines, left, chunks = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status], None, True
        for name, value in headers:
            if _UNSAFE.search(name) or _UNSAFE.search(value):
                raise RuntimeError(f"a header of the response has a line break: {name!r}")
            name = name.lower()
            if name == b"content-length":
                left = int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keeps_alive = False
                continue
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.is_head or status in _NO_BODY or status < 200:
            left, chunks = 0, False
        elif left is None and self.is_old:
            self.keeps_alive, chunks = False, False  # HTTP/1.0 knows no chunks; the response ends by closing
        elif left is None:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            chunks = False
        self._left, self._is_chunked = left, chunks
        if self.expects_continue:
            # It was not told to send its body, so it may send another request instead: nobody knows which comes.
            self.keeps_alive = False
        if not self.keeps_alive:
            lines.append(b"connection: close\r\n")
        elif self.is_old:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _frame(self, body: bytes, *, is_last: bool) -> bytes:
        if self.is_head:
            return b""
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return data + b"0\r\n\r\n" if is_last else data
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (is_last and self._left):
                self.connection.transport.abort()
                raise RuntimeError("the response isn't as long as its content-length says")
        return body

    def _complete(self) -> None:
        self.is_complete = True
        if self._event is not None:
            self._event.set()
        self.connection.on_response_complete(self)

    # -- without a task ----------------------------------------------------------------------------------

    @property
    def is_write_paused(self) -> bool:
        return self.connection.is_write_paused

    def set_watcher(self, watcher: ClientWatcher | None) -> bool:
        """Tell `watcher` what the client does, instead of `receive`. False: it cannot, because the body isn't over."""
        if self.has_more or self.is_disconnected:
            return False
        self.watcher = watcher
        return True

    def hold_open(self) -> None:
        """The app returns, and its response goes on with `write_response_part` until `end_response`."""
        self.is_held, self.head = True, None
        self._scope = {}
        self.connection.cancel_timer()

    def write_response_part(self, data: bytes) -> None:
        """Write a part of a response that was held open."""
        if not (self.is_disconnected or self.is_complete):
            self.connection.transport.write(self._frame(data, is_last=False))

    def end_response(self) -> None:
        """End a response that was held open."""
        if not (self.is_disconnected or self.is_complete):
            self.watcher = None
            self.connection.transport.write(self._frame(b"", is_last=True))
            self._complete()

    # -- in one piece ------------------------------------------------------------------------------------

    def take_body(self, limit: int) -> bytes | None:
        """The body, if all of it is there and within `limit`."""
        body = self.body
        if self.has_more or not 0 < (size := len(body)) <= MAX_WHOLE_BODY_BYTES or size > limit:
            return None
        self.body, self.is_taken = b"", True
        if self._event is not None:
            self._event.clear()
        return body

    def respond(self, status: int, body: bytes) -> bool:
        """Send a complete response of JSON. False: it was not sent; send it by the steps of ASGI."""
        connection = self.connection
        if (
            self.has_started
            or self.is_disconnected
            or self._head_bytes is not None
            or not self.keeps_alive
            or self.expects_continue
            or self.is_old
            or self.is_head
            or connection.is_write_paused
            or len(body) > MAX_WHOLE_BODY_BYTES
        ):
            return False
        connection.transport.write(b"%b%d\r\n\r\n%b" % (JSON_RESPONSE_HEADS[status], len(body), body))
        self.has_started = self.is_complete = True
        if self._event is not None:
            self._event.set()
        connection.on_response_complete(self)
        return True


# -- Heads of earlier requests. A client sends the same head each time, so it is parsed once.


# A head of a usual client takes about 5 KB in memory: it, what was parsed, and what the app has noted.
MAX_KNOWN_HEADS_BYTES: Final = 2 * 1024 * 1024
MAX_KNOWN_HEAD_BYTES: Final = 4096
MAX_KNOWN_HEAD_FIELDS: Final = 64
_BASE_BYTES, _COPIES, _FIELD_BYTES = 2_000, 3, 120

_END = b"\r\n\r\n"
_LENGTH = b"ength: "
_NAME = b"\r\ncontent-length: "

# Members of a scope that differ by connection or request.
_OWN = frozenset(("headers", "client", "server", "scheme", "state", BUFFERED_REQUEST_KEY))
# With one of these headers, the head alone does not decide how the request is read.
_OTHERWISE = frozenset((b"transfer-encoding", b"upgrade", b"expect"))


class CachedRequestHead:
    """A parsed head: its ASGI scope without the members that differ by connection, and the app's note about it."""

    __slots__ = ("scope", "note", "_headers", "_length_at", "_before", "_after", "_digits_at", "_after_size")

    def __init__(self, data: bytes, scope: Mapping[str, Any]) -> None:
        """The head at the beginning of `data`, which was parsed as `scope`."""
        at = data.find(_LENGTH) + 7
        self._before, self._after = data[:at], data[data.find(b"\r", at) : data.find(_END) + 4]
        self._digits_at, self._after_size = at, len(self._after)
        self.scope = {key: value for key, value in scope.items() if key not in _OWN}
        self.note: Any = None
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self._length_at = [name for name, _ in self._headers].index(b"content-length")

    def match(self, data: bytes) -> tuple[CachedRequestHead | None, bytes, bytes]:
        """As `RequestHeadCache.find`, for a connection whose last request had this head: nothing is searched."""
        if data.startswith(self._before):
            at = self._digits_at
            stop = data.find(b"\r", at)
            if data.startswith(self._after, stop):
                length, body = data[at:stop], data[stop + self._after_size :]
                if length == b"%d" % len(body):
                    return self, length, body
        return NO_KNOWN_HEAD

    def make_scope(self, length: bytes) -> dict[str, Any]:
        """The scope of a request whose body has this length, without the members that differ by connection."""
        headers = self._headers.copy()
        headers[self._length_at] = (b"content-length", length)
        return {**self.scope, "headers": headers}


NO_KNOWN_HEAD: tuple[CachedRequestHead | None, bytes, bytes] = (None, b"", b"")


class RequestHeadCache:
    """The known heads. When there are too many, all are forgotten."""

    def __init__(self) -> None:
        self._known: dict[bytes, CachedRequestHead] = {}
        self._bytes = 0
        self.looked_for = b""
        """The head that was looked for last, without the number in its Content-Length."""

    def find(self, data: bytes) -> tuple[CachedRequestHead | None, bytes, bytes]:
        """The head, the length and the body of a request, if `data` is one whole request with a known head."""
        self.looked_for, length, body = _split_request(data)
        return self._known.get(self.looked_for), length, body

    def add_head(self, data: bytes, scope: Mapping[str, Any]) -> CachedRequestHead | None:
        """Remember the head of a request that was parsed, if `data` was that request and nothing else."""
        raw, length, _ = _split_request(data)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        lengths = [value for name, value in headers if name == b"content-length"]
        if not raw or lengths != [length] or not _is_at_its_name(data) or len(headers) > MAX_KNOWN_HEAD_FIELDS:
            return None
        # A POST to a path alone: the response to HEAD has no body, and an absolute URI is judged by its host.
        if scope["method"] != "POST" or not scope["path"].startswith("/"):
            return None
        if scope["http_version"] != "1.1" or any(name in _OTHERWISE for name, _ in headers):
            return None
        size = _BASE_BYTES + _COPIES * len(raw) + _FIELD_BYTES * len(headers)
        self._bytes += size
        if self._bytes > MAX_KNOWN_HEADS_BYTES:
            self._known.clear()
            self._bytes = size
        head = self._known[raw] = CachedRequestHead(data, scope)
        return head


def _split_request(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The head without the number in its Content-Length, that number, and the body, if the body has that length.

    Searching for a few characters in one case is fastest. `learn` checks that they are in the right place.
    """
    end = data.find(_END, 0, MAX_KNOWN_HEAD_BYTES)
    at = data.find(_LENGTH, 0, end) + 7
    if end < 0 or at < 7:
        return b"", b"", b""
    stop, body = data.find(b"\r", at), data[end + 4 :]
    length = data[at:stop]
    return (data[:at] + data[stop:end], length, body) if length == b"%d" % len(body) else (b"", b"", b"")


def _is_at_its_name(data: bytes) -> bool:
    at = data.find(_LENGTH) + 7
    return data[:at].lower().endswith(_NAME)
