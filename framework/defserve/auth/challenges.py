"""What a caller without a good enough token is answered (RFC 6750 §3): the status, WWW-Authenticate, and words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

BearerError = Literal["invalid_request", "invalid_token", "insufficient_scope"]
ProofError = Literal["invalid_dpop_proof", "use_dpop_nonce"]

# RFC 6750 §3.1. A caller without a token is told how to get one, and nothing more.
STATUS: dict[BearerError | None, int] = {
    None: 401,
    "invalid_request": 400,
    "invalid_token": 401,
    "insufficient_scope": 403,
}

HOW_TO_SEND = "Authorization: Bearer <token>"

WORDS: dict[BearerError | None, str] = {
    None: f"Unauthorized: this server wants a token. Send it as a header: {HOW_TO_SEND}",
    "invalid_request": f"Bad request: there is no token to read in Authorization. Send one such header: {HOW_TO_SEND}",
    "invalid_token": "Unauthorized: this token is unknown, expired or revoked. Send another one",
    "insufficient_scope": "Forbidden: this token lacks a scope. Send one that has all of these",
}


@dataclass(frozen=True, slots=True)
class Denied:
    """The caller is not let in: the status to answer with, the value of the WWW-Authenticate header, and why.

    `more` are further headers. If the issuer cannot be asked, there is no challenge: another token would not help.
    """

    status: int
    challenge: str
    text: str
    more: tuple[tuple[str, str], ...] = ()

    def naming(self, known: str, reached: str) -> Denied:
        """The same, with the metadata at the address where clients reach it."""
        return replace(self, **{name: getattr(self, name).replace(known, reached) for name in ("challenge", "text")})


UNAVAILABLE = Denied(
    503, "", "Unavailable: the issuer of this token cannot be asked at the moment. Try again", (("retry-after", "2"),)
)


def denial(error: BearerError | None, scopes: Iterable[str], metadata_url: str) -> Denied:
    """The refusal for an error. `metadata_url` is empty if clients cannot find out where to get a token."""
    needed = tuple(scopes)
    text = WORDS[error]
    if error == "insufficient_scope":
        text = f"{text}: {' '.join(needed)}"
    elif metadata_url:
        text = f"{text}. {metadata_url} says who issues tokens"
    return Denied(STATUS[error], challenge(error, scopes=needed, metadata_url=metadata_url), text)


def proof_denial(error: ProofError, algorithms: Iterable[str], metadata_url: str, nonce: str) -> Denied:
    """The refusal for a token whose proof is missing or not good (RFC 9449 §7.1, §9)."""
    text = {
        "invalid_dpop_proof": "Unauthorized: this token is bound to a key, and its proof (the header DPoP) is not good",
        "use_dpop_nonce": "Unauthorized: the proof (the header DPoP) needs the nonce that the header DPoP-Nonce gives",
    }[error]
    said = {"error": error, "algs": " ".join(sorted(algorithms)), "resource_metadata": metadata_url}
    fields = ", ".join(f"{name}={quoted(value)}" for name, value in said.items() if value)
    return Denied(401, f"DPoP {fields}", text, (("dpop-nonce", nonce),) if nonce else ())


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
