"""Which URLs may be trusted with keys and identities: https anywhere, http only on this machine."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

from defserve.errors import UsageError

_HTTP: Final = {"ws": "http", "wss": "https"}


def checked_url(url: str, what: str, *, query: bool = False) -> SplitResult:
    """The parts of an absolute URL that is safe and plain. Raises UsageError, with the URL called `what`."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _refusal(url, what, str(error)) from None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise _refusal(url, what, "it is not an absolute URL in ASCII")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{what} holds a user name or password", fix="leave them out of the URL")
    if "#" in url or ("?" in url and not query):
        raise _refusal(url, what, "it has a query or a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise _refusal(url, what, "only https is safe, except on this machine")
    return parts


def http_address(url: str) -> str:
    """The address at which one signs in to a server: that of a WebSocket with http(s), any other as it is."""
    scheme, mark, rest = url.partition("://")
    return f"{_HTTP.get(scheme.lower(), scheme)}{mark}{rest}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine. Asks no resolver."""
    from ipaddress import ip_address

    if host == "localhost":
        return True
    try:
        address = ip_address(host)
        # A socket for both families writes an address of IPv4 as one of IPv6.
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False


def _refusal(url: str, what: str, reason: str) -> UsageError:
    return UsageError(f"{what} cannot be {url!r}: {reason}", fix="give a URL such as https://example.com/mcp")
