"""What servers and clients of OAuth write in the same way: challenges, trusted URLs, where metadata lies, Basic, PKCE.

A caller without a good enough token is answered with a status, WWW-Authenticate, and words (RFC 6750 §3). Clients read
it here as well (RFC 9110 §11.6.1): which schemes a server takes, and with which parameters. A client imports nothing
else of `auth`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, Literal, NamedTuple
from urllib.parse import SplitResult, quote, unquote_plus, urlsplit

from defserve.core import json_values
from defserve.errors import UsageError

BearerError = Literal["invalid_request", "invalid_token", "insufficient_scope"]
ProofError = Literal["invalid_dpop_proof", "use_dpop_nonce"]

# RFC 6750 §3.1. A caller without a token is told how to get one, and nothing more.
STATUS: dict[BearerError | None, int] = {
    None: 401,
    "invalid_request": 400,
    "invalid_token": 401,
    "insufficient_scope": 403,
}

TOKEN_HEADER_EXAMPLE = "Authorization: Bearer <token>"

WORDS: dict[BearerError | None, str] = {
    None: f"Unauthorized: this server wants a token. Send it as a header: {TOKEN_HEADER_EXAMPLE}",
    "invalid_request": (
        f"Bad request: there is no token to read in Authorization. Send one such header: {TOKEN_HEADER_EXAMPLE}"
    ),
    "invalid_token": "Unauthorized: this token is unknown, expired or revoked. Send another one",
    "insufficient_scope": "Forbidden: this token lacks a scope. Send one that has all of these",
}


@dataclass(frozen=True, slots=True)
class AuthDenial:
    """The caller is not let in: the status to answer with, the value of the WWW-Authenticate header, and why.

    `more` are further headers. If a token cannot be checked, there is no challenge: another token would not help.
    `cause` is for the operator's log, and never sent.
    """

    status: int
    challenge: str
    text: str
    more: tuple[tuple[str, str], ...] = ()
    cause: Exception | None = field(default=None, compare=False)

    def with_metadata_address(self, known: str, reached: str) -> AuthDenial:
        """The same, with the metadata at the address where clients reach it."""
        return replace(self, **{name: getattr(self, name).replace(known, reached) for name in ("challenge", "text")})


NO_BEARER_TOKEN_REASON: Final = "header: there is no token to read in Authorization"
"""Why a request with that header is refused, if its denial has no cause."""

UNAVAILABLE_DENIAL = AuthDenial(
    503, "", "Unavailable: tokens cannot be checked at the moment. Try again", (("retry-after", "2"),)
)


def make_bearer_denial(error: BearerError | None, scopes: Iterable[str], metadata_url: str) -> AuthDenial:
    """The refusal for an error. `metadata_url` is empty if clients cannot find out where to get a token."""
    needed = tuple(scopes)
    text = WORDS[error]
    if error == "insufficient_scope":
        text = f"{text}: {' '.join(needed)}"
    elif metadata_url:
        text = f"{text}. {metadata_url} says who issues tokens"
    return AuthDenial(STATUS[error], format_bearer_challenge(error, scopes=needed, metadata_url=metadata_url), text)


def make_proof_denial(error: ProofError, algorithms: Iterable[str], metadata_url: str, nonce: str) -> AuthDenial:
    """The refusal for a token whose proof is missing or not good (RFC 9449 §7.1, §9)."""
    text = {
        "invalid_dpop_proof": "Unauthorized: this token is bound to a key, and its proof (the header DPoP) is not good",
        "use_dpop_nonce": "Unauthorized: the proof (the header DPoP) needs the nonce that the header DPoP-Nonce gives",
    }[error]
    said = {"error": error, "algs": " ".join(sorted(algorithms)), "resource_metadata": metadata_url}
    fields = ", ".join(f"{name}={quote_header_value(value)}" for name, value in said.items() if value)
    return AuthDenial(401, f"DPoP {fields}", text, (("dpop-nonce", nonce),) if nonce else ())


def format_bearer_challenge(
    error: BearerError | None = None, *, description: str = "", scopes: Iterable[str] = (), metadata_url: str = ""
) -> str:
    """The value of WWW-Authenticate. `STATUS[error]` is the status it goes with.

    `scopes` are all that the operation needs, not only the missing ones: a client asks for exactly these.
    """
    fields = {
        "error": error or "",
        "error_description": description,
        "scope": " ".join(scopes),
        "resource_metadata": metadata_url,
    }
    said = ", ".join(f"{name}={quote_header_value(value)}" for name, value in fields.items() if value)
    return f"Bearer {said}" if said else "Bearer"


def quote_header_value(text: str) -> str:
    """An HTTP quoted-string. What is not printable ASCII becomes `?`, so no text can end the header."""
    return '"' + re.sub(r'(["\\])', r"\\\1", re.sub(r"[^ -~]", "?", text)) + '"'


# -- read by clients -------------------------------------------------------------------------------------
MAX_HEADER_LENGTH: Final = 16 * 1024

_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"

# One part of the header: a parameter, or the name of a scheme with what may follow it (a token68).
_PART: Final = re.compile(
    rf"[\s,]*(?:(?P<name>{_TOKEN})\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>{_TOKEN}))(?=\s*(?:,|$))"
    rf"|(?P<scheme>{_TOKEN})(?:\s+[A-Za-z0-9\-._~+/]+=*(?=\s*(?:,|$)))?)"
)
_ESCAPED: Final = re.compile(r"\\(.)")
_SCHEMES: Final = ("bearer", "dpop")


class OAuthChallenge(NamedTuple):
    """One scheme that a server takes, both it and the names of parameters in lower case."""

    scheme: str
    parameters: Mapping[str, str]
    takes_bearer: bool = False
    """Whether the server takes bearer tokens, too."""

    @property
    def error(self) -> str:
        """What is wrong with the token; empty if none was sent."""
        return self.parameters.get("error", "")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs."""
        return tuple(dict.fromkeys(self.parameters.get("scope", "").split()))


NO_CHALLENGE: Final = OAuthChallenge("", {})


def parse_challenges(header: str) -> list[OAuthChallenge]:
    """The challenges of a header, in order. What cannot be read ends them. Of a repeated parameter the first counts."""
    found: list[tuple[str, dict[str, str]]] = []
    at, text = 0, header[:MAX_HEADER_LENGTH]
    while (part := _PART.match(text, at)) is not None:
        at = part.end()
        if part["scheme"] is not None:
            found.append((part["scheme"].lower(), {}))
        elif found:
            value = part["plain"] if part["quoted"] is None else _ESCAPED.sub(r"\1", part["quoted"])
            found[-1][1].setdefault(part["name"].lower(), value)
    return [OAuthChallenge(*each) for each in found]


def parse_oauth_challenge(header: str) -> OAuthChallenge:
    """The challenge that asks for a token; `NO_CHALLENGE` if there is none. One that names an error is preferred."""
    asked = [each for each in parse_challenges(header) if each.scheme in _SCHEMES]
    if not asked:
        return NO_CHALLENGE
    found = next((each for each in asked if each.error), asked[0])
    return found._replace(takes_bearer=any(each.scheme == "bearer" for each in asked))


# -- Which URLs may be trusted with keys and identities: https anywhere, http only on this machine.


_HTTP: Final = {"ws": "http", "wss": "https"}


def check_oauth_url(url: str, what: str, *, query: bool = False) -> SplitResult:
    """The parts of an absolute URL that is safe and plain. Raises UsageError, with the URL called `what`."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _refusal(url, what, str(error)) from None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise _refusal(url, what, "it is not an absolute URL in ASCII")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{what} holds a user name or password", fix="leave them out of the URL")
    if "#" in url or ("?" in url and not query):
        raise _refusal(url, what, "it has a query or a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise _refusal(url, what, "only https is safe, except on this machine")
    return parts


def convert_to_http_url(url: str) -> str:
    """The address at which one signs in to a server: that of a WebSocket with http(s), any other as it is."""
    scheme, mark, rest = url.partition("://")
    return f"{_HTTP.get(scheme.lower(), scheme)}{mark}{rest}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine. Asks no resolver."""
    from ipaddress import ip_address

    if host == "localhost":
        return True
    try:
        address = ip_address(host)
        # A socket for both families writes an address of IPv4 as one of IPv6.
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False


def _refusal(url: str, what: str, reason: str) -> UsageError:
    return UsageError(f"{what} cannot be {url!r}: {reason}", fix="give a URL such as https://example.com/mcp")


# -- Where servers and issuers publish what one must know to sign in, and which servers a resource stands for.


RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
ISSUER_METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
OPENID_METADATA_PATH: Final = "/.well-known/openid-configuration"


def get_origin(url: str) -> str:
    """Scheme, host and port, as they are written."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def list_resource_metadata_paths(path: str) -> tuple[str, ...]:
    """The paths of the metadata of a server at `path`: that of RFC 9728 §3.1, then the root, as clients look."""
    below = path.rstrip("/")
    return (f"{RESOURCE_METADATA_PATH}{below}", RESOURCE_METADATA_PATH) if below else (RESOURCE_METADATA_PATH,)


def list_resource_metadata_urls(server: str) -> tuple[str, ...]:
    """The URLs of the metadata of a server, in the order to look."""
    return tuple(f"{get_origin(server)}{path}" for path in list_resource_metadata_paths(urlsplit(server).path))


def list_issuer_metadata_urls(issuer: str) -> tuple[str, ...]:
    """The URLs of the metadata of an issuer (RFC 8414 §3.1, OpenID Connect Discovery §4), in the order of MCP."""
    origin, path = get_origin(issuer), urlsplit(issuer).path.rstrip("/")
    return tuple(
        dict.fromkeys(
            (
                f"{origin}{ISSUER_METADATA_PATH}{path}",
                f"{origin}{OPENID_METADATA_PATH}{path}",
                f"{origin}{path}{OPENID_METADATA_PATH}",
            )
        )
    )


def is_token_resource_for(resource: str, server: str) -> bool:
    """Whether a token for `resource` is one for `server`: the same origin, and the same path or one above it.

    RFC 9728 §3.3 wants the URL itself. MCP's own SDKs take a path above as well, because a host may have many servers.
    """
    try:
        mine, theirs = urlsplit(server), urlsplit(resource)
        same = (mine.scheme, mine.hostname, mine.port) == (theirs.scheme, theirs.hostname, theirs.port)
    except ValueError:
        return False
    if not same or theirs.fragment or theirs.username is not None or (theirs.query and theirs.query != mine.query):
        return False
    below, above = (parts.path.rstrip("/") + "/" for parts in (mine, theirs))
    return below.startswith(above)


# -- HTTP Basic: a name and a password in the Authorization header (RFC 7617), and those of an OAuth client in it.


def encode_basic_auth(name: str, password: str) -> str:
    """The value of Authorization for a name without a colon, and a password."""
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"


def encode_client_basic_auth(id: str, secret: str) -> str:
    """The value of Authorization for a client of OAuth (RFC 6749 §2.3.1).

    Both are encoded as in a form first. A space becomes `%20`, which those read as well who know no `+`.
    """
    return encode_basic_auth(quote(id, safe=""), quote(secret, safe=""))


def decode_client_basic_auth(authorization: str) -> tuple[str, str]:
    """The id and the secret that `encode_client_basic_auth` was given. Raises ValueError for any other header."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise ValueError("not Basic")
    id, colon, secret = b64decode(rest.strip(), validate=True).decode().partition(":")
    if not colon:
        raise ValueError("no secret")
    return unquote_plus(id), unquote_plus(secret)


# -- PKCE (RFC 7636): who redeems a code is who asked for it.


def make_pkce_challenge(verifier: str) -> str:
    """The S256 challenge of a verifier (§4.2)."""
    return json_values.encode_base64url(sha256(verifier.encode()).digest())
