"""DPoP (RFC 9449): a key of ours, and proofs that whoever sends a token has it."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any, Final
from urllib.parse import urlsplit

from defserve.errors import UsageError
from defserve.host.fields import Json
from defserve.wire import base64url

ALGORITHM: Final = "ES256"
TYPE: Final = "dpop+jwt"


class ProofKey:
    """A key pair for one credential. The private half leaves it only by `kept`."""

    def __init__(self, kept: Json | None = None) -> None:
        jwk = jose("jwk")
        self._key: Any = jwk.ECKey.import_key(kept) if kept else jwk.ECKey.generate_key("P-256")
        self._public: Json = self._key.as_dict(private=False)
        self._public.pop("kid", None)

    def __repr__(self) -> str:
        return "ProofKey(…)"

    @property
    def kept(self) -> Json:
        """The whole key, to be kept with the tokens that are bound to it."""
        return self._key.as_dict(private=True)

    def proof(self, method: str, url: str, *, token: str | None = None, nonce: str | None = None) -> str:
        """A proof for one request; `token` is what it sends, `nonce` what the receiver wants to see."""
        parts = urlsplit(url)
        claims: Json = {
            "jti": secrets.token_urlsafe(24),
            "htm": method,
            "htu": f"{parts.scheme}://{parts.netloc}{parts.path}",
            "iat": int(time.time()),
        }
        if token is not None:
            claims["ath"] = base64url.encode(hashlib.sha256(token.encode("ascii")).digest())
        if nonce is not None:
            claims["nonce"] = nonce
        header = {"typ": TYPE, "alg": ALGORITHM, "jwk": self._public}
        return jose("jwt").encode(header, claims, self._key, algorithms=[ALGORITHM])


def signed_assertion(key: str | bytes, algorithm: str, client_id: str, audience: str) -> str:
    """A JWT that proves who a client is (RFC 7523 §3), signed with its private key in PEM or JWK. Raises UsageError."""
    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "jti": secrets.token_urlsafe(24),
        "iat": now,
        "exp": now + 300,
    }
    kind = {"E": "ECKey", "R": "RSAKey", "P": "RSAKey"}.get(algorithm[:1])
    try:
        if kind is None or algorithm == "EdDSA":
            imported = jose("jwk").OKPKey.import_key(key)
        else:
            imported = getattr(jose("jwk"), kind).import_key(key)
        return jose("jwt").encode({"alg": algorithm}, claims, imported, algorithms=[algorithm])
    except (ValueError, TypeError, jose("errors").JoseError) as error:
        # Not the text of the error: it may quote the key.
        raise UsageError(
            f"the private key cannot sign with {algorithm} ({type(error).__name__})",
            fix="give the key as PEM, and the algorithm that it is for: algorithm='RS256' for RSA",
        ) from None


def jose(name: str) -> Any:
    """A module of joserfc. Raises UsageError without it."""
    from importlib import import_module

    try:
        return import_module(f"joserfc.{name}")
    except ImportError:
        raise UsageError(
            "this server wants signed requests, which needs joserfc", fix='pip install "defserve[oauth]"'
        ) from None
