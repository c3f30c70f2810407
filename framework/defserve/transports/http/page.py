"""The page for a person who opens an address in a browser, or the sentence that there is none.

The page says what a client without a token is told. No credential of the browser is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import quote

from defserve.auth.authority import LONGEST_ADDRESS, stranger_at
from defserve.transports.asgi import Header, HeaderList, Scope
from defserve.transports.http.exchange import Exchange
from defserve.transports.http.gate import is_loopback_name
from defserve.transports.http.headers import Headers, wants_page
from defserve.transports.http.shaped import ShapedReply, answer_shaped
from defserve.transports.session_provider import SessionProvider
from defserve.wire.messages import Request

HTML: Final[Header] = (b"content-type", b"text/html; charset=utf-8")
VERBS: Final = frozenset(("GET", "HEAD"))
DOCS: Final = "/docs"

# A request with one of these came through a proxy, so its Host may not be what the browser asked for.
FORWARDING: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")

PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")
LONGEST_PREFIX: Final = 200

NO_PAGE: Final = b"This address is for MCP clients. There is no page for browsers here."
PLAINLY: Final = ((b"cache-control", b"no-store"), (b"vary", b"Accept"), (b"x-content-type-options", b"nosniff"))


@dataclass(frozen=True, slots=True)
class PageContent:
    """What the page says, for the address that clients connect to."""

    offer: object
    """The offer of a client that speaks nothing but the protocol itself."""
    listed: Callable[[str], tuple[Request, ShapedReply]]
    """The request whose answer is the page."""
    unlisted: Callable[[str], bytes]
    """The page of a server that tells nothing to who shows no token."""
    headers: HeaderList


@dataclass(frozen=True, slots=True)
class PageRules:
    """Who gets the page, and how it is made when the first browser asks.

    Unless it is shown `everywhere`, a browser gets it that asked for a loopback name, through no proxy.
    """

    everywhere: bool
    content: Callable[[], PageContent]


class PageMount:
    """Answers browsers at the endpoint, and at the paths beside it. `rules` None: there is no page."""

    def __init__(self, provider: SessionProvider, rules: PageRules | None, path: str, *, trusted_proxy: bool) -> None:
        self.provider, self.rules, self._trusted_proxy = provider, rules, trusted_proxy
        base = path.rstrip("/").rpartition("/")[0]
        self.paths = frozenset((base, f"{base}/", base + DOCS, *(("",) if path else ())))

    def is_asked(self, exchange: Exchange, scope: Scope) -> bool:
        """Whether a request is that of a browser that wants to show something to a person."""
        is_client = exchange.version is not None
        return scope.get("method") in VERBS and not is_client and wants_page(exchange.headers.get("accept"))

    def is_shown(self, exchange: Exchange) -> bool:
        """Whether this browser gets the page."""
        return self.rules is not None and (self.rules.everywhere or _is_direct(exchange.headers))

    async def show(
        self, exchange: Exchange, scope: Scope, path: str, start: Callable[[], Awaitable[None]], *, is_admitted: bool
    ) -> None:
        """Send the page of the endpoint at `path`. `is_admitted`: who shows no token may ask this server something."""
        content, address = self._content, self._address(exchange, scope, path)
        if not is_admitted:
            await exchange.respond(200, content.unlisted(address), content.headers, kind=HTML)
            return
        await start()
        client = scope.get("client")
        exchange.principal = stranger_at(client[0] if client and len(client[0]) <= LONGEST_ADDRESS else "")
        await answer_shaped(self.provider, exchange, content.offer, *content.listed(address))

    @cached_property
    def _content(self) -> PageContent:
        assert self.rules is not None
        return self.rules.content()

    async def refuse(self, exchange: Exchange, status: int) -> None:
        """Say that there is no page, and nothing else."""
        await exchange.respond(status, NO_PAGE, PLAINLY, plain=True)

    def _address(self, exchange: Exchange, scope: Scope, path: str) -> str:
        """Where clients connect, by the name that the browser knows."""
        scheme = "https" if scope.get("scheme") in ("https", "wss") else "http"
        prefix = exchange.headers.get("x-forwarded-prefix") or "" if self._trusted_proxy else ""
        if len(prefix) > LONGEST_PREFIX or PREFIX.fullmatch(prefix) is None:
            prefix = ""
        return f"{scheme}://{exchange.headers.get('host')}{quote(prefix.rstrip('/') + path)}"


def _is_direct(headers: Headers) -> bool:
    return is_loopback_name(headers.get("host")) and all(headers.get(name) is None for name in FORWARDING)
