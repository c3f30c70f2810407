"""Where a request begins and ends, byte by byte. No I/O.

How it works: a head is read by one grammar (RFC 9112, without what it only tolerates), as a whole, when its blank line
is there. What the grammar does not know is refused, so a proxy in front cannot have read the same bytes in another way.
The head says how the body ends: by a length, by chunks, or at once. Bodies are read by `LengthBody` or `ChunkedBody`.

Written by hand: each byte has to be judged before a parser may read it, and then nothing is left to parse.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_CHUNK_LINE_BYTES: Final = 1024
MAX_TRAILER_BYTES: Final = 16 * 1024
MAX_LENGTH_DIGITS: Final = 18

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE: Final = rb"[\t\x20-\x7e\x80-\xff]*"
# A path, an absolute URI, or `*`. What CONNECT asks for is none of them.
_TARGET: Final = rb"(?:/|[Hh][Tt][Tt][Pp][Ss]?://|\*(?= ))[\x21\x22\x24-\x7e]*"
_REQUEST: Final = re.compile(
    rb"(?P<method>%b) (?P<target>%b) HTTP/(?P<version>\d\.\d)\r\n(?P<fields>(?:%b:%b\r\n)*)\r\n"
    % (_TOKEN, _TARGET, _TOKEN, _VALUE)
)
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e]*)?\r\n")
_TRAILERS: Final = re.compile(rb"(?:%b:%b\r\n)*\r\n" % (_TOKEN, _VALUE))
_NO_HEAD: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_BLANK: Final = b"\r\n\r\n"


class BadRequest(Exception):
    """Bytes that are no request, or one that is not served: the status of the refusal, and why."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.text, self.status = text, status


class RequestHead(NamedTuple):
    """A head that follows the grammar. Names of `headers` are in lower case. `length` is None for chunks."""

    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    length: int | None
    keeps_alive: bool
    expects_continue: bool
    upgrade: bytes

    def make_scope(self) -> dict[str, object]:
        """The members of an ASGI scope that follow from the head alone."""
        raw_path, _, query = self.target.partition(b"?")
        path = raw_path.decode("latin-1")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.version,
            "method": self.method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
        }


def find_head_end(data: bytes, start: int) -> int:
    """Where the body begins behind the head in `data`; 0 if the head is not complete. The first `start` bytes were
    looked at before.

    Raises BadRequest for a head that is too long, and for bytes that can't become a head any more.
    """
    end = data.find(_BLANK, max(start - 3, 0), MAX_HEAD_BYTES)
    if end >= 0:
        return end + 4
    if len(data) >= MAX_HEAD_BYTES:
        raise BadRequest(f"the head of a request may have {MAX_HEAD_BYTES} bytes", 431)
    # Said now, not at the deadline: such bytes never get a blank line that ends the head.
    if not start and _NO_HEAD.match(data):
        raise BadRequest("this is not an HTTP/1.1 request")
    if _BARE_LF.search(data, max(start - 1, 0)):
        raise BadRequest("a line of the head ends with LF alone, not with CR LF")
    return 0


def read_head(raw: bytes) -> RequestHead:
    """A complete head, read by the grammar. Raises BadRequest."""
    found = _REQUEST.fullmatch(raw)
    if found is None:
        raise BadRequest("this is not an HTTP/1.1 request")
    method, target, version, fields = found.groups()
    if version not in (b"1.1", b"1.0"):
        raise BadRequest(f"HTTP/{version.decode()} is not served; use HTTP/1.1", 505)
    headers, by_name = list[tuple[bytes, bytes]](), dict[bytes, bytes]()
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        headers.append((name, value))
        if name in by_name:
            if name in _ONLY_ONCE:
                raise BadRequest(f"the header {name.decode()} comes twice")
            by_name[name] += b"," + value
        else:
            by_name[name] = value
    if b"host" not in by_name and version == b"1.1":
        raise BadRequest("the header host is missing")
    connection = {each.strip() for each in by_name.get(b"connection", b"").lower().split(b",")}
    upgrade = by_name.get(b"upgrade", b"").strip().lower() if b"upgrade" in connection else b""
    return RequestHead(
        method.decode(),
        target,
        version.decode(),
        headers,
        _read_length(by_name, version),
        b"close" not in connection if version == b"1.1" else b"keep-alive" in connection,
        _expects_continue(by_name, version),
        upgrade,
    )


_ONLY_ONCE: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"content-type", b"expect"))


def _read_length(headers: dict[bytes, bytes], version: bytes) -> int | None:
    """How long the body is; None: it comes in chunks."""
    length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or version == b"1.0" or coding.lower() != b"chunked":
            raise BadRequest("Transfer-Encoding must be chunked, without Content-Length, in HTTP/1.1")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
        raise BadRequest("the header content-length is not a number")
    return int(length)


def _expects_continue(headers: dict[bytes, bytes], version: bytes) -> bool:
    expected = headers.get(b"expect")
    if expected is None or version == b"1.0":
        return False
    if expected.lower() != b"100-continue":
        raise BadRequest("the only expectation that is met is 100-continue", 417)
    return True


class LengthBody:
    """A body of a known length."""

    __slots__ = ("left", "is_complete", "overhead")

    def __init__(self, length: int) -> None:
        self.left, self.is_complete, self.overhead = length, length == 0, 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The part of the body in `data`, and what follows it."""
        part = data if len(data) <= self.left else data[: self.left]
        self.left -= len(part)
        self.is_complete = self.left == 0
        return part, data[len(part) :]


class ChunkedBody:
    """A body in chunks (RFC 9112 §7.1). Extensions and trailers are read, and count for nothing.

    `overhead` is how many bytes came since the last one that brought a part of the body.
    """

    __slots__ = ("is_complete", "overhead", "_left", "_stage", "_held")

    def __init__(self) -> None:
        self.is_complete, self.overhead = False, 0
        self._left, self._stage = 0, _SIZE
        self._held: bytes = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The parts of the body in `data`, joined, and what follows the last chunk. Raises BadRequest."""
        new, data, self._held = len(data), self._held + data, b""
        parts, at = list[bytes](), 0
        while not self.is_complete:
            if self._stage is _DATA:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._stage = _DATA_END
            elif self._stage is _DATA_END:
                if len(data) < at + 2:
                    _check_beginning(data[at:], b"\r\n")
                    break
                if data[at : at + 2] != b"\r\n":
                    raise BadRequest("a chunk does not end where its size says")
                at, self._stage = at + 2, _SIZE
            elif (after := self._read_line(data, at)) is None:
                break
            else:
                at = after
        if not self.is_complete:
            self._held, at = data[at:], len(data)
        body = b"".join(parts)
        self.overhead = 0 if body else self.overhead + new
        return body, data[at:]

    def _read_line(self, data: bytes, at: int) -> int | None:
        """Read the size of a chunk, or the trailers. Returns where they end; None if they are not complete."""
        if self._stage is _SIZE:
            end = data.find(b"\n", at, at + MAX_CHUNK_LINE_BYTES)
            if end < 0:
                if len(data) - at >= MAX_CHUNK_LINE_BYTES:
                    raise BadRequest(f"the size of a chunk may have {MAX_CHUNK_LINE_BYTES} bytes")
                return None
            size = _CHUNK_SIZE.fullmatch(data, at, end + 1)
            if size is None:
                raise BadRequest("the size of a chunk is not a hexadecimal number")
            self._left = int(size[1], 16)
            self._stage = _DATA if self._left else _TRAILER
            return end + 1
        end = at + 2 if data.startswith(b"\r\n", at) else data.find(_BLANK, at) + 4
        if end < 4 + at and end != at + 2:
            if len(data) - at > MAX_TRAILER_BYTES:
                raise BadRequest(f"the trailers of a request may have {MAX_TRAILER_BYTES} bytes", 431)
            return None
        if _TRAILERS.fullmatch(data, at, end) is None:
            raise BadRequest("the trailers of the request are not header fields")
        names = {line.partition(b":")[0].lower() for line in data[at:end].split(b"\r\n")}
        if not _ONLY_ONCE.isdisjoint(names):
            raise BadRequest("a header that says how a request is read must not be a trailer")
        self.is_complete = True
        return end


_SIZE, _DATA, _DATA_END, _TRAILER = "size", "data", "end of data", "trailer"


def _check_beginning(data: bytes, whole: bytes) -> None:
    if not whole.startswith(data):
        raise BadRequest("a chunk does not end where its size says")
