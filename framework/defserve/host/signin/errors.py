"""Why a sign-in failed."""

from __future__ import annotations

from defserve.errors import PeerError
from defserve.redaction import redact_text

LONGEST_QUOTE = 300


class SignInError(PeerError):
    """Signing in to a server failed. The message says at which step, why, and what helps. It has no secrets."""

    def __init__(self, problem: str, *, fix: str = "") -> None:
        self.problem, self.fix = problem, fix
        super().__init__(f"{problem}\n  fix: {fix}" if fix else problem)


class RefusedByIssuer(SignInError):
    """The authorization server refused a request. `error` is its code, such as `invalid_grant`."""

    def __init__(self, error: str, problem: str, *, fix: str = "") -> None:
        self.error = error
        super().__init__(problem, fix=fix)


def quoted(text: object) -> str:
    """Words of a peer, safe for a message: bounded, on one line, without secrets."""
    return " ".join(redact_text(str(text), limit=LONGEST_QUOTE).split())
