"""The head of a response: its status line and headers. Parsed strictly, since it decides where the response ends."""

from __future__ import annotations

import re
from typing import Final

from defserve.host.links.http_client.errors import Broken

LONGEST_HEAD: Final = 64 * 1024

STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (.*))?")
NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Nothing may hide in a header: neither control characters nor a line ending that others read differently.
FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
SEPARATORS: Final = {"set-cookie": "\n"}
"""A cookie may have commas in it, so cookies are joined by what no header can have."""


class ResponseHead:
    """`headers` has lower-case names. A header that came several times has its values joined by commas."""

    __slots__ = ("status", "reason", "headers", "minor")

    def __init__(self, status: int, reason: str, headers: dict[str, str], minor: int) -> None:
        self.status, self.reason, self.headers, self.minor = status, reason, headers, minor


class HeadParser:
    """Parses the heads of one connection. Many of them are the same as the one before."""

    __slots__ = ("_data", "_head")

    def __init__(self) -> None:
        self._data = b""
        self._head: ResponseHead | None = None

    def __call__(self, data: bytes) -> ResponseHead:
        """See `parse_head`. The result may be shared, so it is not to be changed."""
        if self._head is None or data != self._data:
            self._head = parse_head(data)
            self._data = data
        return self._head


def parse_head(data: bytes) -> ResponseHead:
    """The head whose lines these are, without the empty line that ends it. Raises Broken."""
    text = data.decode("latin-1")
    if FORBIDDEN.search(text):
        raise Broken("the head of the response has control characters")
    first, *lines = text.split("\n")
    status = STATUS_LINE.fullmatch(first.rstrip("\r"))
    if status is None:
        raise Broken(f"the response is not HTTP/1.1: {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or NAME.fullmatch(name) is None:
            raise Broken(f"the response has a header that is not one: {line[:60]!r}")
        name, value = name.lower(), value.strip(" \t\r")
        headers[name] = f"{headers[name]}{SEPARATORS.get(name, ', ')}{value}" if name in headers else value
    return ResponseHead(int(status[2]), status[3] or "", headers, int(status[1]))
