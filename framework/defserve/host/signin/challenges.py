"""Reads `WWW-Authenticate` (RFC 9110 §11.6.1): which schemes a server takes, and with which parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

LONGEST: Final = 16 * 1024

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
    at, text = 0, header[:LONGEST]
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
