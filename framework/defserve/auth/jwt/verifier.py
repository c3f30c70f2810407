"""Finds the principal of a signed token. An invalid token has none. Unusable settings raise at once."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from math import isfinite
from typing import TYPE_CHECKING, Any

from defserve.auth.bearer import credential_of, is_token
from defserve.auth.jwt.signing_keys import ASYMMETRIC, INSTALL, FixedKey, KeySource, checked_algorithms, fixed_key
from defserve.auth.jwt.verified_tokens import VerifiedToken, VerifiedTokens
from defserve.auth.principals import Principal, is_token_id, scopes_in
from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.auth.issuers.fetching import Fetch
    from defserve.auth.jwt.denied_tokens import DeniedTokens
    from defserve.stores.identity import ServerIdentity

log = logging.getLogger("defserve.auth")

LONGEST_KID = 256
GOOD_BYTES, BAD_BYTES = 4 * 1024 * 1024, 1024 * 1024
_DATES = ("exp", "nbf", "iat")
# RFC 9068 §2.1, and what most issuers write. Others are no access tokens: proofs of a key, notices of a logout.
_TYPES = ("jwt", "at+jwt")
# What only other tokens of the same issuer have: a notice of a logout; an ID token, which is for the client to read.
_NOT_OF_ACCESS = ("events", "at_hash", "c_hash")


class JWT:
    """Signed tokens of one issuer (RFC 7519, RFC 9068) for one audience.

    Give the issuer's key (`key`: PEM, or a shared secret with an HS algorithm) or the URL of its published keys
    (`jwks_url`). The audience, the issuer, the subject and the expiry are always checked. `sub` is the principal's id.
    A token ends at its `exp`, or when its `jti` is put on the list `denied`. `leeway` is how far ahead the issuer's
    clock may be: it counts for `nbf` and `iat`. Raises UsageError for settings that would accept nothing, or anything.
    """

    def __init__(
        self,
        *,
        audience: str | Iterable[str],
        issuer: str,
        key: str | bytes | None = None,
        jwks_url: str | None = None,
        algorithms: str | Iterable[str] = tuple(ASYMMETRIC),
        scopes_claim: str | Iterable[str] = "scope",
        leeway: float = 30,
        fetch: Fetch | None = None,
        denied: DeniedTokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        self.issuer, self.issuers, self.leeway = issuer, (issuer,), leeway
        self.scopes_claims = (scopes_claim,) if isinstance(scopes_claim, str) else tuple(scopes_claim)
        self._check_settings()
        self.algorithms = checked_algorithms(algorithms)
        _require_pyjwt()
        self._keys, self._denied, self._clock = self._source(key, jwks_url, fetch), denied, clock
        self._good, self._bad = VerifiedTokens(GOOD_BYTES), VerifiedTokens(BAD_BYTES)

    def _source(self, key: str | bytes | None, jwks_url: str | None, fetch: Fetch | None) -> KeySource:
        if key is not None and jwks_url is None:
            return FixedKey(fixed_key(key, self.algorithms))
        if key is not None or jwks_url is None:
            raise UsageError("JWT needs either key or jwks_url", fix="give one of the two")
        if not self.algorithms <= ASYMMETRIC.keys():
            raise UsageError("keys that jwks_url publishes cannot be secrets", fix="leave algorithms out")
        # Fetching keys needs more imports than a fixed key.
        from defserve.auth.jwt.jwks import KeySet

        return KeySet(jwks_url, self.algorithms, fetch=fetch)

    def _check_settings(self) -> None:
        if not self.issuer or not self.audiences or not all(self.audiences):
            raise UsageError(
                "JWT needs an issuer and an audience; otherwise tokens made for other servers would be accepted",
                fix="audience= is this server's public URL, issuer= the authorization server's",
            )
        if not 0 <= self.leeway <= 300:
            raise UsageError(f"JWT(leeway={self.leeway!r}) is out of range", fix="give 0 to 300 seconds")

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        if self._denied is not None:
            self._denied.bind_server(identity)

    async def verify(self, token: str) -> Principal | None:
        """The principal that the claims name; None if anything is wrong with the token. Only the log says what."""
        if not is_token(token):
            return None
        try:
            claims = await self._claims(token)
            if claims is None or not self._is_access_token(claims) or not self._is_current(claims):
                return None
            if self._denied is not None and not await self._denied.accepts(claims):
                return None
        except Exception as error:
            # A stranger's bytes can make the libraries raise anything. The log says what it was.
            log.debug("token refused: %s", type(error).__name__)
            return None
        return self._principal(claims, token)

    async def _claims(self, token: str) -> dict[str, Any] | None:
        """The claims of the token, if its signature is good and it is for us. Raises what PyJWT raises."""
        known = self._good.find(token) or self._bad.find(token)
        # The key must still be one of the issuer's.
        if known is not None and await self._keys.find(known.kid, known.algorithm) is known.key:
            return json.loads(known.claims) if known.claims else None
        import jwt

        header: dict[str, Any] = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if (
            algorithm not in self.algorithms
            or "crit" in header
            or str(header.get("typ", "JWT")).lower().removeprefix("application/") not in _TYPES
            or not isinstance(kid, str | None)
            or len(kid or "") > LONGEST_KID
        ):
            return None
        key = await self._keys.find(kid, algorithm)
        if key is None:
            return None
        try:
            claims = jwt.decode(
                token,
                key.material,
                algorithms=[algorithm],
                audience=self.audiences,
                issuer=self.issuer,
                options={
                    "require": ["exp", "aud", "iss", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidTokenError:
            self._bad.keep(token, VerifiedToken(kid, algorithm, key))
            raise
        self._good.keep(token, VerifiedToken(kid, algorithm, key, json.dumps(claims).encode()))
        return claims

    def _is_access_token(self, claims: dict[str, Any]) -> bool:
        # Keycloak says in `typ` which of its tokens it is.
        return not any(name in claims for name in _NOT_OF_ACCESS) and claims.get("typ", "Bearer") in ("Bearer", "DPoP")

    def _is_current(self, claims: dict[str, Any]) -> bool:
        """Whether it is time for a token. Its dates were verified with its signature."""
        if not all(_is_date(claims[name]) for name in _DATES if name in claims):
            return False
        now = self._clock()
        begins = max((claims[name] for name in ("nbf", "iat") if name in claims), default=now)
        return begins <= now + self.leeway and now < claims["exp"]

    def _principal(self, claims: dict[str, Any], token: str) -> Principal | None:
        subject = claims["sub"]
        if not isinstance(subject, str) or not is_token_id(subject):
            return None
        scopes = frozenset[str]().union(*(scopes_in(claims.get(name)) for name in self.scopes_claims))
        return Principal(subject, scopes, claims, credential=credential_of(token))


def _is_date(value: object) -> bool:
    """RFC 7519 §2 NumericDate. PyJWT would accept the text "1" and `true` as well."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _require_pyjwt() -> None:
    try:
        import cryptography
        import jwt
    except ImportError:
        raise UsageError("JWT needs PyJWT and cryptography, which are not installed", fix=INSTALL) from None
    del cryptography, jwt
