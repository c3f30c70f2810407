"""An http(s) address, cut into what a request needs of it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

PORTS: Final = {"http": 80, "https": 443}
# What may stand in a path or query as it is. `%` stays, so that nothing is quoted twice.
PLAIN: Final = "!$%&'()*+,-./:;=?@_~"
CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")


class Address:
    """Where requests go. Raises ValueError for what is not an http(s) address.

    origin     scheme, host and port: credentials never leave it
    target     path and query, as they stand in the first line of a request
    authority  the `Host` header
    userinfo   an `Authorization` header for the user and password in the address; None without them
    """

    __slots__ = ("url", "origin", "target", "authority", "userinfo", "_shown")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url.strip())
        scheme, host, port = parts.scheme, parts.hostname, parts.port
        if scheme not in PORTS or not host or CONTROL.search(host):
            raise ValueError("not an http(s) address")
        if not host.isascii():
            import idna

            host = idna.encode(host, uts46=True).decode()
        named = f"[{host}]" if ":" in host else host
        self.url = url
        self.origin = (scheme, host, port or PORTS[scheme])
        self.authority = named if self.origin[2] == PORTS[scheme] else f"{named}:{self.origin[2]}"
        path = quote(parts.path or "/", safe=PLAIN)
        self.target = f"{path}?{quote(parts.query, safe=PLAIN)}" if parts.query else path
        self.userinfo: str | None = None
        if parts.username is not None:
            from defserve.auth.oauth.basic import basic

            self.userinfo = basic(unquote(parts.username), unquote(parts.password or ""))
        self._shown = f"{scheme}://{named}{f':{port}' if port else ''}{path}"

    def __str__(self) -> str:
        """The address without the parts that may be secret: user, password and query."""
        return self._shown

    def join(self, reference: str) -> Address:
        """The address that a relative or whole reference means here. Raises ValueError."""
        return Address(urljoin(self.url, reference))
