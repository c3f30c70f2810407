"""Why a sign-in failed."""

from __future__ import annotations

from defserve.redaction import redact_text
from defserve.transports.client_errors import NotRenewed, SignInError

__all__ = ["NotRenewed", "RefusedByIssuer", "SignInError", "quoted"]

LONGEST_QUOTE = 300


class RefusedByIssuer(SignInError):
    """The authorization server refused a request. `error` is its code, such as `invalid_grant`."""

    def __init__(self, error: str, problem: str, *, fix: str = "") -> None:
        self.error = error
        super().__init__(problem, fix=fix)


def quoted(text: object) -> str:
    """Words of a peer, safe for a message: bounded, on one line, without secrets."""
    return " ".join(redact_text(str(text), limit=LONGEST_QUOTE).split())
