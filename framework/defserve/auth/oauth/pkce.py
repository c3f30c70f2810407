"""PKCE (RFC 7636): who redeems a code is who asked for it."""

from __future__ import annotations

from hashlib import sha256

from defserve.wire import base64url


def challenge_of(verifier: str) -> str:
    """The S256 challenge of a verifier (§4.2)."""
    return base64url.encode(sha256(verifier.encode()).digest())
