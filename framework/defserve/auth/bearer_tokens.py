"""Bearer tokens on HTTP (RFC 6750): read from the Authorization header only, and the principal that each one has."""

from __future__ import annotations

import hashlib
import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from defserve.auth.principals import Principal, parse_scopes
from defserve.base.peer_bounds import truncate_text
from defserve.base.redaction import escape_unprintable
from defserve.core.json_values import is_mapping
from defserve.errors import UsageError, explain_arguments

if TYPE_CHECKING:
    from defserve.stores.identity import ServerIdentity


MAX_TOKEN_LENGTH = 16 * 1024
MAX_QUOTED_LENGTH: Final = 64

# RFC 6750 §2.1: b64token. A header cannot carry any other token, so verifiers do not look at others.
_B64TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class MalformedToken(Enum):
    """The header is meant to carry a bearer token, but none can be read. Answer 400 `invalid_request`."""

    MALFORMED = "malformed"


MALFORMED_TOKEN: Final = MalformedToken.MALFORMED


def is_well_formed_token(text: str) -> bool:
    """Whether a header could carry this token, so that a verifier should look at it."""
    return len(text) <= MAX_TOKEN_LENGTH and _B64TOKEN.fullmatch(text) is not None


def make_credential_name(token: str) -> str:
    """A name for a token, which does not give it away."""
    return f"token:{sha256(token.encode()).hexdigest()[:32]}"


def extract_bearer_token(authorization: Iterable[bytes], scheme: str = "bearer") -> str | MalformedToken | None:
    """The token in the values of a request's Authorization headers.

    None if there is none. Credentials of another scheme count as none.
    """
    values = list(authorization)
    if len(values) > 1:
        # It is unknown which of them a proxy has checked.
        return MALFORMED_TOKEN
    said, _, rest = values[0].decode("latin-1").strip(" \t").partition(" ") if values else ("", "", "")
    if said.lower() != scheme:
        return None
    token = rest.strip(" ")
    return token if is_well_formed_token(token) else MALFORMED_TOKEN


# -- Finds the principal of a token. An invalid token has none; it is not an error. Unusable settings raise at once.


@runtime_checkable
class TokenVerifier(Protocol):
    """Anything that finds the principal of a token."""

    async def verify(self, token: str) -> Principal | None:
        """The principal of the token, or None if the token is not valid here.

        Raises nothing but IssuerUnavailable: the issuer cannot be asked, so the caller should try again.
        """
        ...


class TokenRefused(Exception):
    """A token is not good here. The operator's log says why; the caller is not told.

    `reason` begins with the check that failed: `exp: it expired at …`. `holder` names whose token it is, and is given
    only if that is proved. What a caller wrote stands in neither, unless `quote_untrusted` has made it harmless.
    """

    def __init__(self, reason: str, holder: Mapping[str, object] | None = None) -> None:
        self.reason = reason
        self.holder = {name: value for name, value in (holder or {}).items() if value}
        super().__init__(reason)

    def __str__(self) -> str:
        names = ", ".join(f"{name} {quote_untrusted(value)}" for name, value in self.holder.items())
        return f"{self.reason} ({names})" if names else self.reason


TOKEN_FIXES: Final[Mapping[str, str]] = {
    "exp": "get a new token from the issuer, or sign in again: defserve login URL",
    "nbf": "wait until then; if that moment has passed, set the clocks of the issuer and of this machine right",
    "iat": "wait until then; if that moment has passed, set the clocks of the issuer and of this machine right",
    "aud": "ask the issuer for a token for this server: resource= (or audience=) in the request is the server's URL; "
    "if the token is right, name its audience in the server: audience=…",
    "iss": "get a token from the issuer that this server trusts; if the token is right, change issuer=… of the server",
    "signature": "get the token from the issuer itself, unchanged; if it comes from there, the server has another key: "
    "check key=… or jwks_url=…",
    "kid": "get a new token; if the issuer has just changed its keys, try again in a minute",
    "keys": "check that the server reaches its issuer's keys, and try again",
    "alg": "have the issuer sign with an algorithm that the server takes; if the token is right, change algorithms=…",
    "typ": "send the access token that the issuer gives, not the ID token",
    "format": "check that the whole token is in the file, and that this server takes tokens of this kind",
    "crit": "have the issuer leave out `crit`: this server knows no extensions of signed tokens",
    "claims": "have the issuer write claims as RFC 7519 says: dates are numbers, names are texts",
    "sub": "get a token of a user; the issuer must write a sub that can be a caller's name",
    "jti": "have the issuer write an id (jti) into its tokens: this server can take tokens back",
    "revoked": "get a new token: sign in again (defserve login URL), or ask the issuer",
    "seal": "sign in again: defserve login URL",
    "user": "add the user to OAuthProxy(allow=…), or sign in as another",
    "unknown": "defserve keys list shows the keys that there are; make another: defserve keys create NAME --allow …",
    "expired": "make another key: defserve keys create NAME --allow … --expires 90d",
    "client": "let the client prove who it is by a secret or a key, or set TrustedIssuer(public_clients=True)",
    "tenant": "name the tenant of the provider: TrustedIssuer(…, tenant=…)",
    "resource": "have the provider write this server's URL into the assertion's resource",
    "scope": "ask the issuer for a token with this scope; after a sign-in: defserve login URL --scope …",
    "cnf": "get a token that is not bound to a key, or let the server check proofs: Auth(dpop=DPoP(…))",
    "proof": "send the token with its DPoP proof; a client such as SignIn(dpop=True) does",
}
"""The check that a token fails → how one gets a token that passes it."""


def find_token_fix(reason: str) -> str:
    """How to get a token that passes the check that a reason of `TokenRefused` begins with."""
    fix = "get another token from whoever runs this server"
    return TOKEN_FIXES.get(reason.partition(":")[0], fix)


def quote_untrusted(value: object) -> str:
    """What somebody else wrote, short and on one line, for a log."""
    return escape_unprintable(repr(truncate_text(str(value), MAX_QUOTED_LENGTH)))


def format_utc_time(seconds: float) -> str:
    """A moment in seconds since 1970, for a log: `2027-01-01 00:00:00Z`."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return "a time that no calendar has"


class ExplainingVerifier(ABC):
    """A verifier that says why it refuses a token. Ours all do."""

    async def verify(self, token: str) -> Principal | None:
        """See `TokenVerifier.verify`."""
        try:
            return await self.check_token(token) if is_well_formed_token(token) else None
        except TokenRefused:
            return None

    @abstractmethod
    async def check_token(self, token: str) -> Principal:
        """The principal of a well-formed token. Raises TokenRefused, or IssuerUnavailable."""


def get_token_check_function(verifier: TokenVerifier) -> Callable[[str], Awaitable[Principal]]:
    """How a verifier checks a well-formed token: see `ExplainingVerifier.check_token`."""
    # An author may have put a check of their own into `verify`, and then that one decides.
    if isinstance(verifier, ExplainingVerifier) and type(verifier).verify is ExplainingVerifier.verify:
        return verifier.check_token
    return partial(_check_unexplained, verifier)


async def _check_unexplained(verifier: TokenVerifier, token: str) -> Principal:
    if (found := await verifier.verify(token)) is None:
        raise TokenRefused(f"token: {type(verifier).__name__} does not accept it")
    return found


async def check_verifier_available(verifier: object) -> None:
    """Raises IssuerUnavailable if a verifier can say that it can check no token now; see `ApiKeys.check_ready`."""
    if (check := getattr(verifier, "check_ready", None)) is not None:
        await check()


def check_verifier_settings(verifier: object) -> None:
    """Raises UsageError if a verifier finds that it will never work; see `ApiKeys.check_settings`."""
    if (check := getattr(verifier, "check_settings", None)) is not None:
        check()


def bind_auth_part_to_server(part: object, identity: ServerIdentity) -> None:
    """Say which server a verifier, or something else of `Auth`, belongs to, if it stores or seals anything.

    Raises UsageError if it belongs to another one.
    """
    if (bind := getattr(part, "bind_server", None)) is not None:
        bind(identity)


async def close_auth_part(part: object) -> None:
    """Close what a part that belongs to a server has opened for it. What it is asked afterwards opens that again."""
    if hasattr(part, "bind_server") and (close := getattr(part, "close", None)) is not None:
        await close()


def get_revocation_follower(verifier: object) -> Callable[[], AsyncGenerator[str]] | None:
    """Follows the names of credentials that are revoked, where a verifier can; see `ApiKeys.revocations`."""
    return getattr(verifier, "revocations", None)


@explain_arguments
class StaticTokens(ExplainingVerifier):
    """A fixed list of tokens, each with its principal: a name, a Principal, or `{"principal": …, "scopes": […]}`.

    It keeps digests only, so neither a dump nor a `repr` shows a token.
    """

    def __init__(self, tokens: Mapping[str, str | Principal | Mapping[str, Any]]) -> None:
        if not isinstance(tokens, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - authors make mistakes
            raise UsageError(
                f"StaticTokens takes a dict, and got a {type(tokens).__name__}",
                fix='say whose each token is: StaticTokens({token: "alice"})',
            )
        if not tokens:
            raise UsageError("StaticTokens({}) lets nobody in", fix='give tokens: {token: "alice"}')
        for place, token in enumerate(tokens, 1):
            if not is_well_formed_token(token):
                raise UsageError(
                    f"token {place} of StaticTokens cannot be sent as a bearer token",
                    fix="use letters, digits and -._~+/ only, as python's secrets.token_urlsafe(32) does",
                )
        self._known = [
            (digest_token(token), replace(_principal(value), credential=make_credential_name(token)))
            for token, value in tokens.items()
        ]

    async def check_token(self, token: str) -> Principal:
        """The principal of the token. The time this takes does not show how close a guess came."""
        shown, found = digest_token(token), None
        # All are compared, each in constant time, so the time does not show which one came close.
        for digest, principal in self._known:
            if hmac.compare_digest(digest, shown):
                found = principal
        if found is None:
            raise TokenRefused("token: it is not on the list of StaticTokens")
        return found


def digest_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _principal(value: object) -> Principal:
    if isinstance(value, Principal) and value.kind == "token":
        return value
    if isinstance(value, str):
        return Principal(value)
    if is_mapping(value) and isinstance(value.get("principal"), str) and value.keys() <= {"principal", "scopes"}:
        return Principal(value["principal"], frozenset(parse_scopes(value.get("scopes", ()))))
    raise UsageError(
        f"a token of StaticTokens has a {type(value).__name__} that names no principal",
        fix='give a name, a Principal, or {"principal": "alice", "scopes": ["files:read"]}',
    )


# -- What a request shows to prove that its sender has a key.


class DpopProofRequest(NamedTuple):
    """A request as its proof must describe it: method, public URL, and the values of its DPoP headers."""

    method: str
    url: str
    proofs: Sequence[bytes]
