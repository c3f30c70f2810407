"""What an authorization server of our own serves beside the endpoint: requests and answers, without any transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

LARGEST_BODY = 64 * 1024


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """One request for a page or an endpoint. Header names are in lower case; several values are joined by `, `."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    address: str = ""
    """Where it comes from: one text for all addresses of a machine."""


@dataclass(frozen=True, slots=True)
class SiteAnswer:
    """The whole answer."""

    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


class AuthSite(Protocol):
    """Pages and endpoints. They decide themselves who may use them, and from which origin."""

    def serves(self, path: str) -> bool:
        """Whether a path, below that of the server, is one of them."""
        ...

    async def answer(self, request: SiteRequest) -> SiteAnswer:
        """Answers a request for one of them."""
        ...
