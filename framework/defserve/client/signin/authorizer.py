"""The credentials for one server: kept, sent, renewed, and got when the server asks for them.

Then how a client signs in, as one writes it: `Remote(url, auth=SignIn())`, and signing a person in and out.
"""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64decode
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from defserve.auth.oauth import (
    NO_CHALLENGE,
    OAuthChallenge,
    check_oauth_url,
    convert_to_http_url,
    is_loopback,
    parse_oauth_challenge,
)
from defserve.base.redaction import get_logger
from defserve.client.client import Client
from defserve.client.link import ClientAuth, HttpChallenge
from defserve.client.signin.credentials import (
    USE_DPOP_NONCE_ERROR,
    Credential,
    CredentialStore,
    DpopProofKey,
    MemoryCredentialStore,
    SigningKey,
    TokenEndpoint,
    get_user_credential_store,
)
from defserve.client.signin.fetching import (
    Fetcher,
    NetworkReach,
    RefusedByIssuer,
    SignInError,
    TokenNotRenewed,
    classify_server_reach,
)
from defserve.client.signin.grants import (
    OFFLINE_SCOPE,
    AssertionGrant,
    ClientCredentialsGrant,
    GivenToken,
    GrantRequest,
    IdentityProvider,
    PersonGrant,
    Redirect,
    TokenGrant,
    parse_client_id_and_secret,
    resolve_given_token,
)
from defserve.client.signin.issuer import (
    ClientRegistration,
    DiscoveredIssuer,
    discover_issuer,
    is_issuer_at_server_origin,
)
from defserve.client.targets import connect_url
from defserve.core.json_values import is_object
from defserve.errors import PeerError, UsageError, explain_arguments

MAX_VAIN_RENEWALS: Final = 2
"""How many new tokens a server may refuse, one after the other, before we believe that it takes none."""

SETTLE_SECONDS: Final = 5.0
"""How long closing waits for an issuer that renews a token."""

# A refresh token that is refused with one of these is of no use any more.
ENDED: Final = frozenset(("invalid_grant", "invalid_client", "unauthorized_client"))

# With one of these, a server wants the person to sign in again: a refreshed token would not do.
STEP_UP_ERRORS: Final = frozenset(("interaction_required", "login_required", "consent_required", "insufficient_claims"))
MAX_CLAIMS_LENGTH: Final = 8 * 1024

AsyncWork: TypeAlias = Coroutine[Any, Any, bool]

log = get_logger("client")


class AuthorizerOptions(NamedTuple):
    """issuer   the one to take; any other is refused
    dpop     bind tokens to a key of ours, even if the server does not ask for that
    anew     get new tokens, whatever was kept; the registration is used again
    """

    issuer: str | None = None
    dpop: bool = False
    anew: bool = False


class ServerAuthorizer:
    """Gives the credentials of requests to one server, and renews them.

    Without a `grant` it uses and renews what was kept, and never asks anybody.

    One sign-in at a time: requests that are refused meanwhile wait for it, and one that gives up does not end it.
    """

    def __init__(
        self, url: str, store: CredentialStore, grant: TokenGrant | None, how: AuthorizerOptions | None = None
    ) -> None:
        url = convert_to_http_url(url)
        check_oauth_url(url, "the address to sign in to", query=True)
        self._url, self._store, self._grant, self._how = url, store, grant, how or AuthorizerOptions()
        self.credential: Credential | None = None
        """What is sent now."""
        self._kept_token = ""
        """The access token that the store had when we last read or wrote it."""
        self._is_loaded = False
        self._nonce: str | None = None
        self._in_vain = 0
        self._renewing: asyncio.Task[bool] | None = None
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    @property
    def is_signing_in(self) -> bool:
        """Whether a person, or an issuer, has to do something first."""
        return self._renewing is not None and not self._renewing.done()

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """The headers, in lower case, that a request to `url` needs; empty if nothing is known yet."""
        if not self._is_loaded:
            await self._load()
        credential = self.credential
        if credential is None or credential.tokens is None:
            return {}
        if credential.tokens.is_about_to_expire and credential.can_refresh:
            try:
                await self._alone(self._refresh(credential))
            except SignInError as error:
                if credential.tokens.has_expired:
                    raise TokenNotRenewed(
                        f"the sign-in to {self._url} has to be renewed, which fails: {error.problem}",
                        fix=error.fix or f"try again later, or sign in again: defserve login {self._url}",
                    ) from None
                log.warning("the token for %s could not be renewed, and is still used: %s", self._url, error.problem)
            credential = self.credential
        if credential is None or credential.tokens is None:
            return {}
        headers = {"authorization": _authorization(credential)}
        if credential.tokens.type == "DPoP" and credential.key is not None:
            headers["dpop"] = credential.key.proof(method, url, token=credential.tokens.access_token, nonce=self._nonce)
        return headers

    def on_request_accepted(self, headers: Mapping[str, str]) -> None:
        """The server took a request; these are the headers of its response."""
        self._in_vain = 0
        self._nonce = headers.get("dpop-nonce") or self._nonce

    async def handle_challenge(self, challenge: HttpChallenge) -> bool:
        """Whether there are other credentials now, so that the request is worth sending again. Raises PeerError."""
        said = parse_oauth_challenge(challenge.headers.get("www-authenticate", ""))
        if self.adopt_nonce(challenge):
            return True
        if challenge.status == 403 and said.error != "insufficient_scope":
            return False
        credential = self.credential
        if credential is not None and credential.tokens is not None and challenge.sent != _authorization(credential):
            return True  # it was renewed while the request was under way
        return await self._alone(self._renew(challenge.status, said, classify_server_reach(challenge.peers)))

    def adopt_nonce(self, challenge: HttpChallenge) -> bool:
        """Keep the nonce of a refusal. Whether its lack was all that was wrong (RFC 9449 §9)."""
        nonce = challenge.headers.get("dpop-nonce")
        if not nonce or nonce == self._nonce:
            return False
        self._nonce = nonce
        said = parse_oauth_challenge(challenge.headers.get("www-authenticate", ""))
        return said.error == USE_DPOP_NONCE_ERROR

    async def sign_in(self) -> Credential:
        """Get tokens for a server that has not asked for any. Raises SignInError, also if it names no issuer."""
        await self._load()
        fetcher = Fetcher(
            NetworkReach.MACHINE if is_loopback(urlsplit(self._url).hostname or "") else NetworkReach.INTERNET
        )
        found = await self._discover(NO_CHALLENGE, fetcher)
        if found.issuer.is_guessed:
            raise SignInError(f"{self._url} answers without a sign-in, and does not say where one could sign in")
        return await self._obtain(found, NO_CHALLENGE, (), fetcher)

    async def aclose(self) -> None:
        """Give up what is under way.

        A renewal may end first, for some seconds: the issuer may have ended the old refresh token, and sent a new one.
        """
        if self._renewing is None:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._is_settled.wait()
        finally:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def _load(self) -> None:
        try:
            found = await asyncio.to_thread(self._store.load_credential, self._url)
        except UsageError as error:
            raise SignInError(error.problem, fix=error.fix) from None
        self.credential = replace(found, tokens=None) if found is not None and self._how.anew else found
        self._kept_token = _access_token(found)
        self._is_loaded = True

    # -- renewing ----------------------------------------------------------------------------------------

    async def _alone(self, work: AsyncWork) -> bool:
        """Do it, or wait for whoever does it already."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(_as_peer_error(work), name="defserve.client signing in")
            # Perhaps nobody waits for it any more when it ends.
            self._renewing.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            work.close()
        renewing = self._renewing
        await asyncio.wait((renewing,))
        if renewing.cancelled():
            raise SignInError("the client was closed while it signed in")
        return renewing.result()

    async def _renew(self, status: int, challenge: OAuthChallenge, reach: NetworkReach) -> bool:
        """Other credentials than those that were refused. Whether there are any."""
        credential, fetcher = self.credential, Fetcher(reach)
        if credential is not None and credential.tokens is not None and await self._adopt_renewed_tokens():
            return True
        if self._grant is None and not (credential and credential.can_refresh and status == 401):
            return False
        found = await self._discover(challenge, fetcher)
        # A new issuer is a new start: nothing of the old one is shown to it.
        is_same = credential is not None and credential.issuer.issuer == found.issuer.issuer
        is_refreshed = status == 401 and not self._in_vain and challenge.error not in STEP_UP_ERRORS
        if credential is not None and is_same and is_refreshed and credential.can_refresh:
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
        if self._in_vain >= MAX_VAIN_RENEWALS:
            raise SignInError(
                f"{self._url} refuses the tokens that {found.issuer.issuer} gives for it",
                fix="tell who runs the server; `defserve login URL` starts anew",
            )
        self._in_vain += 1
        await self._obtain(found, challenge, before, fetcher)
        return True

    async def _discover(self, challenge: OAuthChallenge, fetcher: Fetcher) -> DiscoveredIssuer:
        """See `discover_issuer`. A server does not decide who gets a secret of ours: whoever gave the secret does."""
        found = await discover_issuer(self._url, challenge, fetcher, self._how.issuer)
        issuer, kept = found.issuer.issuer, self.credential and self.credential.issuer.issuer
        is_given = self._how.issuer is not None or kept == issuer or is_issuer_at_server_origin(self._url, issuer)
        if self._grant is not None and self._grant.shows_secret and not is_given:
            raise SignInError(
                f"{self._url} names the issuer {issuer}, and nobody has said that the secret is for it",
                fix=f"if the client is registered there, give issuer={issuer!r} (defserve login: --issuer)",
            )
        return found

    async def _obtain(
        self, found: DiscoveredIssuer, challenge: OAuthChallenge, before: tuple[str, ...], fetcher: Fetcher
    ) -> Credential:
        assert self._grant is not None
        # The scopes to ask for: those given, or of the challenge, or of the metadata; never less than before.
        first = self._grant.scopes
        if first is None:
            first = challenge.scopes or (() if before else found.resource.scopes)
        scopes = (*before, *first, *(challenge.scopes if before else ()))
        if isinstance(self._grant, PersonGrant) and OFFLINE_SCOPE in found.issuer.scopes:
            scopes = (*scopes, OFFLINE_SCOPE)
        # Where a server takes both kinds of tokens, its issuer may give bearer tokens alone.
        is_bound = challenge.scheme == "dpop" and bool(found.issuer.dpop_algorithms or not challenge.takes_bearer)
        key = DpopProofKey() if self._how.dpop or found.resource.wants_dpop or is_bound else None
        asked, claims = tuple(dict.fromkeys(scopes)), read_claims_request(challenge)
        credential = await self._grant.obtain(
            GrantRequest(self._url, found, asked, fetcher, key, self.credential, claims)
        )
        async with self._hold_credential_lock():
            await self._store_credential(credential)
        return credential

    async def _refresh(self, before: Credential) -> bool:
        """Renew the access token. Whether there is another one now. A refresh token that has ended is forgotten."""
        async with self._hold_credential_lock():
            if await self._adopt_renewed_tokens():
                return True
            assert before.tokens is not None and before.tokens.refresh_token is not None
            form = {
                "grant_type": "refresh_token",
                "refresh_token": before.tokens.refresh_token,
                "resource": before.resource,
            }
            key = before.key if before.tokens.type == "DPoP" else None
            endpoint = TokenEndpoint(before.issuer, before.client, Fetcher(before.reach), proof_key=key)
            self._is_settled.clear()
            try:
                tokens = await endpoint.request_tokens(form, before.tokens.scopes)
                await self._store_credential(before.with_tokens(tokens))
            except RefusedByIssuer as refusal:
                if refusal.error not in ENDED:
                    raise
                log.info("the sign-in to %s has ended: %s", self._url, refusal.error)
                await self._store_credential(replace(before, tokens=None))
                return False
            finally:
                self._is_settled.set()
            return True

    async def _adopt_renewed_tokens(self) -> bool:
        """Whether another process has renewed the tokens; then they are taken from the store.

        If ours could not be stored, older ones are still there, whose refresh token may have been used up.
        """
        kept = await asyncio.to_thread(self._store.load_credential, self._url)
        token = _access_token(kept)
        if token in ("", self._kept_token, _access_token(self.credential)):
            return False
        self.credential, self._kept_token = kept, token
        return True

    async def _store_credential(self, credential: Credential) -> None:
        self.credential = credential
        await asyncio.to_thread(self._store.store_credential, credential)
        self._kept_token = _access_token(credential)

    @asynccontextmanager
    async def _hold_credential_lock(self) -> AsyncGenerator[None]:
        lock = self._store.hold_credential_lock(self._url)
        try:
            await _enter_in_thread(lock)
        except OSError as error:
            raise SignInError(f"the sign-in to {self._url} cannot be renewed: {error}", fix="try again") from None
        try:
            yield
        finally:
            lock.__exit__(None, None, None)


async def _enter_in_thread(lock: AbstractContextManager[None]) -> None:
    """Wait for a lock in a thread. If that is cancelled, the thread gives back what it gets."""
    from anyio import CapacityLimiter, to_thread

    changing, is_held, is_given_up = threading.Lock(), False, False

    def enter() -> None:
        nonlocal is_held
        lock.__enter__()
        with changing:
            is_held = not is_given_up
        if not is_held:
            lock.__exit__(None, None, None)

    try:
        # A thread of its own: whoever holds the lock needs the usual ones to go on.
        await to_thread.run_sync(enter, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    except BaseException:
        with changing:
            is_given_up = True
        if is_held:
            lock.__exit__(None, None, None)
        raise


def read_claims_request(challenge: OAuthChallenge) -> str:
    """The claims that a challenge asks for, which are base64 there; empty if there are none that can be read."""
    text = challenge.parameters.get("claims", "")
    if challenge.error not in STEP_UP_ERRORS or len(text) > MAX_CLAIMS_LENGTH:
        return ""
    try:
        claims = b64decode(text, validate=True).decode("utf-8")
        return claims if is_object(json.loads(claims)) else ""
    except (ValueError, RecursionError):
        return ""


async def _as_peer_error(work: AsyncWork) -> bool:
    """A link hands on errors of peers alone."""
    try:
        return await work
    except PeerError:
        raise
    except UsageError as error:
        raise SignInError(error.problem, fix=error.fix) from None


def _access_token(credential: Credential | None) -> str:
    return credential.tokens.access_token if credential is not None and credential.tokens is not None else ""


def _authorization(credential: Credential) -> str:
    assert credential.tokens is not None
    return f"{credential.tokens.type} {credential.tokens.access_token}"


# -- How a client signs in, as one writes it: `Remote(url, auth=SignIn())`.


@explain_arguments
class SignIn:
    """A person signs in, in a browser, when the server asks for a token. `auth=SignIn()` is usually enough.

    scopes         what to ask for; None for what the server names
    client_id      of a client that you registered, or the https URL of its metadata (CIMD); without one, or where the
                   issuer takes no URLs, we register ourselves
    client_secret  of that client, if it has one
    name           what the issuer's page calls us, if we register
    redirect       how the person gets to the issuer and back; a browser of this machine by default
    store          where tokens are kept; with those of `defserve login` by default
    issuer         the issuer to take, which the server must name; with a `client_secret`, an issuer that is not at the
                   server's own origin must be given
    dpop           bind tokens to a key of ours; always done if the server says that it wants that
    anew           sign in even if there are tokens from before
    """

    def __init__(
        self,
        *,
        scopes: Sequence[str] | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        name: str = "defserve",
        redirect: Redirect | None = None,
        store: CredentialStore | None = None,
        issuer: str | None = None,
        dpop: bool = False,
        anew: bool = False,
    ) -> None:
        self._client, self._url_id = parse_client_id_and_secret(client_id, client_secret)
        self._scopes, self._name, self._redirect = scopes, name, redirect
        self._store, self._how = store, AuthorizerOptions(issuer, dpop, anew)

    def authorizer(self, url: str) -> ServerAuthorizer:
        """See `ClientAuth`. Raises UsageError for an address that is neither https nor on this machine."""
        redirect, store = self._redirect, get_user_credential_store() if self._store is None else self._store
        if redirect is None:
            from defserve.client.signin.browser import BrowserRedirect

            redirect = BrowserRedirect()
        grant = PersonGrant(redirect, self._client, self._url_id, self._name, self._scopes)
        return ServerAuthorizer(url, store, grant, self._how)


class StoredSignIn:
    """What `defserve login` has kept. It is renewed if it can be, and nobody is asked."""

    def __init__(self, store: CredentialStore | None = None) -> None:
        self._store = store

    def authorizer(self, url: str) -> ServerAuthorizer:
        """See `ClientAuth`."""
        return ServerAuthorizer(url, get_user_credential_store() if self._store is None else self._store, None)


class _Unattended:
    """A way to get tokens in which no person takes part. They are kept in memory, unless a `store` is given.

    A server does not decide who gets the secret: give the `issuer`, unless it is at the server's own origin.
    """

    def __init__(self, grant: TokenGrant, issuer: str | None, dpop: bool, store: CredentialStore | None) -> None:
        self._grant, self._how = grant, AuthorizerOptions(issuer, dpop)
        self._store = MemoryCredentialStore() if store is None else store

    def authorizer(self, url: str, *, anew: bool = False) -> ServerAuthorizer:
        """See `ClientAuth`. Raises UsageError for an address that is neither https nor on this machine."""
        return ServerAuthorizer(url, self._store, self._grant, self._how._replace(anew=anew))


@explain_arguments
class ClientCredentials(_Unattended):
    """The client acts for itself, with a secret or with a private key (PEM or JWK) whose public half the issuer knows.

    algorithm   what the key signs with: ES256, RS256, PS256, EdDSA …
    issuer      who knows the client; it must be given unless it is at the server's own origin
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        private_key: str | bytes | None = None,
        algorithm: str = "ES256",
        scopes: Sequence[str] | None = None,
        issuer: str | None = None,
        dpop: bool = False,
        store: CredentialStore | None = None,
    ) -> None:
        if (client_secret is None) == (private_key is None):
            raise UsageError(
                "ClientCredentials needs a client secret or a private key", fix="give one: client_secret, private_key"
            )
        key = _make_signing_key(private_key, algorithm)
        grant = ClientCredentialsGrant(ClientRegistration(client_id, client_secret), key, scopes)
        super().__init__(grant, issuer, dpop, store)


class CrossAppAccess(_Unattended):
    """A person who signed in at their company need not sign in again: its identity provider vouches for them.

    idp_token_endpoint   the token endpoint of the identity provider; it is trusted with the ID token
    id_token             what the identity provider gave when the person signed in there, or a function that gives a
                         fresh one; sync or async
    idp_client_id        our client there
    client_id            our client at the issuer of the server, and its secret, or the private key (PEM or JWK) that it
                         signs with
    issuer               that issuer; it must be given unless it is at the server's own origin
    """

    def __init__(
        self,
        *,
        idp_token_endpoint: str,
        id_token: GivenToken,
        client_id: str,
        client_secret: str | None = None,
        private_key: str | bytes | None = None,
        algorithm: str = "ES256",
        idp_client_id: str | None = None,
        idp_client_secret: str | None = None,
        scopes: Sequence[str] | None = None,
        issuer: str | None = None,
        dpop: bool = False,
        store: CredentialStore | None = None,
    ) -> None:
        there, _ = parse_client_id_and_secret(idp_client_id, idp_client_secret)
        grant = AssertionGrant(
            IdentityProvider(idp_token_endpoint, id_token, there).assertion,
            ClientRegistration(client_id, client_secret),
            scopes,
            signing_key=_make_signing_key(private_key, algorithm),
        )
        super().__init__(grant, issuer, dpop, store)


class WorkloadIdentity(_Unattended):
    """A workload shows the token that its platform gives it (Kubernetes, a cloud, SPIFFE).

    token    the token, or a function that gives a fresh one; sync or async
    issuer   who trusts the platform; it must be given unless it is at the server's own origin
    """

    def __init__(
        self,
        token: GivenToken,
        *,
        client_id: str,
        scopes: Sequence[str] | None = None,
        issuer: str | None = None,
        dpop: bool = False,
        store: CredentialStore | None = None,
    ) -> None:
        async def assertion(wanted: GrantRequest) -> str:
            return await resolve_given_token(token)

        super().__init__(AssertionGrant(assertion, ClientRegistration(client_id), scopes), issuer, dpop, store)


def _make_signing_key(private_key: str | bytes | None, algorithm: str) -> SigningKey | None:
    return None if private_key is None else SigningKey(private_key, algorithm)


# -- Signs a person in to a server, and out.


SIGN_IN_SECONDS: Final = 60.0
"""For each answer of the server. While somebody signs in, the clock stands still."""


class _Same:
    """A `ClientAuth` that gives one authorizer, to be looked at afterwards."""

    def __init__(self, authorizer: ServerAuthorizer) -> None:
        self._authorizer = authorizer

    def authorizer(self, url: str) -> ServerAuthorizer:
        return self._authorizer


async def sign_in(
    url: str,
    redirect: Redirect,
    *,
    scopes: Sequence[str] = (),
    client_id: str | None = None,
    client_secret: str | None = None,
    issuer: str | None = None,
) -> str:
    """Sign in to a server, and give its name. The tokens are kept for this user. Raises PeerError, UsageError.

    `scopes` are asked for beside those of before; without any, the server says which.
    """
    known = await asyncio.to_thread(get_user_credential_store().load_credential, url)
    authorizer = SignIn(
        scopes=(*(known.asked if known else ()), *scopes) if scopes else None,
        client_id=client_id,
        client_secret=client_secret,
        redirect=redirect,
        issuer=issuer,
        anew=True,
    ).authorizer(url)
    return await _sign_in_with(url, authorizer)


async def sign_in_unattended(url: str, auth: ClientCredentials | CrossAppAccess) -> str:
    """Sign in to a server without a person, and give its name. The tokens are kept where `auth` keeps them."""
    return await _sign_in_with(url, auth.authorizer(url, anew=True))


async def _sign_in_with(url: str, authorizer: ServerAuthorizer) -> str:
    name = await _visit(url, _Same(authorizer))
    if authorizer.credential is None or authorizer.credential.tokens is None:
        await authorizer.sign_in()
        name = await _visit(url, _Same(authorizer))
    return name


async def _visit(url: str, auth: ClientAuth) -> str:
    """Look at the server, so that it asks for a token, and give its name."""
    async with Client(await connect_url(url, auth=auth), timeout=SIGN_IN_SECONDS) as client:
        if "tools" in client.capabilities:
            try:
                await client.request("tools/list", {})
            except PeerError as error:
                if error.data and "status" in error.data:
                    raise
        return str(client.server_info.get("title") or client.server_info.get("name") or url)


async def sign_out(url: str) -> str:
    """Revoke the tokens for a server and forget them. What was not possible at the issuer; empty if all was.

    Raises UsageError if there is no such sign-in.
    """
    store = get_user_credential_store()
    try:
        credential = await asyncio.to_thread(store.load_credential, url)
    except UsageError:
        credential = None  # the keyring is gone: what is here is forgotten all the same
    if not await asyncio.to_thread(store.delete_credential, url):
        raise UsageError(f"you are not signed in to {url}", fix="`defserve login --list` shows where you are")
    if credential is None or credential.tokens is None:
        return ""
    endpoint = TokenEndpoint(credential.issuer, credential.client, Fetcher(credential.reach), proof_key=credential.key)
    try:
        if await endpoint.revoke(credential.tokens):
            return ""
        return f"{credential.issuer.issuer} cannot revoke tokens; they stay valid there until they expire"
    except SignInError as error:
        return f"the tokens are forgotten here, and not revoked: {error.problem}"
