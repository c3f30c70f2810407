"""Heads of requests that came before: a client says the same each time, and what is known is not parsed again.

Two heads are the same if they are byte for byte, save the number of a Content-Length: so what one meant, the other
means. Only such are known whose body is counted and whose connection stays open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defserve.transports.asgi import WHOLE

KNOWN, LONGEST = 512, 4096

_END = b"\r\n\r\n"
_LENGTH = b"ength: "
_NAME = b"\r\ncontent-length: "

# What of a scope is each connection's, or each request's, own.
_OWN = frozenset(("headers", "client", "server", "scheme", "state", WHOLE))
# With these, the head alone does not say what to do.
_OTHERWISE = frozenset((b"transfer-encoding", b"upgrade", b"expect"))


class KnownHead:
    """What a head says, in a scope of ASGI without what is each connection's; and a note of the app's about it."""

    __slots__ = ("scope", "note", "_headers", "_length_at")

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = {key: value for key, value in scope.items() if key not in _OWN}
        self.note: Any = None
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self._length_at = [name for name, _ in self._headers].index(b"content-length")

    def headers(self, length: int) -> list[tuple[bytes, bytes]]:
        """Those of a request whose body has this length."""
        headers = self._headers.copy()
        headers[self._length_at] = (b"content-length", b"%d" % length)
        return headers


UNKNOWN: tuple[KnownHead | None, bytes] = (None, b"")


class KnownHeads:
    """The heads that are known. They are forgotten all at once when there are too many."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}

    def find(self, data: bytes) -> tuple[KnownHead | None, bytes]:
        """The head and the body of a request, if that is all there is in `data` and the head is known."""
        head, body = _parted(data)
        return self._known.get(head), body

    def learn(self, data: bytes, scope: Mapping[str, Any]) -> KnownHead | None:
        """Know the head of a request that was parsed, if `data` was that request and nothing else."""
        raw, body = _parted(data)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        lengths = [value for name, value in headers if name == b"content-length"]
        if not raw or lengths != [b"%d" % len(body)] or not _is_at_its_name(data):
            return None
        if scope["http_version"] != "1.1" or any(name in _OTHERWISE for name, _ in headers):
            return None
        if len(self._known) >= KNOWN:
            self._known.clear()
        head = self._known[raw] = KnownHead(scope)
        return head


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """The head, without the number of what may be its Content-Length, and the body; if the number says how long it is.

    To look for few signs in the same case is the quickest; whether it is the right place is seen once, on learning.
    """
    end = data.find(_END, 0, LONGEST)
    at = data.find(_LENGTH, 0, end) + 7
    if end < 0 or at < 7:
        return b"", b""
    stop, body = data.find(b"\r", at), data[end + 4 :]
    return (data[:at] + data[stop:end], body) if data[at:stop] == b"%d" % len(body) else (b"", b"")


def _is_at_its_name(data: bytes) -> bool:
    at = data.find(_LENGTH) + 7
    return data[:at].lower().endswith(_NAME)
