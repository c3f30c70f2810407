"""What a caller without a good enough token is answered (RFC 6750 §3): the status, WWW-Authenticate, and words.

Clients read it here as well (RFC 9110 §11.6.1): which schemes a server takes, and with which parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

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

    `more` are further headers. If a token cannot be checked, there is no challenge: another token would not help.
    """

    status: int
    challenge: str
    text: str
    more: tuple[tuple[str, str], ...] = ()

    def naming(self, known: str, reached: str) -> Denied:
        """The same, with the metadata at the address where clients reach it."""
        return replace(self, **{name: getattr(self, name).replace(known, reached) for name in ("challenge", "text")})


UNAVAILABLE = Denied(503, "", "Unavailable: tokens cannot be checked at the moment. Try again", (("retry-after", "2"),))


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


# -- read by clients -------------------------------------------------------------------------------------

LONGEST_HEADER: Final = 16 * 1024

_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# One part of the header: a parameter, or the name of a scheme with what may follow it (a token68).
_PART: Final = re.compile(
    rf"[\s,]*(?:(?P<name>{_TOKEN})\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>{_TOKEN}))(?=\s*(?:,|$))"
    rf"|(?P<scheme>{_TOKEN})(?:\s+[A-Za-z0-9\-._~+/]+=*(?=\s*(?:,|$)))?)"
)
_ESCAPED: Final = re.compile(r"\\(.)")
_SCHEMES: Final = ("bearer", "dpop")


class Challenge(NamedTuple):
    """One scheme that a server takes, both it and the names of parameters in lower case."""

    scheme: str
    parameters: Mapping[str, str]

    @property
    def error(self) -> str:
        """What is wrong with the token; empty if none was sent."""
        return self.parameters.get("error", "")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs."""
        return tuple(dict.fromkeys(self.parameters.get("scope", "").split()))


NO_CHALLENGE: Final = Challenge("", {})


def parse_challenges(header: str) -> list[Challenge]:
    """The challenges of a header, in order. What cannot be read ends them. Of a repeated parameter the first counts."""
    found: list[tuple[str, dict[str, str]]] = []
    at, text = 0, header[:LONGEST_HEADER]
    while (part := _PART.match(text, at)) is not None:
        at = part.end()
        if part["scheme"] is not None:
            found.append((part["scheme"].lower(), {}))
        elif found:
            value = part["plain"] if part["quoted"] is None else _ESCAPED.sub(r"\1", part["quoted"])
            found[-1][1].setdefault(part["name"].lower(), value)
    return [Challenge(*each) for each in found]


def oauth_challenge(header: str) -> Challenge:
    """The challenge that asks for a token; `NO_CHALLENGE` if there is none. One that names an error is preferred."""
    asked = [each for each in parse_challenges(header) if each.scheme in _SCHEMES]
    return next((each for each in asked if each.error), asked[0] if asked else NO_CHALLENGE)
