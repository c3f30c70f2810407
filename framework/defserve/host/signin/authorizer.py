"""The credentials for one server: kept, sent, renewed, and got when the server asks for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from defserve.auth.challenges import NO_CHALLENGE, Challenge, oauth_challenge
from defserve.auth.urls import checked_url, http_address, is_loopback
from defserve.errors import PeerError, UsageError
from defserve.host.link import HttpChallenge
from defserve.host.signin.credential import Credential
from defserve.host.signin.discovery import Discovered, discover, is_own_issuer
from defserve.host.signin.errors import NotRenewed, RefusedByIssuer, SignInError
from defserve.host.signin.fetching import Fetcher
from defserve.host.signin.grants import TokenGrant, Wanted
from defserve.host.signin.keeping.memory import CredentialStore
from defserve.host.signin.proofs import ProofKey
from defserve.host.signin.reach import Reach, least_reach
from defserve.host.signin.tokens import NONCE_WANTED, TokenEndpoint

MOST_IN_VAIN: Final = 2
"""How many new tokens a server may refuse, one after the other, before we believe that it takes none."""
# A refresh token that is refused with one of these is of no use any more.
ENDED: Final = frozenset(("invalid_grant", "invalid_client", "unauthorized_client"))

AsyncWork: TypeAlias = Coroutine[Any, Any, bool]

log = logging.getLogger("defserve.host")


class AuthorizerOptions(NamedTuple):
    """issuer   the one to take; any other is refused
    dpop     bind tokens to a key of ours, even if the server does not ask for that
    anew     get new tokens, whatever was kept; the registration is used again
    """

    issuer: str | None = None
    dpop: bool = False
    anew: bool = False


class ServerAuthorizer:
    """See `Authorizer`. Without a `grant` it uses and renews what was kept, and never asks anybody.

    One sign-in at a time: requests that are refused meanwhile wait for it, and one that gives up does not end it.
    """

    def __init__(
        self, url: str, store: CredentialStore, grant: TokenGrant | None, how: AuthorizerOptions | None = None
    ) -> None:
        url = http_address(url)
        checked_url(url, "the address to sign in to", query=True)
        self._url, self._store, self._grant, self._how = url, store, grant, how or AuthorizerOptions()
        self._credential: Credential | None = None
        self._is_loaded = False
        self._nonce: str | None = None
        self._in_vain = 0
        self._renewing: asyncio.Task[bool] | None = None

    @property
    def credential(self) -> Credential | None:
        """What is sent now."""
        return self._credential

    @property
    def is_signing_in(self) -> bool:
        return self._renewing is not None and not self._renewing.done()

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        if not self._is_loaded:
            await self._load()
        credential = self._credential
        if credential is None or credential.tokens is None:
            return {}
        if credential.tokens.is_ending and credential.can_refresh:
            try:
                await self._alone(self._refresh(credential))
            except SignInError as error:
                if credential.tokens.has_ended:
                    raise NotRenewed(
                        f"the sign-in to {self._url} has to be renewed, which fails: {error.problem}",
                        fix=error.fix or f"try again later, or sign in again: defserve login {self._url}",
                    ) from None
                log.warning("the token for %s could not be renewed, and is still used: %s", self._url, error.problem)
            credential = self._credential
        if credential is None or credential.tokens is None:
            return {}
        headers = {"authorization": _authorization(credential)}
        if credential.tokens.type == "DPoP" and credential.key is not None:
            token = credential.tokens.access_token
            headers["dpop"] = credential.key.proof(method, url, token=token, nonce=self._nonce)
        return headers

    def taken(self, headers: Mapping[str, str]) -> None:
        self._in_vain = 0
        self._nonce = headers.get("dpop-nonce") or self._nonce

    async def refused(self, challenge: HttpChallenge) -> bool:
        said = oauth_challenge(challenge.headers.get("www-authenticate", ""))
        nonce = challenge.headers.get("dpop-nonce")
        if nonce and nonce != self._nonce:
            self._nonce = nonce
            if said.error == NONCE_WANTED:
                return True
        if challenge.status == 403 and said.error != "insufficient_scope":
            return False
        credential = self._credential
        if credential is not None and credential.tokens is not None and challenge.sent != _authorization(credential):
            return True  # it was renewed while the request was under way
        return await self._alone(self._renew(challenge.status, said, least_reach(challenge.peers)))

    async def sign_in(self) -> Credential:
        """Get tokens for a server that has not asked for any. Raises SignInError, also if it names no issuer."""
        await self._load()
        host = urlsplit(self._url).hostname or ""
        fetcher = Fetcher(Reach.MACHINE if is_loopback(host) else Reach.INTERNET)
        found = await self._discover(NO_CHALLENGE, fetcher)
        if found.issuer.is_guessed:
            raise SignInError(f"{self._url} answers without a sign-in, and does not say where one could sign in")
        return await self._obtain(found, NO_CHALLENGE, (), fetcher)

    async def aclose(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def _load(self) -> None:
        try:
            found = await asyncio.to_thread(self._store.read, self._url)
        except UsageError as error:
            raise SignInError(error.problem, fix=error.fix) from None
        self._credential = replace(found, tokens=None) if found is not None and self._how.anew else found
        self._is_loaded = True

    # -- renewing ----------------------------------------------------------------------------------------

    async def _alone(self, work: AsyncWork) -> bool:
        """Do it, or wait for whoever does it already."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(_as_peer_error(work), name="defserve.host signing in")
            # Perhaps nobody waits for it any more when it ends.
            self._renewing.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            work.close()
        renewing = self._renewing
        await asyncio.wait((renewing,))
        if renewing.cancelled():
            raise SignInError("the client was closed while it signed in")
        return renewing.result()

    async def _renew(self, status: int, challenge: Challenge, reach: Reach) -> bool:
        """Other credentials than those that were refused. Whether there are any."""
        credential, fetcher = self._credential, Fetcher(reach)
        tokens = credential and credential.tokens
        if tokens is not None and await self._changed_elsewhere():
            return True
        if self._grant is None and not (credential and credential.can_refresh and status == 401):
            return False
        found = await self._discover(challenge, fetcher)
        # A new issuer is a new start: nothing of the old one is shown to it.
        is_same = credential is not None and credential.issuer.issuer == found.issuer.issuer
        if credential is not None and is_same and status == 401 and credential.can_refresh and not self._in_vain:
            self._in_vain += 1
            if await self._refresh(replace(credential, issuer=found.issuer)):
                return True
        if self._grant is None:
            if credential is not None and not is_same:
                raise SignInError(
                    f"{self._url} has another issuer than when you signed in: {found.issuer.issuer}, "
                    f"not {credential.issuer.issuer}",
                    fix=f"if that is right, sign in again: defserve login {self._url}",
                )
            return False
        before = credential.asked if credential is not None and is_same and status == 403 else ()
        if status == 403 and set(challenge.scopes) <= set(before):
            return False  # asked for, and still refused
        if self._in_vain >= MOST_IN_VAIN:
            raise SignInError(
                f"{self._url} refuses the tokens that {found.issuer.issuer} gives for it",
                fix="tell who runs the server; `defserve login URL` starts anew",
            )
        self._in_vain += 1
        await self._obtain(found, challenge, before, fetcher)
        return True

    async def _discover(self, challenge: Challenge, fetcher: Fetcher) -> Discovered:
        """See `discover`. A server does not decide who gets a secret of ours: whoever gave the secret does."""
        found = await discover(self._url, challenge, fetcher, self._how.issuer)
        issuer, kept = found.issuer.issuer, self._credential and self._credential.issuer.issuer
        is_given = self._how.issuer is not None or kept == issuer or is_own_issuer(self._url, issuer)
        if self._grant is not None and self._grant.shows_secret and not is_given:
            raise SignInError(
                f"{self._url} names the issuer {issuer}, and nobody has said that the secret is for it",
                fix=f"if the client is registered there, give issuer={issuer!r} (defserve login: --issuer)",
            )
        return found

    def _scopes(self, challenge: Challenge, found: Discovered, before: tuple[str, ...]) -> tuple[str, ...]:
        """The scopes to ask for: those given, or of the challenge, or of the metadata; never less than before."""
        assert self._grant is not None
        first = self._grant.scopes
        if first is None:
            first = challenge.scopes or (() if before else found.resource.scopes)
        beside = self._grant.scopes_beside(found.issuer)
        return tuple(dict.fromkeys((*before, *first, *(challenge.scopes if before else ()), *beside)))

    async def _obtain(
        self, found: Discovered, challenge: Challenge, before: tuple[str, ...], fetcher: Fetcher
    ) -> Credential:
        assert self._grant is not None
        scopes = self._scopes(challenge, found, before)
        key = ProofKey() if self._how.dpop or found.resource.wants_dpop or challenge.scheme == "dpop" else None
        wanted = Wanted(self._url, found, scopes, fetcher, key, self._credential)
        credential = await self._grant.obtain(wanted)
        async with self._locked():
            await self._keep(credential)
        assert self._credential is not None
        return self._credential

    async def _refresh(self, before: Credential) -> bool:
        """Renew the access token. Whether there is another one now. A refresh token that has ended is forgotten."""
        async with self._locked():
            if await self._changed_elsewhere():
                return True
            assert before.tokens is not None and before.tokens.refresh_token is not None
            form = {
                "grant_type": "refresh_token",
                "refresh_token": before.tokens.refresh_token,
                "resource": before.resource,
            }
            endpoint = TokenEndpoint(before.issuer, before.client, Fetcher(before.reach), proof_key=before.key)
            try:
                tokens = await endpoint.tokens(form, before.tokens.scopes)
            except RefusedByIssuer as refusal:
                if refusal.error not in ENDED:
                    raise
                log.info("the sign-in to %s has ended: %s", self._url, refusal.error)
                await self._keep(replace(before, tokens=None))
                return False
            await self._keep(before.with_tokens(tokens))
            return True

    async def _changed_elsewhere(self) -> bool:
        """Whether another process has renewed the tokens; then they are taken from the store."""
        kept = await asyncio.to_thread(self._store.read, self._url)
        mine = self._credential and self._credential.tokens
        if kept is None or kept.tokens is None or (mine and kept.tokens.access_token == mine.access_token):
            return False
        self._credential = kept
        return True

    async def _keep(self, credential: Credential) -> None:
        self._credential = credential
        await asyncio.to_thread(self._store.write, credential)

    @asynccontextmanager
    async def _locked(self) -> AsyncGenerator[None]:
        from anyio import CapacityLimiter, to_thread

        lock = self._store.locked(self._url)
        try:
            # A thread of its own: whoever holds the lock needs the usual ones to go on.
            await to_thread.run_sync(lock.__enter__, abandon_on_cancel=True, limiter=CapacityLimiter(1))
        except OSError as error:
            raise SignInError(f"the sign-in to {self._url} cannot be renewed: {error}", fix="try again") from None
        try:
            yield
        finally:
            lock.__exit__(None, None, None)


async def _as_peer_error(work: AsyncWork) -> bool:
    """A link hands on errors of peers alone."""
    try:
        return await work
    except PeerError:
        raise
    except UsageError as error:
        raise SignInError(error.problem, fix=error.fix) from None


def _authorization(credential: Credential) -> str:
    assert credential.tokens is not None
    return f"{credential.tokens.type} {credential.tokens.access_token}"
