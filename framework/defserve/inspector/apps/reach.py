"""What a view may reach: the origins that its server named, without those that are not the server's to name."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from defserve.auth.urls import is_loopback

KEYWORDS: Final = ("'", "data:", "blob:")
NOTHING: Final = "'none'"


def is_near(host: str) -> bool:
    """Whether a host is this machine or one of its own network, as far as its name tells."""
    name = host.lower().rstrip(".")
    try:
        return not ip_address(name).is_global
    except ValueError:
        return "." not in name or name.endswith((".localhost", ".local", ".internal", ".lan", ".home.arpa"))


def is_remote(address: str) -> bool:
    """Whether a server is at an address elsewhere. One that this machine runs reaches all of it anyway."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https", "ws", "wss") and not is_loopback(parts.hostname or "")


def refused_by(ports: set[int], address: str) -> Callable[[str], bool]:
    """Which origins no view of the server at `address` reaches: our own `ports`; for a server elsewhere, what is near.

    A name can be pointed at this machine. So the inspector refuses by host name as well, and asks for its token.
    """
    remote = is_remote(address)

    def refused(source: str) -> bool:
        parts = urlsplit(source)
        try:
            port = parts.port
        except ValueError:
            return True
        return port in ports or (remote and is_near((parts.hostname or "").removeprefix("*.")))

    return refused


def narrowed(policy: str, refused: Callable[[str], bool]) -> tuple[str, list[str], list[str]]:
    """A `Content-Security-Policy` without the origins that are refused; those that it names; those that it lost."""
    directives: list[str] = []
    named: dict[str, bool] = {}
    for directive in policy.split("; "):
        name, *sources = directive.split(" ")
        kept: list[str] = []
        for source in sources:
            if source.startswith(KEYWORDS):
                kept.append(source)
                continue
            if source not in named:
                named[source] = not refused(source)
            if named[source]:
                kept.append(source)
        directives.append(" ".join((name, *(kept or [NOTHING]))))
    return (
        "; ".join(directives),
        [source for source, ok in named.items() if ok],
        [source for source, ok in named.items() if not ok],
    )
