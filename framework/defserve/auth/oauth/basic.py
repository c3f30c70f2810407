"""HTTP Basic: a name and a password in the Authorization header (RFC 7617), and those of an OAuth client in it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from urllib.parse import quote, unquote_plus


def basic(name: str, password: str) -> str:
    """The value of Authorization for a name without a colon, and a password."""
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"


def client_basic(id: str, secret: str) -> str:
    """The value of Authorization for a client of OAuth (RFC 6749 §2.3.1).

    Both are encoded as in a form first. A space becomes `%20`, which those read as well who know no `+`.
    """
    return basic(quote(id, safe=""), quote(secret, safe=""))


def read_client_basic(authorization: str) -> tuple[str, str]:
    """The id and the secret that `client_basic` was given. Raises ValueError for any other header."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise ValueError("not Basic")
    id, colon, secret = b64decode(rest.strip(), validate=True).decode().partition(":")
    if not colon:
        raise ValueError("no secret")
    return unquote_plus(id), unquote_plus(secret)
