"""How a request says where its body ends. A head that two readers could read in two ways is refused."""

from __future__ import annotations

from collections.abc import Iterable

VERSIONS = frozenset(("1.0", "1.1"))


class BadFraming(ValueError):
    """A head whose request has no clear end."""


def check_framing(version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Check a complete head. The names of `headers` are in lower case. Raises BadFraming (RFC 9112 §2.3, §6.1)."""
    if version not in VERSIONS:
        raise BadFraming(f"HTTP/{version} is not served")
    has_length, codings = False, list[bytes]()
    for name, value in headers:
        if name == b"transfer-encoding":
            codings.append(value)
        elif name == b"content-length":
            has_length = True
    if codings and (has_length or version == "1.0" or [each.lower() for each in codings] != [b"chunked"]):
        raise BadFraming("Transfer-Encoding must be chunked, without Content-Length, in HTTP/1.1")
