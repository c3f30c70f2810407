"""Heads of earlier requests. A client sends the same head each time, so it is parsed once.

Two heads are the same if all bytes are equal, except the number in Content-Length. So they mean the same. A head is
learnt only if its body has a length and its connection stays open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defserve.serve.sockets import BUFFERED_REQUEST_KEY

KNOWN, MAX_HEAD_BYTES = 512, 4096

_END = b"\r\n\r\n"
_LENGTH = b"ength: "
_NAME = b"\r\ncontent-length: "

# Members of a scope that differ by connection or request.
_OWN = frozenset(("headers", "client", "server", "scheme", "state", BUFFERED_REQUEST_KEY))
# With one of these headers, the head alone does not decide how the request is read.
_OTHERWISE = frozenset((b"transfer-encoding", b"upgrade", b"expect"))


class CachedRequestHead:
    """A parsed head: its ASGI scope without the members that differ by connection, and the app's note about it."""

    __slots__ = ("scope", "note", "_headers", "_length_at", "_before", "_after")

    def __init__(self, data: bytes, scope: Mapping[str, Any]) -> None:
        """The head at the beginning of `data`, which was parsed as `scope`."""
        at = data.find(_LENGTH) + 7
        self._before, self._after = data[:at], data[data.find(b"\r", at) : data.find(_END) + 4]
        self.scope = {key: value for key, value in scope.items() if key not in _OWN}
        self.note: Any = None
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self._length_at = [name for name, _ in self._headers].index(b"content-length")

    def match(self, data: bytes) -> tuple[CachedRequestHead | None, bytes, bytes]:
        """As `RequestHeadCache.find`, for a connection whose last request had this head: nothing is searched."""
        if data.startswith(self._before):
            at = len(self._before)
            stop = data.find(b"\r", at)
            if data.startswith(self._after, stop):
                length, body = data[at:stop], data[stop + len(self._after) :]
                if length == b"%d" % len(body):
                    return self, length, body
        return NO_KNOWN_HEAD

    def headers(self, length: bytes) -> list[tuple[bytes, bytes]]:
        """The headers of a request whose body has this length."""
        headers = self._headers.copy()
        headers[self._length_at] = (b"content-length", length)
        return headers


NO_KNOWN_HEAD: tuple[CachedRequestHead | None, bytes, bytes] = (None, b"", b"")


class RequestHeadCache:
    """The known heads. When there are too many, all are forgotten."""

    def __init__(self) -> None:
        self._known: dict[bytes, CachedRequestHead] = {}
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
        if not raw or lengths != [length] or not _is_at_its_name(data):
            return None
        if scope["http_version"] != "1.1" or any(name in _OTHERWISE for name, _ in headers):
            return None
        if len(self._known) >= KNOWN:
            self._known.clear()
        head = self._known[raw] = CachedRequestHead(data, scope)
        return head


def _split_request(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The head without the number in its Content-Length, that number, and the body, if the body has that length.

    Searching for a few characters in one case is fastest. `learn` checks that they are in the right place.
    """
    end = data.find(_END, 0, MAX_HEAD_BYTES)
    at = data.find(_LENGTH, 0, end) + 7
    if end < 0 or at < 7:
        return b"", b"", b""
    stop, body = data.find(b"\r", at), data[end + 4 :]
    length = data[at:stop]
    return (data[:at] + data[stop:end], length, body) if length == b"%d" % len(body) else (b"", b"", b"")


def _is_at_its_name(data: bytes) -> bool:
    at = data.find(_LENGTH) + 7
    return data[:at].lower().endswith(_NAME)
