"""Who gets in. Other users of this machine, pages of other origins and names that were rebound to us do not.

The token is in the address that was printed. Two things follow from it:

- A page is loaded with the token in its query, or later with a cookie that such a load has set. The cookie opens the
  files of the page and nothing else: browsers send cookies to every port of a host, so another server on this machine
  may see it.
- The socket, and with it everything about the server, needs the token itself, as a subprotocol of its handshake. It is
  in no URL then, and a socket without it is refused before it is open. The page keeps it in `sessionStorage`, which
  belongs to one tab and one origin, port included.

A browser that defserve starts is not given the token: every user of this machine can read the arguments of a process.
It gets a ticket, which is exchanged for the token once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import parse_qs

NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
SUBPROTOCOL: Final = "defserve-inspector"
TOKEN_PROTOCOL: Final = "token."
OWN_SITES: Final = (None, "none", "same-origin")
LONGEST_QUERY: Final = 2_048
TICKET_SECONDS: Final = 60.0


class Refusal(NamedTuple):
    """An HTTP status, and what to tell."""

    status: int
    text: str


NO_TOKEN: Final = Refusal(401, "This page needs the token of its address. Open the address that defserve printed.")
WRONG_HOST: Final = Refusal(421, "The inspector does not answer for this host name.")
WRONG_ORIGIN: Final = Refusal(403, "The inspector does not answer pages of other origins.")


class Access:
    """The rules of one inspector. `port` is known once it listens."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.port = 0
        self._ticket: tuple[str, float] | None = None
        self._page_key = sha256(b"page of " + self.token.encode()).hexdigest()

    @property
    def cookie(self) -> str:
        """The header that lets a browser load the page again. A name for each port: cookies know no ports."""
        return f"{self._cookie_name}={self._page_key}; HttpOnly; SameSite=Strict; Path=/"

    def page(self, headers: Mapping[str, str], query: str) -> Refusal | None:
        """Why a request for a file of the page is refused; None if it may pass."""
        if refusal := self._place(headers):
            return refusal
        if headers.get("sec-fetch-site") not in OWN_SITES:
            return WRONG_ORIGIN
        return None if self.has_token(query) or self._has_cookie(headers.get("cookie", "")) else NO_TOKEN

    def socket(self, headers: Mapping[str, str], protocols: list[str]) -> Refusal | None:
        """Why a socket is refused; None if it may be opened. A page of our own always says its Origin."""
        if refusal := self._place(headers):
            return refusal
        if headers.get("origin") != f"http://{headers['host']}":
            return WRONG_ORIGIN
        given = [one.removeprefix(TOKEN_PROTOCOL) for one in protocols if one.startswith(TOKEN_PROTOCOL)]
        if SUBPROTOCOL not in protocols or len(given) != 1:
            return NO_TOKEN
        return None if compare_digest(given[0].encode(), self.token.encode()) else NO_TOKEN

    def new_ticket(self) -> str:
        """What opens the page once, within a minute."""
        ticket = secrets.token_urlsafe(32)
        self._ticket = ticket, time.monotonic() + TICKET_SECONDS
        return ticket

    def spend(self, headers: Mapping[str, str], query: str) -> bool:
        """Whether a request has the ticket. It is spent then."""
        if self._ticket is None or self._place(headers) or headers.get("sec-fetch-site") not in OWN_SITES:
            return False
        ticket, until = self._ticket
        if not _has(query, "ticket", ticket):
            return False
        self._ticket = None
        return time.monotonic() < until

    def has_token(self, query: str) -> bool:
        """Whether a query string has the token."""
        return _has(query, "token", self.token)

    @property
    def _cookie_name(self) -> str:
        return f"defserve-inspector-{self.port}"

    def _place(self, headers: Mapping[str, str]) -> Refusal | None:
        host = headers.get("host", "").lower()
        return None if host in {f"{name}:{self.port}" for name in NAMES} else WRONG_HOST

    def _has_cookie(self, text: str) -> bool:
        try:
            found = SimpleCookie(text).get(self._cookie_name)
        except CookieError:
            return False
        return found is not None and compare_digest(found.value.encode(), self._page_key.encode())


def _has(query: str, name: str, secret: str) -> bool:
    if len(query) > LONGEST_QUERY:
        return False
    given = parse_qs(query).get(name, [])
    return len(given) == 1 and compare_digest(given[0].encode(), secret.encode())
