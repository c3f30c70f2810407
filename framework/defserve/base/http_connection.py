"""One HTTP/1.1 connection: a request out, its response in, then perhaps the next request. And how bodies are read.

How it works: `HttpConnection` does the I/O. `ResponseFraming` cuts bytes into the head and the body of one response,
without I/O. The head is parsed strictly, since it decides where the response ends.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import select
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, cast

WRITE_TIMEOUT_SECONDS = 30.0
MAX_UNREAD_BYTES: Final = 256 * 1024
"""Bytes of a body that wait for their reader. Then the server has to wait."""


class HttpConnection(asyncio.Protocol):
    """`is_idle` is called when the connection can carry another request. While it is open, it is one of `opened`."""

    def __init__(self, is_idle: Callable[[HttpConnection], None], opened: set[HttpConnection]) -> None:
        self._is_idle, self._opened = is_idle, opened
        self._transport: asyncio.Transport | None = None
        self._poll: Any = None
        self._response: DirectResponse | None = None
        self._lost = False
        self._reused = False
        self._clogged = False
        self.idle_since = 0.0
        # Many heads are the same as the one before. So a head is shared, and not to be changed.
        self.parse_head = lru_cache(maxsize=1)(parse_head)

    @property
    def is_usable(self) -> bool:
        """Whether an idle connection is still open. The loop may not have noticed yet that it is not."""
        transport = self._transport
        if self._lost or transport is None or transport.is_closing():
            return False
        # An idle connection has nothing to say, so whatever can be read is its end.
        return self._poll is None or not self._poll.poll(0)

    async def send(self, head: bytes, content: bytes | None) -> DirectResponse:
        """Send a request and wait for the head of its response.

        Raises ClosedWithoutResponse if this connection carried requests before and ends without a byte, and else
        BrokenHttpConnection.
        """
        response = self._response = DirectResponse(self)
        transport = cast("asyncio.Transport", self._transport)
        try:
            # One write: two would be two packets.
            transport.write(head + content if content else head)
            if self._clogged:
                await self._drain_request(transport, response)
            while response.head is None:
                await response.wait_for_more()
        except BaseException:
            self.abort()
            raise
        return response

    async def _drain_request(self, transport: asyncio.Transport, response: DirectResponse) -> None:
        """Wait until the server has taken the request, or has answered before it did."""
        left = transport.get_write_buffer_size()
        while self._clogged and response.head is None:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                    await response.wait_for_more()
            except TimeoutError:
                before, left = left, transport.get_write_buffer_size()
                if left >= before:
                    raise BrokenHttpConnection(
                        f"the server took nothing of a request within {WRITE_TIMEOUT_SECONDS:g} s"
                    ) from None

    def abort(self) -> None:
        """End the connection at once. Who still reads a response is told."""
        self._end(BrokenHttpConnection("the connection was closed"))

    def pause(self, paused: bool) -> None:
        """Whether the server has to wait before it sends more."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened.add(self)
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nothing was asked
            return
        try:
            response.feed_bytes(data)
        except BrokenHttpConnection as error:
            self._fail(error)
            return
        if response.framing.over:
            self._finish(response)

    def eof_received(self) -> bool:
        if (response := self._response) is not None:
            try:
                response.framing.end()
            except BrokenHttpConnection as error:
                self._fail(error)
            else:
                self._finish(response)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._opened.discard(self)
        self._fail(BrokenHttpConnection(str(exc) or type(exc).__name__ if exc else "the connection was closed"))

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False
        if self._response is not None:
            self._response.wake()

    def _finish(self, response: DirectResponse) -> None:
        self._response = None
        response.end()
        transport = self._transport
        if transport is None or self._lost:
            return
        if response.framing.reusable and not transport.is_closing() and not transport.get_write_buffer_size():
            self._reused = True
            self._is_idle(self)
        else:
            self.abort()

    def _fail(self, error: BrokenHttpConnection) -> None:
        if self._reused and (response := self._response) is not None and not response.framing.began:
            error = ClosedWithoutResponse(*error.args)
        self._end(error)

    def _end(self, error: BrokenHttpConnection) -> None:
        response, self._response, self._lost = self._response, None, True
        if response is not None:
            response.end(error)
        if self._transport is not None:
            self._transport.abort()


class DirectResponse:
    """What the server answers: `head` first, then the body, as it comes."""

    __slots__ = ("head", "framing", "_connection", "_parts", "_unread", "_ended", "_error", "_waiter")

    def __init__(self, connection: HttpConnection) -> None:
        self.framing = ResponseFraming(connection.parse_head)
        self.head: ResponseHead | None = None
        self._connection: HttpConnection | None = connection
        self._parts: deque[bytes] = deque()
        self._unread: int = 0
        self._ended = False
        self._error: BrokenHttpConnection | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def status(self) -> int:
        return cast("ResponseHead", self.head).status

    @property
    def reason(self) -> str:
        return cast("ResponseHead", self.head).reason

    @property
    def headers(self) -> dict[str, str]:
        return cast("ResponseHead", self.head).headers

    @property
    def is_over(self) -> bool:
        """Whether the whole body has come and was read."""
        return self._ended and not self._parts

    async def read_body_start(self, enough: int) -> bytes:
        """The body, or its start: reading stops once there are more than `enough` bytes.

        Raises BrokenHttpConnection.
        """
        if self._ended and self._error is None and len(self._parts) <= 1 and "content-encoding" not in self.headers:
            return self._parts.popleft() if self._parts else b""
        return await join_parts_until_enough(self.iter_parts(), enough)

    async def iter_parts(self) -> AsyncGenerator[bytes]:
        """The body, part by part. Raises BrokenHttpConnection if it ends early."""
        coding = self.headers.get("content-encoding", "identity")
        decompressor = None if coding == "identity" else _make_decompressor(coding.strip().lower())
        while True:
            while not self._parts:
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return
                await self.wait_for_more()
            part = self._parts.popleft()
            before = self._unread
            self._unread = before - len(part)
            if before > MAX_UNREAD_BYTES >= self._unread and self._connection is not None:
                self._connection.pause(False)
            if decompressor is None:
                yield part
                continue
            try:
                for piece in decompressor.decompress(part):
                    yield piece
            except zlib.error as error:
                raise BrokenHttpConnection(f"the response is not encoded as it says: {error}") from None

    async def aclose(self) -> None:
        """Have done with the response. The connection is kept if the whole response has come."""
        if (connection := self._connection) is not None:
            self._connection = None
            connection.abort()

    async def wait_for_more(self) -> None:
        """Wait until something has happened. Raises what went wrong before there was a head."""
        if self.head is None and self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # What the connection calls.

    def feed_bytes(self, data: bytes) -> None:
        framing = self.framing
        part = framing.feed(data)
        self.head = framing.head
        if part:
            self._parts.append(part)
            self._unread += len(part)
            if self._unread > MAX_UNREAD_BYTES and self._connection is not None and not framing.over:
                self._connection.pause(True)
        self.wake()

    def end(self, error: BrokenHttpConnection | None = None) -> None:
        self._connection, self._ended, self._error = None, True, error
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _make_decompressor(coding: str) -> Decompressor:
    if coding not in SUPPORTED_CONTENT_CODINGS:
        raise BrokenHttpConnection(f"the response is encoded as {coding[:60]!r}, which was not asked for")
    return Decompressor(coding)


async def join_parts_until_enough(parts: AsyncGenerator[bytes], enough: int) -> bytes:
    """The parts together, until there are more than `enough` bytes."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > enough:
            break
    return bytes(body)


# -- What can go wrong on a connection.


class BrokenHttpConnection(Exception):
    """The connection failed, or what came on it is not HTTP."""


class HttpConnectFailed(BrokenHttpConnection):
    """No connection was made, so nothing was sent."""


class ClosedWithoutResponse(BrokenHttpConnection):
    """A kept connection ended before one byte of the response came."""


# -- The head of a response: its status line and headers. Parsed strictly, since it decides where the response ends.


MAX_RESPONSE_HEAD_BYTES: Final = 64 * 1024

STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (.*))?")
HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

# Nothing may hide in a header: neither control characters nor a line ending that others read differently.
FORBIDDEN_HEADER_VALUE_PATTERN: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
SEPARATORS: Final = {"set-cookie": "\n"}
"""A cookie may have commas in it, so cookies are joined by what no header can have."""


class ResponseHead:
    """`headers` has lower-case names. A header that came several times has its values joined by commas."""

    __slots__ = ("status", "reason", "headers", "minor")

    def __init__(self, status: int, reason: str, headers: dict[str, str], minor: int) -> None:
        self.status, self.reason, self.headers, self.minor = status, reason, headers, minor


def parse_head(data: bytes) -> ResponseHead:
    """The head whose lines these are, without the empty line that ends it. Raises BrokenHttpConnection."""
    text = data.decode("latin-1")
    if FORBIDDEN_HEADER_VALUE_PATTERN.search(text):
        raise BrokenHttpConnection("the head of the response has control characters")
    first, *lines = text.split("\n")
    status = STATUS_LINE.fullmatch(first.rstrip("\r"))
    if status is None:
        raise BrokenHttpConnection(f"the response is not HTTP/1.1: {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or HEADER_NAME.fullmatch(name) is None:
            raise BrokenHttpConnection(f"the response has a header that is not one: {line[:60]!r}")
        name, value = name.lower(), value.strip(" \t\r")
        headers[name] = f"{headers[name]}{SEPARATORS.get(name, ', ')}{value}" if name in headers else value
    return ResponseHead(int(status[2]), status[3] or "", headers, int(status[1]))


def encode_request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises ValueError for a header that HTTP cannot carry."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # One line ending for each header, and nothing else that ends a line or cannot be seen.
    if lines.count("\n") != len(headers) or FORBIDDEN_HEADER_VALUE_PATTERN.search(lines) or not lines.isascii():
        for name, value in headers.items():
            if HEADER_NAME.fullmatch(name) is None or not value.isascii() or not value.replace("\t", " ").isprintable():
                raise ValueError(f"the header {name!r} has characters that HTTP cannot carry")
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("ascii")


# -- Cuts the bytes of a connection into the head and the body of one response. No I/O.


END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
MAX_HEAD_END_LENGTH: Final = 4
MAX_LINE_LENGTH: Final = 4096
"""Of the line that says the size of a chunk."""
MAX_CHUNKS: Final = 4096
"""Tiny ones in what is read at once. A chunk of one byte costs as much as a long one, and others wait meanwhile."""
TINY_CHUNK: Final = 16
CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
CONTENT_LENGTH: Final = re.compile(r"[0-9]{1,15}")


class Part(IntEnum):
    """What comes next on the connection."""

    HEAD = 0
    LENGTH = 1
    UNTIL_END = 2
    CHUNK_SIZE = 3
    CHUNK = 4
    CHUNK_END = 5
    TRAILER = 6


class ResponseFraming:
    """Takes what comes on a connection after one request, and gives the body.

    head      None until it is there
    over      whether the whole response has come
    reusable  whether the connection can carry another request then
    """

    __slots__ = ("head", "over", "reusable", "_next", "_rest", "_left", "_heads", "_parse")

    def __init__(self, parse: Callable[[bytes], ResponseHead] = parse_head) -> None:
        self._parse = parse
        self.head: ResponseHead | None = None
        self.over, self.reusable = False, False
        self._next = Part.HEAD
        self._rest: bytes = b""
        self._left = self._heads = 0

    @property
    def began(self) -> bool:
        """Whether anything has come."""
        return bool(self.head or self._rest or self._heads)

    def feed(self, data: bytes) -> bytes:
        """The part of the body that is in `data`. Raises BrokenHttpConnection if it is not HTTP."""
        if self.head is None:
            data = self._take_head(data)
            if self.head is None:
                return b""
        if self._next is Part.LENGTH:
            return self._take_length(data)
        return data if self._next is Part.UNTIL_END else self._take_chunks(data)

    def end(self) -> None:
        """The server closed its side. Raises BrokenHttpConnection if the response is not whole."""
        if self._next is Part.UNTIL_END:
            self.over = True
        elif not self.over:
            raise BrokenHttpConnection(
                "the server closed the connection " + ("before it answered" if self.head is None else "early")
            )

    def _take_head(self, data: bytes) -> bytes:
        """Read the head. What follows it is given back."""
        searched = max(0, len(self._rest) - MAX_HEAD_END_LENGTH)
        data = self._rest + data if self._rest else data
        while True:
            found = END_OF_HEAD.search(data, searched)
            size = found.end() if found else len(data)
            if self._heads + size > MAX_RESPONSE_HEAD_BYTES:
                raise BrokenHttpConnection(f"the head of the response has more than {MAX_RESPONSE_HEAD_BYTES} bytes")
            if found is None:
                self._rest = data
                return b""
            head, data, searched = self._parse(data[: found.start()]), data[size:], 0
            if head.status >= 200:
                break
            if head.status == 101:
                raise BrokenHttpConnection("the server wants to speak another protocol")
            # Early news of the same response. They count, so that they cannot go on for ever.
            self._heads += size
        self._rest, self._heads = b"", 0
        self.head = head
        self._begin_body(head)
        return data

    def _begin_body(self, head: ResponseHead) -> None:
        connection, coding, given = map(head.headers.get, ("connection", "transfer-encoding", "content-length"))
        length = None if given is None else _length(given)
        self.reusable = head.minor == 1 and (connection is None or "close" not in connection.lower())
        if head.status in (204, 304):  # they never have a body
            length, coding = 0, None
        if coding is not None:
            if coding.lower() != "chunked":
                raise BrokenHttpConnection(f"the response is encoded as {coding[:60]!r}, which was not asked for")
            # Two lengths: another reader may have taken the other one, so this connection is not used again.
            self.reusable = self.reusable and length is None
            self._next = Part.CHUNK_SIZE
        elif length is not None:
            self._next, self._left = Part.LENGTH, length
        else:
            self._next, self.reusable = Part.UNTIL_END, False

    def _take_length(self, data: bytes) -> bytes:
        left = self._left
        if len(data) >= left:
            self.over = True
            if len(data) > left:
                self.reusable = False
                data = data[:left]
        self._left = left - len(data)
        return data

    def _take_chunks(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.over:
            if self._next is Part.CHUNK:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                if not self._left:
                    self._next = Part.CHUNK_END
                continue
            end = data.find(b"\n", at, at + MAX_LINE_LENGTH)
            if end < 0:
                if size - at >= MAX_LINE_LENGTH:
                    raise BrokenHttpConnection(
                        f"the response has a line of more than {MAX_LINE_LENGTH} bytes around a chunk"
                    )
                self._rest = data[at:]
                break
            self._line(data[at:end].removesuffix(b"\r"))
            at = end + 1
            if len(parts) > MAX_CHUNKS and at < len(parts) * TINY_CHUNK:
                raise BrokenHttpConnection(f"the response comes in chunks of less than {TINY_CHUNK} bytes")
        if self.over and at < size:
            self.reusable = False
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _line(self, line: bytes) -> None:
        """A line around the chunks: the size of the next one, the end of the last one, or a trailer."""
        if self._next is Part.CHUNK_END:
            if line:
                raise BrokenHttpConnection("the response has a chunk that is longer than it says")
            self._next = Part.CHUNK_SIZE
        elif self._next is Part.CHUNK_SIZE:
            number = line.partition(b";")[0].strip(b" \t")
            if CHUNK_SIZE.fullmatch(number) is None:
                raise BrokenHttpConnection(f"the response has a chunk without a size: {line[:60]!r}")
            self._left = int(number, 16)
            self._next = Part.CHUNK if self._left else Part.TRAILER
        else:
            self._heads += len(line)
            if self._heads > MAX_RESPONSE_HEAD_BYTES:
                raise BrokenHttpConnection(
                    f"the response ends with more than {MAX_RESPONSE_HEAD_BYTES} bytes of headers"
                )
            self.over = not line


def _length(given: str) -> int:
    """The one length that all `Content-Length` headers give."""
    lengths = {each.strip() for each in given.split(",")} if "," in given else {given}
    if len(lengths) != 1 or CONTENT_LENGTH.fullmatch(length := lengths.pop()) is None:
        raise BrokenHttpConnection(f"the response has no clear length: {given[:60]!r}")
    return int(length)


# -- Compressed bodies, unpacked in bounded pieces: a small one cannot become a large one unnoticed.


ACCEPT_ENCODING_VALUE: Final = "gzip, deflate"
"""The header that asks for what can be unpacked here."""
SUPPORTED_CONTENT_CODINGS: Final = frozenset(("gzip", "x-gzip", "deflate"))
MAX_PIECE_BYTES: Final = 64 * 1024

# gzip, and zlib or bare deflate. Servers write both of the latter under one name.
_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Decompressor:
    """Unpacks one body. `coding` is one of `SUPPORTED_CONTENT_CODINGS`."""

    __slots__ = ("_codec", "_may_be_bare", "_begin")

    def __init__(self, coding: str) -> None:
        self._may_be_bare = coding == "deflate"
        self._codec = zlib.decompressobj(_ZLIB if self._may_be_bare else _GZIP)
        self._begin: bytes = b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """The pieces that `data` gives, one at a time. Raises `zlib.error` if the body is not encoded as it says."""
        if self._may_be_bare:
            # The header of zlib is two bytes: one alone does not tell what this is.
            data = self._begin + data
            if len(data) < 2:
                self._begin = bytes(data)
                return
        is_full = True
        # After a full piece there may be more: the codec keeps what did not fit, even without input left.
        while (data or is_full) and not self._codec.eof:
            try:
                piece = self._codec.decompress(data, MAX_PIECE_BYTES)
            except zlib.error:
                if not self._may_be_bare:
                    raise
                self._codec, self._may_be_bare = zlib.decompressobj(_BARE), False
                continue
            self._may_be_bare = False
            data, is_full = self._codec.unconsumed_tail, len(piece) == MAX_PIECE_BYTES
            if piece:
                yield piece


# -- The character set of a text that a peer sends.
#
# Python has codecs that are no character sets, and `punycode` takes a time that grows with the square of the text. It
# also remembers each name that it was asked for. So only names of character sets are looked up.


_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_.-]{1,40})", re.IGNORECASE)
_CHARACTER_SET: Final = re.compile(
    r"utf-?8(-sig)?|utf-?(16|32)(-?[bl]e)?|(us-)?ascii|iso-?8859-?\d{1,2}|latin-?\d{1,2}|(windows-?|cp-?|ibm-?)\d{3,4}"
    r"|koi8-[rtu]|mac-?(roman|cyrillic|greek|turkish|latin2)|gbk|gb-?2312|gb-?18030|hz|big5(-?hkscs)?|euc-?(jp|kr)"
    r"|s(hift-?)?jis|iso-?2022-?(jp|kr)|johab|tis-?620"
)


def find_text_codec(content_type: str) -> str:
    """The codec for a text with this Content-Type: that of the character set that it names, or else of UTF-8."""
    said = _CHARSET.search(content_type)
    name = said[1].lower().replace("_", "-") if said is not None else ""
    if _CHARACTER_SET.fullmatch(name) is None:
        return "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "utf-8"
