"""The client's side of a local token: finds the key for an address."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from defserve.auth.authority import canonical_address
from defserve.auth.local_token.files import Place, keep_key, read_key
from defserve.auth.urls import is_loopback

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class LocalAddress(NamedTuple):
    """An address whose server knows the key. `url` names the IP address for which the key was made."""

    url: str
    key: str


def local_address(url: str, *, keep: bool = False) -> LocalAddress | None:
    """The address with its key, if a server of this user runs there and published one.

    With `keep`, servers that start there later will have the same key. A name is replaced by the address for which the
    key was made: another user's server may listen at the other addresses of that name.
    """
    if os.name != "posix":
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if parts.scheme not in _PORTS or "@" in parts.netloc or not is_loopback(host):
        return None
    for place in _places(host, port):
        if (key := keep_key(place) if keep else read_key(place)) is not None:
            return LocalAddress(urlunsplit(parts._replace(netloc=_authority(place))), key)
    return None


def with_local_key(url: str, token: str | None, headers: Mapping[str, str]) -> tuple[str, str | None]:
    """The address to connect to, and the token to show there: the given one, or else the key for that address."""
    if token is not None or "authorization" in map(str.lower, headers):
        return url, token
    return local_address(url) or (url, None)


def _places(host: str, port: int) -> list[Place]:
    if (address := canonical_address(host)) is not None:
        return [(address, port)]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = dict.fromkeys(str(place[4][0]) for place in found)
    return [(address, port) for address in addresses if is_loopback(address)]


def _authority(place: Place) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
