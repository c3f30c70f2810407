"""The one place that connects. It connects to this machine only, and refuses every other address.

`watch_connections` does the same for every library in this process, so that no attack can leave by a side door.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

PATIENCE = 10.0


class NotLoopback(Exception):
    """Somebody tried to connect to another machine."""


@dataclass(frozen=True)
class Place:
    """Where a server listens: a loopback address and port, or the path of a unix socket."""

    host: str
    port: int = 0
    source: str | None = None
    """The address to connect from; every address of 127.0.0.0/8 is this machine."""

    @property
    def is_unix(self) -> bool:
        return self.host.startswith("/")

    @property
    def authority(self) -> str:
        return "localhost" if self.is_unix else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether a host is an address of this machine. Names are not: somebody else decides what they mean."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def connect(place: Place, *, patience: float = PATIENCE, receive_buffer: int | None = None) -> socket.socket:
    """A connection to this machine. Raises NotLoopback for any other place."""
    if not place.is_unix and not is_loopback(place.host):
        raise NotLoopback(f"{place.host} is not a loopback address")
    made = socket.socket(socket.AF_UNIX if place.is_unix else _family(place.host), socket.SOCK_STREAM)
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(patience)
    if place.source is not None:
        made.bind((place.source, 0))
    try:
        made.connect(place.host if place.is_unix else (place.host, place.port))
    except OSError:
        made.close()
        raise
    return made


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def watch_connections() -> None:
    """From now on, raise NotLoopback wherever this process connects or sends to another machine."""
    sys.addaudithook(_watch)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        return
    address = arguments[-1]
    if isinstance(address, tuple) and address and not is_loopback(str(address[0])):
        raise NotLoopback(f"{event} to {address[0]}, which is not a loopback address")
