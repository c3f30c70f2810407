"""Errors of a server at an address, with what helps the person who typed the command."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from defserve.auth.urls import is_loopback
from defserve.errors import PeerGone, UsageError
from defserve.transports.client_errors import Challenged, HttpRefusal, SignInError, Unreachable

# The error of a challenge → what helps whoever has a token.
TOKENS: Final[Mapping[str | None, str]] = {
    "": "add --token TOKEN, or --token @FILE",
    "invalid_token": "use another --token; this one is unknown, expired, or meant for another server",
    "insufficient_scope": "use a --token that has these scopes",
}
METADATA: Final = "resource_metadata="
"""In a challenge it says that one can sign in."""
STATUSES: Final[Mapping[int, str]] = {
    401: "sign in: defserve login {url}",
    404: "check the address; most end with /mcp, older ones with /sse",
    405: "check the address; most end with /mcp, older ones with /sse",
}
TLS: Final = "[SSL"
UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""How Python begins to tell of TLS that failed, and its word for a certificate that nobody vouches for."""
SCOPES: Final = re.compile(r'scope="([\w:./ -]{1,1000})"', re.ASCII)
"""Only those that no shell reads otherwise: people copy the line that helps."""


@contextmanager
def explained(address: str, *, is_signed_in: bool = False) -> Generator[None]:
    """What HTTP refuses in this block is raised as UsageError or PeerGone, with what helps.

    `is_signed_in` says that the token comes from `defserve login`, not from the command line.
    """
    try:
        yield
    except Unreachable as error:
        raise PeerGone(f"{error.message}\n  fix: {_absent(error.message, address)}") from None
    except SignInError as error:
        raise UsageError(error.problem, fix=error.fix) from None
    except Challenged as error:
        if is_signed_in and error.error == "invalid_token":
            raise UsageError(
                f"{address} does not take the token of your sign-in any more (HTTP {error.data['status']})",
                fix=f"sign in again: defserve login {address}",
            ) from None
        raise UsageError(error.message, fix=_credentials(error, address)) from None
    except HttpRefusal as error:
        raise UsageError(error.message, fix=STATUSES.get(error.data["status"], "").format(url=address)) from None


def _credentials(error: Challenged, address: str) -> str:
    if error.error is None:
        return "add -H 'Authorization: …'"
    challenge = str(error.data.get("challenge"))
    scopes = SCOPES.search(challenge) if error.error == "insufficient_scope" else None
    sign_in = f"sign in: defserve login {address}" + (f' --scope "{scopes[1]}"' if scopes else "")
    token = TOKENS.get(error.error, TOKENS[""])
    return f"{sign_in}; or {token}" if METADATA in challenge else f"{token}; or {sign_in}"


def _absent(message: str, address: str) -> str:
    is_near = is_loopback(urlsplit(address).hostname or "")
    if UNTRUSTED in message:
        return "if you trust it, name the certificate of its issuer: SSL_CERT_FILE=FILE defserve …"
    if TLS in message:
        # Elsewhere, without TLS, others could read what is sent.
        plain = f": write {address.replace('s://', '://', 1)}" if is_near else "; check the address and its port"
        return f"what answers there may not speak TLS{plain}"
    if is_near:
        return f"nothing listens there; start the server with defserve run FILE --on {address}"
    return "check the address, and that the server runs there"
