"""The address of a caller behind a trusted proxy, from `X-Forwarded-For`. Each proxy appends the address it saw.

So the list is read from its end: the first address that is not a trusted proxy's is the caller's. What stands before
it was written by the caller, and says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

from defserve.errors import UsageError

VARIABLE: Final = "FORWARDED_ALLOW_IPS"
ON_THIS_MACHINE: Final = "127.0.0.1,::1"
EVERYBODY: Final = "*"
SCHEMES: Final = frozenset(("http", "https", "ws", "wss"))

Network = IPv4Network | IPv6Network
Scope = MutableMapping[str, Any]
Normal = Callable[[str], str | None]


class ForwardedAddresses:
    """Wraps an ASGI app. `normal` gives an address without port and brackets, or None for any other text.

    Proxies are trusted on this machine, on a unix socket, and at the addresses in `FORWARDED_ALLOW_IPS`.
    """

    def __init__(self, app: Any, normal: Normal) -> None:
        self._app, self._normal = app, normal
        self._proxies = _networks(os.environ.get(VARIABLE) or ON_THIS_MACHINE)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan" and self._is_proxy(scope.get("client")):
            hops, scheme = list[bytes](), b""
            for name, value in scope["headers"]:
                if name == b"x-forwarded-for":
                    hops += value.split(b",")
                elif name == b"x-forwarded-proto":
                    scheme = value
            if (address := self.caller([hop.decode("latin-1") for hop in hops])) is not None:
                scope["client"] = (address, 0)
            _set_scheme(scope, scheme.decode("latin-1").strip())
        await self._app(scope, receive, send)

    def caller(self, hops: list[str]) -> str | None:
        """The caller's address. None: the list does not say it, so the address of the connection counts."""
        found = None
        for hop in reversed(hops):
            if (found := self._normal(hop)) is None or self._proxies is None or not self._lists(found):
                return found
        return found

    def _is_proxy(self, client: tuple[str, int] | None) -> bool:
        if client is None or self._proxies is None:
            return True
        address = self._normal(client[0])
        return address is not None and self._lists(address)

    def _lists(self, address: str) -> bool:
        found = ip_address(address)
        return any(found in network for network in self._proxies or ())


def _set_scheme(scope: Scope, scheme: str) -> None:
    if scheme in SCHEMES:
        scope["scheme"] = scheme.replace("http", "ws") if scope["type"] == "websocket" else scheme


def _networks(text: str) -> list[Network] | None:
    """The trusted proxies; None for everybody. Raises UsageError."""
    listed = [part.strip() for part in text.split(",") if part.strip()]
    if EVERYBODY in listed:
        return None
    try:
        return [ip_network(part) for part in listed]
    except ValueError as error:
        raise UsageError(f"{VARIABLE}={text!r}: {error}", fix="list IP addresses and networks, with commas") from None
