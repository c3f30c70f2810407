"""Bearer tokens on HTTP (RFC 6750): read from the Authorization header only, and asked for with WWW-Authenticate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal

LONGEST_TOKEN = 16 * 1024

# RFC 6750 §2.1: b64token. A header cannot carry any other token, so verifiers do not look at others.
_B64TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")

BearerError = Literal["invalid_request", "invalid_token", "insufficient_scope"]

# RFC 6750 §3.1. A caller without a token is told how to get one, and nothing more.
STATUS: dict[BearerError | None, int] = {
    None: 401,
    "invalid_request": 400,
    "invalid_token": 401,
    "insufficient_scope": 403,
}


class MalformedToken(Enum):
    """The header is meant to carry a bearer token, but none can be read. Answer 400 `invalid_request`."""

    MALFORMED = "malformed"


MALFORMED: Final = MalformedToken.MALFORMED


def is_token(text: str) -> bool:
    """Whether a header could carry this token, so that a verifier should look at it."""
    return len(text) <= LONGEST_TOKEN and _B64TOKEN.fullmatch(text) is not None


def bearer(authorization: Iterable[bytes]) -> str | MalformedToken | None:
    """The token in the values of a request's Authorization headers.

    None if there is none. Credentials of another scheme count as none.
    """
    values = list(authorization)
    if len(values) > 1:
        # It is unknown which of them a proxy has checked.
        return MALFORMED
    scheme, _, rest = values[0].decode("latin-1").strip(" \t").partition(" ") if values else ("", "", "")
    if scheme.lower() != "bearer":
        return None
    token = rest.strip(" ")
    return token if is_token(token) else MALFORMED


def challenge(
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
    said = ", ".join(f"{name}={quoted(value)}" for name, value in fields.items() if value)
    return f"Bearer {said}" if said else "Bearer"


def quoted(text: str) -> str:
    """An HTTP quoted-string. What is not printable ASCII becomes `?`, so no text can end the header."""
    return '"' + re.sub(r'(["\\])', r"\\\1", re.sub(r"[^ -~]", "?", text)) + '"'
