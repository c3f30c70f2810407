"""Servers at an address: http(s):// or ws(s)://. The client is imported only when one connects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from defserve.errors import PeerError, PeerGone, UsageError

if TYPE_CHECKING:
    from defserve.host.client import Client
    from defserve.host.link import ClientAuth, Link, Resolve

HTTP: Final = ("http", "https")
WEBSOCKET: Final = ("ws", "wss")
OLDER_PATH: Final = "/sse"


def is_address(target: str) -> bool:
    """Whether `target` is the address of a server, rather than code to load."""
    return "://" in target


async def connect_url(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    resolve: Resolve | None = None,
    auth: ClientAuth | None = None,
) -> Link:
    """A link to the server at `url`, for `Client`. `token` is sent as a bearer token, `headers` as they are.

    `auth` gets a token when the server asks for one: `SignIn()`, `ClientCredentials(…)`.

    `resolve` gives the addresses that each connection may go to, and refuses others. It is for http addresses only.

    An http address whose path ends with `/sse` is tried as HTTP+SSE of 2024 first. Raises UsageError for any other kind
    of address, PeerError or PeerGone if a WebSocket or such a stream cannot be opened. Over Streamable HTTP nothing is
    sent before the first message.
    """
    if auth is not None and (token or "authorization" in map(str.lower, headers or {})):
        raise UsageError("both a token and `auth` were given", fix="give one of them")
    scheme = url.partition("://")[0].lower()
    authorizer = None if auth is None or scheme not in (*HTTP, *WEBSOCKET) else auth.authorizer(url)
    if scheme in HTTP:
        from defserve.host.links.http import HttpLink

        if urlsplit(url).path.rstrip("/").endswith(OLDER_PATH):
            from defserve.host.links.legacy_sse import LegacySseLink
            from defserve.transports.client_errors import Challenged

            try:
                return await LegacySseLink.connect(
                    url, headers=headers, token=token, resolve=resolve, authorizer=authorizer
                )
            except PeerError as refusal:
                if isinstance(refusal, Challenged | PeerGone):
                    raise
                # The path alone proves nothing: it is an endpoint of today's kind.
        return HttpLink(url, headers=headers, token=token, resolve=resolve, authorizer=authorizer)
    if scheme in WEBSOCKET and resolve is None:
        from defserve.host.links.websocket import WebSocketLink

        return await WebSocketLink.connect(url, headers=headers, token=token, authorizer=authorizer)
    raise UsageError(f"{url!r} is not an address this client knows", fix="use http://, https://, ws:// or wss://")


class Remote:
    """A server at an address, with the same verb as a server object: `async with Remote(url).connect() as client`."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        auth: ClientAuth | None = None,
    ) -> None:
        self.url, self._headers, self._token, self._auth = url, headers, token, auth

    @asynccontextmanager
    async def connect(self, version: str | None = None, **options: Any) -> AsyncGenerator[Client, None]:
        """A connected client; `version` and `options` are those of `Client`."""
        from defserve.host.client import Client

        link = await connect_url(self.url, headers=self._headers, token=self._token, auth=self._auth)
        async with Client(link, version=version, **options) as client:
            yield client
