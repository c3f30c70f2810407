"""ID tokens (OpenID Connect Core §3.1.3.7): who has signed in, said to the application that asked."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from typing import Any

from defserve.auth.issuers.discovery import metadata_urls
from defserve.auth.issuers.fetching import Fetch, IssuerUnavailable
from defserve.auth.jwt.jwks import KeySet
from defserve.auth.jwt.oidc import published_keys
from defserve.auth.jwt.signing_keys import ASYMMETRIC

log = logging.getLogger("defserve.auth")


class IdTokens:
    """The ID tokens of one issuer for one application."""

    def __init__(self, issuer: str, client_id: str, *, fetch: Fetch, clock: Callable[[], float] = time.time) -> None:
        self._issuer, self._client_id, self._clock = issuer, client_id, clock

        async def keys(url: str) -> bytes:
            return await published_keys(issuer, fetch)

        self._keys = KeySet(metadata_urls(issuer)[0], frozenset(ASYMMETRIC), fetch=keys)

    async def verify(self, token: str, nonce: str, *, is_renewal: bool = False) -> dict[str, Any] | None:
        """The claims; None if the token is not good, or was not made for the request with this nonce.

        That of a renewal may have no nonce (OpenID Connect Core §12.2).
        Raises IssuerUnavailable if there are no keys to tell by.
        """
        import jwt

        try:
            header: dict[str, Any] = jwt.get_unverified_header(token)
            key = await self._keys.find(header.get("kid"), str(header.get("alg")))
            if not self._keys.has_keys:
                raise IssuerUnavailable(f"the keys of {self._issuer} cannot be read")
            if key is None or "crit" in header:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key.material,
                algorithms=[header["alg"]],
                audience=self._client_id,
                issuer=self._issuer,
                options={"require": ["exp", "iat", "aud", "iss", "sub"], "verify_exp": False, "verify_iat": False},
            )
            is_current = claims["iat"] - 60 <= self._clock() < claims["exp"] + 60
            # With several audiences, `azp` says which of them asked.
            is_ours = claims.get("azp", self._client_id) == self._client_id
            is_asked = (is_renewal and "nonce" not in claims) or hmac.compare_digest(
                str(claims.get("nonce")).encode(), nonce.encode()
            )
        except IssuerUnavailable:
            raise
        except Exception as error:
            log.warning("an ID token is refused: %s", type(error).__name__)
            return None
        return claims if is_current and is_ours and is_asked else None
