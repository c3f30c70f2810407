"""Finds the principal of a token. An invalid token has none; it is not an error. Unusable settings raise at once."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from defserve.auth.bearer import credential_of, is_token
from defserve.auth.principals import Principal, checked_scopes, is_scope, is_token_id
from defserve.auth.signing_keys import ASYMMETRIC, INSTALL, FixedKey, KeySource, checked_algorithms, fixed_key
from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_array, is_mapping

if TYPE_CHECKING:
    from defserve.auth.jwks import Fetch

log = logging.getLogger("defserve.auth")

LONGEST_KID = 256
_DATES = ("exp", "nbf", "iat")


@runtime_checkable
class TokenVerifier(Protocol):
    """Anything that finds the principal of a token."""

    async def verify(self, token: str) -> Principal | None:
        """The principal of the token, or None if the token is not valid here."""
        ...


class StaticTokens:
    """A fixed list of tokens, each with its principal: a name, a Principal, or `{"principal": …, "scopes": […]}`.

    It keeps digests only, so neither a dump nor a `repr` shows a token.
    """

    def __init__(self, tokens: Mapping[str, str | Principal | Mapping[str, Any]]) -> None:
        if not tokens:
            raise UsageError("StaticTokens({}) lets nobody in", fix='give tokens: {token: "alice"}')
        for place, token in enumerate(tokens, 1):
            if not is_token(token):
                raise UsageError(
                    f"token {place} of StaticTokens cannot be sent as a bearer token",
                    fix="use letters, digits and -._~+/ only, as python's secrets.token_urlsafe(32) does",
                )
        self._known = [(_digest(token), _named(_principal(value), token)) for token, value in tokens.items()]

    async def verify(self, token: str) -> Principal | None:
        """The principal of the token, or None. The time this takes does not show how close a guess came."""
        if not is_token(token):
            return None
        shown, found = _digest(token), None
        # All are compared, each in constant time, so the time does not show which one came close.
        for digest, principal in self._known:
            if hmac.compare_digest(digest, shown):
                found = principal
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _named(principal: Principal, token: str) -> Principal:
    return replace(principal, credential=credential_of(token))


def _principal(value: object) -> Principal:
    if isinstance(value, Principal) and value.kind == "token":
        return value
    if isinstance(value, str):
        return Principal(value)
    if is_mapping(value) and isinstance(value.get("principal"), str) and value.keys() <= {"principal", "scopes"}:
        return Principal(value["principal"], frozenset(checked_scopes(value.get("scopes", ()))))
    raise UsageError(
        f"a token of StaticTokens has a {type(value).__name__} that names no principal",
        fix='give a name, a Principal, or {"principal": "alice", "scopes": ["files:read"]}',
    )


class JWT:
    """Signed tokens of one issuer (RFC 7519, RFC 9068) for one audience.

    Give the issuer's key (`key`: PEM, or a shared secret with an HS algorithm) or the URL of its published keys
    (`jwks_url`). The audience, the issuer, the subject and the expiry are always checked. `sub` is the principal's id.
    Raises UsageError for settings that would accept nothing, or anything.
    """

    def __init__(
        self,
        *,
        audience: str | Iterable[str],
        issuer: str,
        key: str | bytes | None = None,
        jwks_url: str | None = None,
        algorithms: str | Iterable[str] = tuple(ASYMMETRIC),
        scopes_claim: str = "scope",
        leeway: float = 30,
        fetch: Fetch | None = None,
    ) -> None:
        self.audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        self.issuer, self.scopes_claim, self.leeway = issuer, scopes_claim, leeway
        self._check_settings()
        self.algorithms = checked_algorithms(algorithms)
        _require_pyjwt()
        self._keys = self._source(key, jwks_url, fetch)

    def _source(self, key: str | bytes | None, jwks_url: str | None, fetch: Fetch | None) -> KeySource:
        if key is not None and jwks_url is None:
            return FixedKey(fixed_key(key, self.algorithms))
        if key is not None or jwks_url is None:
            raise UsageError("JWT needs either key or jwks_url", fix="give one of the two")
        if not self.algorithms <= ASYMMETRIC.keys():
            raise UsageError("keys that jwks_url publishes cannot be secrets", fix="leave algorithms out")
        # Fetching keys needs more imports than a fixed key.
        from defserve.auth.jwks import KeySet

        return KeySet(jwks_url, self.algorithms, fetch=fetch)

    def _check_settings(self) -> None:
        if not self.issuer or not self.audiences or not all(self.audiences):
            raise UsageError(
                "JWT needs an issuer and an audience; otherwise tokens made for other servers would be accepted",
                fix="audience= is this server's public URL, issuer= the authorization server's",
            )
        if not 0 <= self.leeway <= 300:
            raise UsageError(f"JWT(leeway={self.leeway!r}) is out of range", fix="give 0 to 300 seconds")

    async def verify(self, token: str) -> Principal | None:
        """The principal that the claims name; None if anything is wrong with the token. Only the log says what."""
        if not is_token(token):
            return None
        try:
            claims = await self._claims(token)
        except Exception as error:
            # A stranger's bytes can make the libraries raise anything. The log says what it was.
            log.debug("token refused: %s", type(error).__name__)
            return None
        return None if claims is None else self._principal(claims, token)

    async def _claims(self, token: str) -> dict[str, Any] | None:
        """The claims of the token, after its signature and claims were verified. Raises what PyJWT raises."""
        import jwt

        header: dict[str, Any] = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if (
            algorithm not in self.algorithms
            or "crit" in header
            or not isinstance(kid, str | None)
            or len(kid or "") > LONGEST_KID
        ):
            return None
        key = await self._keys.find(kid, algorithm)
        if key is None:
            return None
        claims = jwt.decode(
            token,
            key.material,
            algorithms=[algorithm],
            audience=self.audiences,
            issuer=self.issuer,
            leeway=self.leeway,
            options={"require": ["exp", "aud", "iss", "sub"]},
        )
        return claims if all(_is_date(claims[name]) for name in _DATES if name in claims) else None

    def _principal(self, claims: dict[str, Any], token: str) -> Principal | None:
        subject = claims["sub"]
        if not isinstance(subject, str) or not is_token_id(subject):
            return None
        held = claims.get(self.scopes_claim, ())
        listed = held.split(" ") if isinstance(held, str) else held if is_array(held) else ()
        scopes = frozenset(scope for scope in listed if is_scope(scope))
        return Principal(subject, scopes, claims, credential=credential_of(token))


def _is_date(value: object) -> bool:
    """RFC 7519 §2 NumericDate. PyJWT would accept the text "1" and `true` as well."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_pyjwt() -> None:
    try:
        import cryptography
        import jwt
    except ImportError:
        raise UsageError("JWT needs PyJWT and cryptography, which are not installed", fix=INSTALL) from None
    del cryptography, jwt
