"""Cuts the bytes of a connection into the head and the body of one response. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from defserve.host.links.http_client.errors import Broken
from defserve.host.links.http_client.head import LONGEST_HEAD, ResponseHead, parse_head

END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
LONGEST_END: Final = 4
LONGEST_LINE: Final = 4096
"""Of the line that says the size of a chunk."""
MOST_CHUNKS: Final = 4096
"""Tiny ones in what is read at once. A chunk of one byte costs as much as a long one, and others wait meanwhile."""
TINY: Final = 16
SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
LENGTH: Final = re.compile(r"[0-9]{1,15}")
WITHOUT_BODY: Final = frozenset((204, 304))


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
        """The part of the body that is in `data`. Raises Broken if it is not HTTP."""
        if self.head is None:
            data = self._take_head(data)
            if self.head is None:
                return b""
        if self._next is Part.LENGTH:
            return self._take_length(data)
        return data if self._next is Part.UNTIL_END else self._take_chunks(data)

    def end(self) -> None:
        """The server closed its side. Raises Broken if the response is not whole."""
        if self._next is Part.UNTIL_END:
            self.over = True
        elif not self.over:
            raise Broken("the server closed the connection " + ("before it answered" if self.head is None else "early"))

    def _take_head(self, data: bytes) -> bytes:
        """Read the head. What follows it is given back."""
        searched = max(0, len(self._rest) - LONGEST_END)
        data = self._rest + data if self._rest else data
        while True:
            found = END_OF_HEAD.search(data, searched)
            size = found.end() if found else len(data)
            if self._heads + size > LONGEST_HEAD:
                raise Broken(f"the head of the response has more than {LONGEST_HEAD} bytes")
            if found is None:
                self._rest = data
                return b""
            head, data, searched = self._parse(data[: found.start()]), data[size:], 0
            if head.status >= 200:
                break
            if head.status == 101:
                raise Broken("the server wants to speak another protocol")
            # Early news of the same response. They count, so that they cannot go on for ever.
            self._heads += size
        self._rest, self._heads = b"", 0
        self.head = head
        self._begin_body(head)
        return data

    def _begin_body(self, head: ResponseHead) -> None:
        headers = head.headers
        connection, coding, given = map(headers.get, ("connection", "transfer-encoding", "content-length"))
        length = None if given is None else _length(given)
        self.reusable = head.minor == 1 and (connection is None or "close" not in connection.lower())
        if head.status in WITHOUT_BODY:
            length, coding = 0, None
        if coding is not None:
            if coding.lower() != "chunked":
                raise Broken(f"the response is encoded as {coding[:60]!r}, which was not asked for")
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
            end = data.find(b"\n", at, at + LONGEST_LINE)
            if end < 0:
                if size - at >= LONGEST_LINE:
                    raise Broken(f"the response has a line of more than {LONGEST_LINE} bytes around a chunk")
                self._rest = data[at:]
                break
            self._line(data[at:end].removesuffix(b"\r"))
            at = end + 1
            if len(parts) > MOST_CHUNKS and at < len(parts) * TINY:
                raise Broken(f"the response comes in chunks of less than {TINY} bytes")
        if self.over and at < size:
            self.reusable = False
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _line(self, line: bytes) -> None:
        """A line around the chunks: the size of the next one, the end of the last one, or a trailer."""
        if self._next is Part.CHUNK_END:
            if line:
                raise Broken("the response has a chunk that is longer than it says")
            self._next = Part.CHUNK_SIZE
        elif self._next is Part.CHUNK_SIZE:
            number = line.partition(b";")[0].strip(b" \t")
            if SIZE.fullmatch(number) is None:
                raise Broken(f"the response has a chunk without a size: {line[:60]!r}")
            self._left = int(number, 16)
            self._next = Part.CHUNK if self._left else Part.TRAILER
        else:
            self._heads += len(line)
            if self._heads > LONGEST_HEAD:
                raise Broken(f"the response ends with more than {LONGEST_HEAD} bytes of headers")
            self.over = not line


def _length(given: str) -> int:
    """The one length that all `Content-Length` headers give."""
    lengths = {each.strip() for each in given.split(",")} if "," in given else {given}
    if len(lengths) != 1 or LENGTH.fullmatch(length := lengths.pop()) is None:
        raise Broken(f"the response has no clear length: {given[:60]!r}")
    return int(length)
