"""DPoP proofs as good or as bad as a test wants, and tokens bound to their key."""

from __future__ import annotations

import time
import uuid
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

from defserve.auth.dpop import compute_jwk_thumbprint
from tests.auth.issuer import claims, jwk, private_key, raw, signed

KEY = private_key("ES256", "dpop")
PUBLIC = jwk(KEY, "ES256")
THUMBPRINT = compute_jwk_thumbprint(PUBLIC)


def bound_token(**changed: Any) -> str:
    return signed(claims(cnf={"jkt": THUMBPRINT}, **changed))


def proof(token: str, url: str, *, method: str = "POST", key: Any = KEY, header: Any = None, **changed: Any) -> str:
    """A good proof, with these claims changed; None leaves one out."""
    good = {
        "jti": str(uuid.uuid4()),
        "htm": method,
        "htu": url,
        "iat": int(time.time()),
        "ath": urlsafe_b64encode(sha256(token.encode()).digest()).rstrip(b"=").decode(),
    }
    said = {name: value for name, value in {**good, **changed}.items() if value is not None}
    return raw({"typ": "dpop+jwt", "alg": "ES256", "jwk": PUBLIC, **(header or {})}, said, key=key)
