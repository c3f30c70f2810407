"""Tokens whose signature was checked. A client sends the same token many times, and checking a signature costs CPU."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from defserve.auth.jwt.signing_keys import VerificationKey

# What an entry costs besides its claims, roughly.
ENTRY_BYTES = 512


class VerifiedToken(NamedTuple):
    """The header of a token, the key it was checked with, and its claims as JSON. A bad token has none."""

    kid: str | None
    algorithm: str
    key: VerificationKey
    claims: bytes = b""


class VerifiedTokens:
    """The latest tokens, found by their digest, of `most_bytes` together."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._size = most_bytes, 0
        self._kept: dict[bytes, VerifiedToken] = {}

    def find(self, token: str) -> VerifiedToken | None:
        return self._kept.get(_digest(token))

    def keep(self, token: str, verified: VerifiedToken) -> None:
        """Remember a token. The oldest ones make room for it."""
        digest = _digest(token)
        self._drop(digest)
        self._kept[digest] = verified
        self._size += ENTRY_BYTES + len(verified.claims)
        while self._size > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, digest: bytes) -> None:
        if (gone := self._kept.pop(digest, None)) is not None:
            self._size -= ENTRY_BYTES + len(gone.claims)


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
