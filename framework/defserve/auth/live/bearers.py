"""Bearer tokens that something over HTTP was opened with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from defserve.auth.live.credentials import LiveCredentials
from defserve.auth.options import Auth
from defserve.auth.principals import Principal
from defserve.auth.verifiers import revocations_of


class BearerCredential:
    """The Authorization headers of a request, and who they proved its sender to be."""

    __slots__ = ("principal", "_auth", "_authorization")

    def __init__(self, auth: Auth, principal: Principal, authorization: Sequence[bytes]) -> None:
        self.principal, self._auth, self._authorization = principal, auth, authorization

    @property
    def key(self) -> str:
        return self.principal.credential

    async def verify(self) -> Any:
        return await self._auth.still_holds(self._authorization)

    def holds(self, found: Any) -> bool:
        """A token that has lost a scope is no longer what it was."""
        known = self.principal
        return isinstance(found, Principal) and found.id == known.id and found.scopes >= known.scopes


class LiveBearers(LiveCredentials):
    """Verifies the tokens of everything that is open at one app."""

    def __init__(self, auth: Auth) -> None:
        super().__init__()
        self._auth, self.revocations = auth, revocations_of(auth.verifier)

    def shown(self, principal: Principal, headers: Iterable[tuple[bytes, bytes]]) -> tuple[BearerCredential, ...]:
        """The credential of a request with these headers, if it is a token that has proved `principal`."""
        if principal.kind != "token":
            return ()
        authorization = [value for name, value in headers if name == b"authorization"]
        return (BearerCredential(self._auth, principal, authorization),)
