"""Where a server is reached: the address grammar, and what a client raises that is refused there. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from defserve.errors import PeerError, PeerGone, UsageError, did_you_mean

ADDRESS_FORMS = {
    "stdio": "stdio:",
    "http": "http://host:port/path",
    "https": "https://host:port/path",
    "ws": "ws://host:port/path",
    "wss": "wss://host:port/path",
    "unix": "unix:/path/to/socket",
}
DEFAULT_PORTS_BY_SCHEME = {"http": 80, "https": 443, "ws": 80, "wss": 443}

# What other frameworks call a transport: no address.
TRANSPORTS = frozenset({"http", "https", "sse", "streamable-http", "streamable_http", "ws", "websocket"})
TLS_SCHEMES = frozenset({"https", "wss"})


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. For unix sockets `host` is the path of the socket, and there is no `path`."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str, path: str = "") -> Address:
        """Raises UsageError that lists the forms. For a port alone, it shows the whole address, with `path`."""
        scheme, _, rest = text.partition(":")
        if scheme == "stdio" and not rest:
            return cls("stdio")
        if scheme == "unix" and rest.startswith("/"):
            return cls("unix", rest)
        if scheme in DEFAULT_PORTS_BY_SCHEME and rest.startswith("//"):
            return cls._network(scheme, rest[2:], text)
        if scheme == "sse" and rest.startswith("//"):
            _, slash, own = rest[2:].partition("/")
            at = f"http:{rest}" if slash and own else f"http:{rest.rstrip('/')}{path}"
            fix = f"write the whole address: {at}, with legacy_sse=True (--legacy-sse)"
            raise UsageError(f"cannot serve on {text!r}", fix=fix)
        if origin := _origin(text):
            raise UsageError(f"cannot serve on {text!r}", fix=f"write the whole address: {origin}{path}")
        if text in TRANSPORTS:
            raise UsageError(f"cannot serve on {text!r}", fix=f"write the whole address: http://127.0.0.1:8000{path}")
        forms = f"use one of: {', '.join(ADDRESS_FORMS.values())}"
        fix = did_you_mean(scheme, ADDRESS_FORMS, forms) if rest.startswith("/") else forms
        raise UsageError(f"cannot serve on {text!r}", fix=fix)

    @classmethod
    def _network(cls, scheme: str, rest: str, text: str) -> Address:
        authority, slash, path = rest.partition("/")
        host, colon, port = authority.rpartition(":") if not authority.endswith("]") else (authority, "", "")
        if not colon:
            host, port = authority, str(DEFAULT_PORTS_BY_SCHEME[scheme])
        if port.isdecimal() and (len(port) > 5 or int(port) > 65535):
            raise UsageError(f"cannot serve on {text!r}: there is no port {port[:20]}", fix="use a port up to 65535")
        if not host or not port.isdecimal() or "@" in authority:
            raise UsageError(f"cannot serve on {text!r}", fix=f"write it as {ADDRESS_FORMS[scheme]}")
        return cls(scheme, host.strip("[]"), int(port), slash + path)

    def __str__(self) -> str:
        if self.scheme in DEFAULT_PORTS_BY_SCHEME:
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"{self.scheme}://{host}:{self.port}{self.path}"
        return f"{self.scheme}:{self.host}"


def _origin(text: str) -> str | None:
    """The origin meant by a port alone, or by a host and a port."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or "/" in host:
        return None
    return f"http://{host or '127.0.0.1'}:{port}"


# -- What a client raises when HTTP refuses it: for statuses alone, and for challenges (RFC 6750 §3). No I/O.


# The `error` of a challenge → what is wrong. It is empty when no token was sent.
WORDS: Final[Mapping[str | None, str]] = {
    "": "wants a token",
    "invalid_token": "does not take this token",
    "insufficient_scope": "wants a token with more scopes",
}
_BEARER: Final = re.compile(r"bearer\b\s*", re.IGNORECASE)
# What a person can use of a challenge. `resource_metadata` is for clients, which have the whole `challenge`.
_SHOWN: Final = {"scope": "scope ", "error_description": ""}
_SHOWN_PARAMETER: Final = re.compile(r'\b(scope|error_description)="([^"]+)"', re.IGNORECASE)
_ERROR: Final = re.compile(r'\berror="?([a-z_]+)"?[, ]*')


class AddressUnreachable(PeerGone):
    """Nobody answered at an address. `was_sent` is false if there was no connection, so the request had no effects."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        self.was_sent = was_sent
        super().__init__(message)


class HttpRefusal(PeerError):
    """An HTTP error without a message of the protocol in it. `data` has the `status`."""


class SignInError(PeerError):
    """Signing in to a server failed. The message says at which step, why, and what helps. It has no secrets."""

    def __init__(self, problem: str, *, fix: str = "") -> None:
        self.problem, self.fix = problem, fix
        super().__init__(f"{problem}\n  fix: {fix}" if fix else problem)


class TokenNotRenewed(SignInError):
    """A token has ended, and its issuer does not give another one now. Later it may."""


class CredentialsRequired(HttpRefusal):
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
            rest = ", ".join(f"{_SHOWN[name.lower()]}{text}" for name, text in _SHOWN_PARAMETER.findall(challenge))
        text = f"{address} {wanted} (HTTP {status})"
        super().__init__(f"{text}: {rest}" if rest else text, data={"status": status, "challenge": challenge})
