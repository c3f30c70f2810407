"""What is known of a peer before it is tried: its package, its driver, the ways in, the features, its own faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.peers.packages import Package

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"


@dataclass(frozen=True)
class Way:
    transport: str
    version: str

    def __str__(self) -> str:
        return f"{self.transport} {self.version}".strip()


STDIO, HTTP, SSE = Way("stdio", HANDSHAKE), Way("http", HANDSHAKE), Way("sse", HANDSHAKE)
STDIO_NEW, HTTP_NEW = Way("stdio", STATELESS), Way("http", STATELESS)
# In the version that the peer chooses by itself.
STDIO_ANY, HTTP_ANY, SSE_ANY = Way("stdio", ""), Way("http", ""), Way("sse", "")
OLD_WAYS = (STDIO, HTTP, SSE)
ALL_WAYS = (*OLD_WAYS, STDIO_NEW, HTTP_NEW)
ANY_WAYS = (STDIO_ANY, HTTP_ANY, SSE_ANY)
# In the stateless era a cut connection cancels the call: there is nothing to resume.
ONLY_ON = {
    "progress ×200": (STDIO, STDIO_NEW, STDIO_ANY),
    "auth": (HTTP, HTTP_NEW, HTTP_ANY),
    "no token": (HTTP, HTTP_NEW, HTTP_ANY),
    "several servers": (HTTP, HTTP_NEW),
    "resumption": (HTTP, HTTP_ANY),
}


@dataclass(frozen=True)
class Fault:
    """What a peer does wrong, so that defserve cannot mend it, and how that was found out."""

    ways: tuple[Way, ...]
    features: tuple[str, ...]
    what: str
    proof: str


@dataclass(frozen=True)
class Peer:
    """`features` are tried wherever they make sense; `settings` join the plan that its driver gets.

    A peer that is a program, or a server, is driven by this project's own interpreter (`runs_here`).
    """

    name: str
    role: str
    package: Package
    driver: str
    ways: tuple[Way, ...]
    features: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    runs_here: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def features_on(self, way: Way) -> tuple[str, ...]:
        return tuple(name for name in self.features if name not in ONLY_ON or way in ONLY_ON[name])

    def fault(self, way: Way, feature: str) -> Fault | None:
        return next((f for f in self.faults if way in f.ways and feature in f.features), None)
