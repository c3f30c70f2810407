"""What a caller without a good enough token is answered (RFC 6750 §3): the status, and WWW-Authenticate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

BearerError = Literal["invalid_request", "invalid_token", "insufficient_scope"]

# RFC 6750 §3.1. A caller without a token is told how to get one, and nothing more.
STATUS: dict[BearerError | None, int] = {
    None: 401,
    "invalid_request": 400,
    "invalid_token": 401,
    "insufficient_scope": 403,
}


@dataclass(frozen=True, slots=True)
class Denied:
    """The caller is not let in: the status to answer with, and the value of the WWW-Authenticate header."""

    status: int
    challenge: str


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
