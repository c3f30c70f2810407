"""Where a person is signed in, and whether that still counts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from defserve.errors import PeerError, UsageError
from defserve.host.addresses import connect_url
from defserve.host.client import Client
from defserve.host.signin.credential import Credential
from defserve.host.signin.keeping.files import FileStore, user_store
from defserve.host.signin.options import StoredSignIn
from defserve.transports.client_errors import Challenged

ASK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SignInState:
    """One sign-in. `problem` is empty as long as nothing is wrong with it."""

    server: str
    issuer: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    renews: bool = False
    place: str = ""
    problem: str = ""

    @property
    def is_good(self) -> bool:
        return not self.problem

    @property
    def until(self) -> str:
        """When it ends, for a person."""
        if self.problem:
            return self.problem
        if self.renews or self.expires_at is None:
            return "renewed by itself" if self.renews else "no end known"
        left = self.expires_at - time.time()
        return f"in {left / 3600:.1f} h" if left > 5400 else f"in {max(left, 0) / 60:.0f} min"

    def shown(self) -> dict[str, Any]:
        """For `--json`: no secrets."""
        return {
            "server": self.server,
            "issuer": self.issuer,
            "scopes": list(self.scopes),
            "expires_at": self.expires_at,
            "renews": self.renews,
            "kept_in": self.place,
            "problem": self.problem or None,
        }


async def all_states(url: str | None, *, is_asked: bool) -> list[SignInState]:
    """All sign-ins of this user, or the one to a server. With `is_asked`, the servers are asked too."""
    store = user_store()
    states = [state_of(server, store) for server in ([url] if url is not None else store.servers())]
    return [await _asked(state) if is_asked and state.is_good else state for state in states]


def state_of(url: str, store: FileStore | None = None) -> SignInState:
    """The sign-in to a server, as it is kept here."""
    store = store or user_store()
    try:
        credential = store.read(url)
    except UsageError as error:
        return SignInState(url, problem=error.problem)
    return SignInState(url, problem="not signed in") if credential is None else _state(credential, store.place_of(url))


def _state(credential: Credential, place: str) -> SignInState:
    tokens, server, issuer = credential.tokens, credential.server, credential.issuer.issuer
    if tokens is None:
        return SignInState(server, issuer, place=place, problem="ended; sign in again")
    renews = credential.can_refresh
    has_ended = tokens.expires_at is not None and tokens.expires_at <= time.time() and not renews
    problem = "expired; sign in again" if has_ended else ""
    return SignInState(server, issuer, tokens.scopes, tokens.expires_at, renews, place, problem)


async def _asked(state: SignInState) -> SignInState:
    try:
        async with Client(await connect_url(state.server, auth=StoredSignIn()), timeout=ASK_SECONDS):
            return state_of(state.server)
    except Challenged:
        problem = "refused by the server; sign in again"
    except PeerError as error:
        problem = error.message.partition("\n")[0]
    return SignInState(state.server, state.issuer, state.scopes, state.expires_at, state.renews, state.place, problem)
