"""Bearer tokens on HTTP (RFC 6750): read from the Authorization header only, and asked for with WWW-Authenticate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from hashlib import sha256
from typing import Final

LONGEST_TOKEN = 16 * 1024

# RFC 6750 §2.1: b64token. A header cannot carry any other token, so verifiers do not look at others.
_B64TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class MalformedToken(Enum):
    """The header is meant to carry a bearer token, but none can be read. Answer 400 `invalid_request`."""

    MALFORMED = "malformed"


MALFORMED: Final = MalformedToken.MALFORMED


def is_token(text: str) -> bool:
    """Whether a header could carry this token, so that a verifier should look at it."""
    return len(text) <= LONGEST_TOKEN and _B64TOKEN.fullmatch(text) is not None


def credential_of(token: str) -> str:
    """A name for a token, which does not give it away."""
    return f"token:{sha256(token.encode()).hexdigest()[:32]}"


def bearer(authorization: Iterable[bytes], scheme: str = "bearer") -> str | MalformedToken | None:
    """The token in the values of a request's Authorization headers.

    None if there is none. Credentials of another scheme count as none.
    """
    values = list(authorization)
    if len(values) > 1:
        # It is unknown which of them a proxy has checked.
        return MALFORMED
    said, _, rest = values[0].decode("latin-1").strip(" \t").partition(" ") if values else ("", "", "")
    if said.lower() != scheme:
        return None
    token = rest.strip(" ")
    return token if is_token(token) else MALFORMED
