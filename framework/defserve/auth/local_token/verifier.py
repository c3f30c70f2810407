"""The server's side of a local token: who shows it is the local user."""

from __future__ import annotations

import copy
import hashlib
import hmac
import os
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from defserve.auth.options import Auth
from defserve.auth.principals import LOCAL, Principal
from defserve.auth.urls import is_loopback
from defserve.auth.verifiers import check_ready, check_settings
from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.auth.verifiers import TokenVerifier


class LocalTokenVerifier:
    """Knows one key, and asks `others` about every other token. It keeps a digest only."""

    def __init__(self, key: str, others: TokenVerifier | None = None) -> None:
        self._digest, self._others = _digest(key), others

    @property
    def revocations(self) -> Callable[[], AsyncGenerator[str]] | None:
        """See `ApiKeys.revocations`."""
        return getattr(self._others, "revocations", None)

    async def check_ready(self) -> None:
        """See `ApiKeys.check_ready`."""
        await check_ready(self._others)

    def check_settings(self) -> None:
        """See `ApiKeys.check_settings`."""
        check_settings(self._others)

    async def verify(self, token: str) -> Principal | None:
        """The local user for the key, else what the other verifier says. Compared in constant time."""
        if hmac.compare_digest(_digest(token), self._digest):
            return LOCAL
        return await self._others.verify(token) if self._others is not None else None


def with_local_token(key: str, auth: Auth | None) -> Auth:
    """What the server's own `auth` lets in, and who shows the key. Without `auth`, strangers are let in as before."""
    if auth is None:
        found = Auth(LocalTokenVerifier(key))
        found.admits_strangers = True
        return found
    found = copy.copy(auth)
    found.verifier = LocalTokenVerifier(key, auth.verifier)
    return found


def check_place(host: str) -> None:
    """Raises UsageError where a local token cannot be used."""
    if not is_loopback(host):
        raise UsageError(
            f"a local token is for callers on this machine, and {host} is reached from others",
            fix="serve on 127.0.0.1, or check tokens with Server(auth=…)",
        )
    if os.name != "posix":
        raise UsageError(
            "this system does not say who owns a file, so there are no local tokens", fix="use Server(auth=…)"
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
