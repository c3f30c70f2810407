"""What a client raises when HTTP refuses it: for statuses alone, and for challenges (RFC 6750 §3). No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from defserve.errors import PeerError, PeerGone

# The `error` of a challenge → what is wrong. It is empty when no token was sent.
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
    """An HTTP error without a message of the protocol in it. `data` has the `status`."""


class SignInError(PeerError):
    """Signing in to a server failed. The message says at which step, why, and what helps. It has no secrets."""

    def __init__(self, problem: str, *, fix: str = "") -> None:
        self.problem, self.fix = problem, fix
        super().__init__(f"{problem}\n  fix: {fix}" if fix else problem)


class NotRenewed(SignInError):
    """A token has ended, and its issuer does not give another one now. Later it may."""


class Challenged(HttpRefusal):
    """The server wants other credentials. `data` has the whole `challenge` too.

    `error` says what is wrong with the token. It is empty if no token was sent, None if the server wants no token.
    Of a WebSocket, `headers` are those of the refusal, and `peers` the IP addresses that the server was reached at.
    """

    def __init__(
        self,
        address: object,
        status: int,
        challenge: str,
        headers: Mapping[str, str] | None = None,
        peers: Collection[str] = (),
    ) -> None:
        self.headers, self.peers = headers or {}, peers
        scheme, named = _BEARER.match(challenge), _ERROR.search(challenge)
        self.error = None if scheme is None else named[1] if named else ""
        wanted, rest = WORDS.get(self.error, "refuses these credentials"), challenge
        if scheme is not None and self.error in WORDS:
            rest = _ERROR.sub("", challenge[scheme.end() :])
        text = f"{address} {wanted} (HTTP {status})"
        super().__init__(f"{text}: {rest}" if rest else text, data={"status": status, "challenge": challenge})
