"""Credentials of what is open: sessions, streams and sockets end with the key or token that they were opened with.

Each credential is verified again every few seconds, and at once if its store tells that it was revoked. One timer
serves all of an app, and runs only while something is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol

from defserve.auth.auth_options import Auth
from defserve.auth.bearer_tokens import get_revocation_follower
from defserve.auth.principals import Principal
from defserve.base.redaction import get_logger
from defserve.errors import DefserveError

log = get_logger("auth")

SWEEP_SECONDS: Final = 2.0

# A verifier that does not answer in this time has failed. Two failures in a row end a credential: together with the
# time between two sweeps, that is less than five seconds.
ANSWER_SECONDS: Final = 1.0
AT_ONCE: Final = 64
# If none of those answers for so long, they may hang, and the next are asked. From then on that is found out sooner:
# 10,000 credentials are asked within a second.
PATIENCE_SECONDS: Final = 0.05
IMPATIENCE_SECONDS: Final = 0.005

CREDENTIAL_ENDED_REASON: Final = "the credential was revoked or has expired"


class ShownCredential(Protocol):
    """A credential, and how to verify it again. Those with the same key are verified once."""

    @property
    def key(self) -> Hashable: ...

    async def verify(self) -> Any:
        """What the credential proves now. May raise anything."""
        ...

    def is_still_valid(self, found: Any) -> bool:
        """Whether what `verify` found is still good for what was opened with it."""
        ...


class CredentialHolder(Protocol):
    """Something open: a session, a response, a socket."""

    def list_credentials(self) -> Iterable[ShownCredential]:
        """The credentials it was opened with, or used with since."""
        ...

    def credential_ended(self, key: Any) -> None:
        """One of them is no longer good. End what belongs to it."""


class KeptCredential:
    """Holds the credential of a request that is over, for what it has left behind. It releases itself."""

    def __init__(
        self,
        live: LiveCredentials,
        shown: Sequence[ShownCredential],
        is_kept: Callable[[], bool],
        ended: Callable[[], None],
    ) -> None:
        self._live, self._shown, self._is_kept, self._ended = live, shown, is_kept, ended

    def list_credentials(self) -> Sequence[ShownCredential]:
        if self._is_kept():
            return self._shown
        self._live.stop_verifying_holder(self)
        return ()

    def credential_ended(self, key: Any) -> None:
        self._live.stop_verifying_holder(self)
        self._ended()


class LiveCredentials:
    """Verifies the credentials of everything that is open."""

    def __init__(self, seconds: float = SWEEP_SECONDS) -> None:
        self._seconds = seconds
        self._holders: set[CredentialHolder] = set()
        self._unsure: set[Hashable] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeping: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self.revocations: Callable[[], AsyncGenerator[Hashable]] | None = None
        """Follows the keys of credentials that are revoked. An empty one: some may have been missed."""
        self._following: asyncio.Task[None] | None = None

    def keep_verifying_holder(self, holder: CredentialHolder) -> None:
        """Verify its credentials from here on."""
        self._holders.add(holder)
        loop = asyncio.get_running_loop()
        if self._sweeping is None or self._loop is not loop:
            self._loop = loop
            self._sweep_later()
            if self.revocations is not None:
                self._following = loop.create_task(self._follow(self.revocations))

    def keep_verifying_credentials(
        self, shown: Sequence[ShownCredential], is_kept: Callable[[], bool], ended: Callable[[], None]
    ) -> None:
        """Verify the credentials of a request on, for what was opened by it and outlives it."""
        if shown:
            self.keep_verifying_holder(KeptCredential(self, shown, is_kept, ended))

    def stop_verifying_holder(self, holder: CredentialHolder) -> None:
        """It is closed."""
        self._holders.discard(holder)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open, so that nothing runs."""
        return self._sweeping is None

    def close(self) -> None:
        """Everything is closed."""
        self._holders.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        self._unfollow()

    def _unfollow(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self, revocations: Callable[[], AsyncGenerator[Hashable]]) -> None:
        async with aclosing(revocations()) as revoked:
            async for key in revoked:
                try:
                    await self.verify_credentials(key or None)
                except Exception:
                    log.exception("a credential that was revoked could not be ended")

    def _sweep_later(self) -> None:
        assert self._loop is not None
        self._sweeping = self._loop.call_later(self._seconds, self._sweep_now)

    def _sweep_now(self) -> None:
        assert self._loop is not None
        self._sweeping = self._loop.create_task(self._sweep_and_go_on()) if self._holders else None
        if self._sweeping is None:
            self._unfollow()

    async def _sweep_and_go_on(self) -> None:
        try:
            await self.verify_credentials()
        except Exception:
            log.exception("credentials in use could not be verified")
        self._sweep_later()

    async def verify_credentials(self, only: Hashable = None) -> None:
        """Verify every credential once, or `only` that one, and end what was opened with those no longer good."""
        uses: dict[Hashable, list[tuple[ShownCredential, CredentialHolder]]] = {}
        for holder in tuple(self._holders):
            for shown in holder.list_credentials():
                if only is None or shown.key == only:
                    uses.setdefault(shown.key, []).append((shown, holder))
        if only is None:
            self._unsure &= uses.keys()
        asked, patience = set[asyncio.Task[None]](), PATIENCE_SECONDS
        async with asyncio.TaskGroup() as group:
            for each in uses.values():
                if len(asked) >= AT_ONCE:
                    answered, asked = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                    patience = PATIENCE_SECONDS if answered else IMPATIENCE_SECONDS
                    if not answered:
                        asked = set[asyncio.Task[None]]()
                asked.add(group.create_task(self._check(each)))

    async def _check(self, uses: Sequence[tuple[ShownCredential, CredentialHolder]]) -> None:
        credential = uses[0][0]
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await credential.verify()
            self._unsure.discard(credential.key)
        except Exception as error:
            # What an author's verifier raises may be the token itself: a KeyError, for instance.
            why = f": {error}" if isinstance(error, DefserveError) else ""
            log.warning("a credential in use cannot be verified: %s%s", type(error).__name__, why)
            if credential.key not in self._unsure:
                self._unsure.add(credential.key)
                return
            found = None
        for shown, holder in uses:
            if holder in self._holders and not shown.is_still_valid(found):
                self._end(shown, holder)

    def _end(self, shown: ShownCredential, holder: CredentialHolder) -> None:
        try:
            holder.credential_ended(shown.key)
        except Exception:
            log.exception("what was opened with a credential that has ended could not be closed")


# -- Bearer tokens that something over HTTP was opened with.


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

    def is_still_valid(self, found: Any) -> bool:
        """A token that has lost a scope is no longer what it was."""
        known = self.principal
        return isinstance(found, Principal) and found.id == known.id and found.scopes >= known.scopes


class LiveBearerCredentials(LiveCredentials):
    """Verifies the tokens of everything that is open at one app."""

    def __init__(self, auth: Auth) -> None:
        super().__init__()
        self._auth, self.revocations = auth, get_revocation_follower(auth.verifier)

    def extract_bearer_credentials(
        self, principal: Principal, headers: Iterable[tuple[bytes, bytes]]
    ) -> tuple[BearerCredential, ...]:
        """The credential of a request with these headers, if it is a token that has proved `principal`."""
        if principal.kind != "token":
            return ()
        authorization = [value for name, value in headers if name == b"authorization"]
        return (BearerCredential(self._auth, principal, authorization),)
