"""How HTTP says no, in words for whoever called: statuses without a message, and challenges (RFC 6750 §3). No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from defserve.errors import PeerError, PeerGone

# What `error` of a challenge says -> what is wrong; without one, no token came.
WORDS: Final[Mapping[str | None, str]] = {
    "": "wants a token",
    "invalid_token": "does not take this token",
    "insufficient_scope": "wants a token with more scopes",
}
_BEARER: Final = re.compile(r"bearer\b\s*", re.IGNORECASE)
_ERROR: Final = re.compile(r'\berror="?([a-z_]+)"?[, ]*')


class Unreachable(PeerGone):
    """Nobody answered at an address."""


class HttpRefusal(PeerError):
    """An error that is HTTP's own, and no message of the protocol's. `data` has the `status`."""


class Challenged(HttpRefusal):
    """A server that wants other credentials. `data` has the whole `challenge` too.

    `error` is what it says is wrong with the token, empty if none came, None if it wants no token at all.
    """

    def __init__(self, address: object, status: int, challenge: str) -> None:
        scheme, named = _BEARER.match(challenge), _ERROR.search(challenge)
        self.error = None if scheme is None else named[1] if named else ""
        wanted, rest = WORDS.get(self.error, "refuses these credentials"), challenge
        if scheme is not None and self.error in WORDS:
            rest = _ERROR.sub("", challenge[scheme.end() :])
        text = f"{address} {wanted} (HTTP {status})"
        super().__init__(f"{text}: {rest}" if rest else text, data={"status": status, "challenge": challenge})
