"""Codes, access tokens and refresh tokens: made, exchanged, verified, taken back.

A token comes of a person's sign-in at the vendor, of an identity assertion of a company, or of a client's own
credentials. Each hangs on a grant in the store.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from defserve.auth.bearer_tokens import DpopProofRequest, ExplainingVerifier, TokenRefused, make_credential_name
from defserve.auth.dpop import NO_PROVED_KEY, DPoP, ProvedKey
from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.oauth import make_pkce_challenge
from defserve.auth.principals import Principal, is_token_principal_id
from defserve.auth.proxy.assertions import JWT_BEARER_GRANT, MAX_TOKEN_SECONDS, IdentityAssertionVerifier
from defserve.auth.proxy.authorization_requests import (
    AuthorizationRequest,
    RequestableAccess,
    ScopeRule,
    UserFilter,
    is_same_resource,
)
from defserve.auth.proxy.clients import ClientDirectory, OAuthClient
from defserve.auth.proxy.seals import TokenSealer
from defserve.auth.proxy.site_messages import OAuthError, SiteRequest, parse_request_form, require_form_field
from defserve.auth.proxy.vendors import VendorLogin
from defserve.base.concurrency import wait_for_shared
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.base.redaction import get_logger
from defserve.errors import DefserveError, ToolError
from defserve.stores.store import OAUTH_GRANT_SPACES, Lease, SharedNonceStore, Store, StoreChange, StoreCorrupt

log = get_logger("auth")

CODE_SECONDS: Final = 60.0
ACCESS_SECONDS: Final = 3600.0
SLACK_SECONDS: Final = 30.0
"""A vendor's token that ends sooner is renewed before a tool gets it: it has to last until its request arrives."""
MAX_UNCONFIRMED_SECONDS: Final = 8 * 3600.0
"""How long a sign-in lasts after the vendor has said who the user is, if it cannot be asked again."""
UNCONFIRMED_WARNING: Final = (
    "%s gives neither a refresh token nor an address that says who a user is, so nobody can ask whether a user is "
    "still welcome there: users sign in again after %g hours"
)
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")
CLIENT_SOURCE: Final = "client"
"""The source of a grant that a client has got for itself. A trusted issuer is a URL."""

GrantHandler: TypeAlias = Callable[[OAuthClient, Mapping[str, str], ProvedKey], Awaitable[dict[str, Any]]]
"""Answers a token request of a client: its form, and the key that it proves."""


# Made for each refusal: an exception that is raised again keeps the frames of every earlier request.
_refuse_code = partial(OAuthError, "invalid_grant", "this code is not good, was used, or belongs to another request")
_refuse_refresh_token = partial(
    OAuthError, "invalid_grant", "this refresh token is not good, was used, or was taken back"
)


class VendorSignInRules(NamedTuple):
    """Where people sign in, who of them may come in, and with which scopes."""

    login: VendorLogin
    allows: UserFilter
    rule: ScopeRule


class ProxyTokens(ExplainingVerifier):
    """Issues and verifies the tokens of one authorization server. `audiences` and `issuers` are its own.

    `vendor` is None where nobody signs in by a browser; `dpop` checks the proofs of tokens that are bound to a key.
    """

    def __init__(
        self,
        issuer: str,
        offered: RequestableAccess,
        seals: TokenSealer,
        grants: UserGrants,
        clients: ClientDirectory,
        vendor: VendorSignInRules | None,
        identities: IdentityAssertionVerifier,
        dpop: DPoP | None = None,
    ) -> None:
        self.audiences, self.issuers = (offered.resource,), (issuer,)
        self._offered, self._seals, self._grants, self._clients = offered, seals, grants, clients
        self._vendor, self._identities, self._dpop = vendor, identities, dpop
        self._renewing: dict[str, asyncio.Task[str | None]] = {}
        grant_handlers: dict[str, GrantHandler] = {
            "authorization_code": self._by_code,
            "refresh_token": self._by_refresh_token,
            JWT_BEARER_GRANT: self._by_identity_assertion,
            "client_credentials": self._by_client_credentials,
        }
        taken = {
            "authorization_code": vendor is not None,
            "refresh_token": vendor is not None,
            JWT_BEARER_GRANT: identities.has_issuers,
            "client_credentials": clients.has_unattended_clients,
        }
        self.grants = {name: handler for name, handler in grant_handlers.items() if taken[name]}
        """Each grant type that is taken here, and what answers it."""

    # -- at the server -----------------------------------------------------------------------------------

    async def check_token(self, token: str) -> Principal:
        """The user who has signed in. Raises TokenRefused if the token is not good, its grant was taken back, or the
        user is not allowed in any more.

        Raises IssuerUnavailable if the store does not answer: then a client should not throw its token away.
        """
        found = self._seals.open("access", token)
        if found is None:
            raise TokenRefused("seal: this server has not issued it, or it has expired")
        id, scopes, ends = found
        try:
            grant = await self._grants.find_recent_grant(id)
        except DefserveError as error:
            log.error("grants cannot be read: %s", error)
            raise IssuerUnavailable("the store of grants does not answer") from None
        if not self._is_ours(grant) or grant.generation == 0 or not is_token_principal_id(grant.subject):
            raise TokenRefused("revoked: its sign-in has ended, or was for another server")
        if not self._is_allowed(grant):
            raise TokenRefused("user: the user is not allowed in any more", {"sub": grant.subject})
        claims = {**grant.claims, "iss": self.issuers[0], "aud": grant.resource, "client_id": grant.client}
        more: dict[str, Any] = {"scope": " ".join(scopes), "exp": ends, "grant": id}
        if grant.bound_to:
            more["cnf"] = {"jkt": grant.bound_to}
        return Principal(grant.subject, frozenset(scopes), {**claims, **more}, credential=make_credential_name(token))

    def _is_allowed(self, grant: UserGrant) -> bool:
        """Whether whoever vouched for a caller is still trusted, and the caller is still let in."""
        if grant.source == CLIENT_SOURCE:
            return self._clients.is_operator_client(grant.client)
        if grant.source:
            trusted = self._identities.find_trusted_issuer(grant.source)
            return trusted is not None and trusted.allows(grant.claims)
        # A vendor's user cannot have the name of somebody whom another issuer vouches for.
        is_other = self._identities.has_trusted_issuer_prefix(grant.subject) or grant.subject.startswith(
            f"{self.issuers[0]}|"
        )
        return self._vendor is not None and not is_other and self._vendor.allows(grant.claims)

    async def vendor_token(self, principal: Principal) -> str | None:
        """The vendor's own token of a caller, for calls in its name. It must never be given to the caller.

        It is renewed if it ends soon. Raises ToolError if it has ended, and the vendor does not answer.
        """
        id = principal.claims.get("grant")
        grant = await self._grants.find_grant(id) if isinstance(id, str) else None
        if not self._is_ours(grant):
            return None
        tokens = self._vendor_tokens(grant)
        if not self._must_renew(tokens):
            return tokens.get("access_token")
        renewing = self._renewing.get(grant.id)
        if renewing is None:
            renewing = self._renewing[grant.id] = asyncio.create_task(self._renew_vendor_token(grant.id))
            renewing.add_done_callback(partial(self._forget_renewal, grant.id))
        # Many vendors take a refresh token once: a caller that gives up must not lose what comes for it.
        return await wait_for_shared(renewing)

    def _must_renew(self, tokens: Mapping[str, str]) -> bool:
        login = self._vendor.login if self._vendor is not None else None
        return login is not None and "refresh_token" in tokens and login.count_seconds_left(tokens) <= SLACK_SECONDS

    def _forget_renewal(self, id: str, renewing: asyncio.Task[str | None]) -> None:
        self._renewing.pop(id, None)

    async def _renew_vendor_token(self, id: str) -> str | None:
        assert self._vendor is not None
        login = self._vendor.login
        async with self._grants.hold_grant(id):
            grant = await self._grants.find_grant(id)
            if not self._is_ours(grant):
                return None
            tokens = self._vendor_tokens(grant)
            if not self._must_renew(tokens):
                return tokens.get("access_token")  # another process was first
            try:
                renewed = await login.renew_tokens(tokens)
            except OAuthError as error:
                if error.error == "invalid_grant":
                    log.warning("the vendor has ended the access of %s, who has to sign in again", grant.subject)
                    await self._grants.revoke_grant(id)
                    return None
                if login.count_seconds_left(tokens) > 0:
                    return tokens.get("access_token")
                raise ToolError(
                    "Your sign-in cannot be renewed at the moment. Try again.", data={"retry": True}
                ) from None
            kept = await self._grants.change_grant(grant, vendor=self._seal_vendor_tokens(renewed))
            return renewed.get("access_token") if kept is not None else None

    def _is_ours(self, grant: UserGrant | None) -> TypeGuard[UserGrant]:
        """Whether a grant was given for this server, and not for another that shares its namespace."""
        return grant is not None and is_same_resource(grant.resource, self.audiences[0])

    def _vendor_tokens(self, grant: UserGrant) -> dict[str, str]:
        # Of our own store. Tokens of a vendor that lists groups or roles in them are long.
        found: dict[str, str] | None = self._seals.open("vendor", grant.vendor, max_length=None)
        return found or {}

    def _seal_vendor_tokens(self, tokens: Mapping[str, str]) -> str:
        return self._seals.seal("vendor", {name: tokens[name] for name in tokens if name != "id_token"})

    # -- at the token endpoint ---------------------------------------------------------------------------

    def issue_code(self, grant: UserGrant, request: AuthorizationRequest) -> str:
        """A code for a grant, which only the client that made the request can use."""
        return self._seals.seal("code", [grant.id, request.challenge, request.redirect], seconds=CODE_SECONDS)

    async def answer_token_request(self, request: SiteRequest) -> dict[str, Any]:
        """The answer of the token endpoint. Raises OAuthError."""
        form = parse_request_form(request)
        client = await self._clients.authenticate_client(request, form)
        handler = self.grants.get(require_form_field(form, "grant_type"))
        if handler is None:
            raise OAuthError("unsupported_grant_type", f"use {' or '.join(self.grants)}")
        return await handler(client, form, self._verify_proof(request))

    def _verify_proof(self, request: SiteRequest) -> ProvedKey:
        """The key that tokens are to be bound to. Raises OAuthError."""
        proof = request.headers.get("dpop")
        if self._dpop is None or (proof is None and not self._dpop.required):
            return NO_PROVED_KEY
        proofs = [] if proof is None else [proof.encode("latin-1", "replace")]
        shown = DpopProofRequest("POST", f"{self.issuers[0]}/token", proofs)
        proved, error = self._dpop.check_token_request(shown)
        if error:
            raise self._refuse_proof(error)
        return proved

    def _refuse_proof(self, error: str) -> OAuthError:
        nonce = [("dpop-nonce", self._dpop.new_nonce())] if self._dpop is not None and self._dpop.wants_nonce else []
        return OAuthError(error, "the DPoP proof of this request is missing or not good", nonce)

    async def _spend_proofs(self, client: OAuthClient, proved: ProvedKey) -> None:
        """What a request proves itself by is good once. Raises OAuthError.

        Each handler calls this when the grant is good, and before anything is done: strangers, who have no grant,
        leave nothing in the store.
        """
        await self._clients.spend_assertion(client)
        if self._dpop is not None and proved.proof and (error := await self._dpop.spend_proof(proved)):
            raise self._refuse_proof(error)

    async def _by_identity_assertion(
        self, client: OAuthClient, form: Mapping[str, str], proved: ProvedKey
    ) -> dict[str, Any]:
        """A token for a person whom a company's identity provider vouches for. There is no refresh token."""
        found = await self._identities.check_assertion(require_form_field(form, "assertion"), client)
        self._check_resource(form, self.audiences[0])
        if found.bound_to and not _same(found.bound_to, proved.thumbprint):
            raise OAuthError("invalid_grant", "this assertion is not good here: cnf: its key has not been proved")
        trusted = found.trusted
        may_give = self._offered.scopes if trusted.scopes is None else trusted.scopes
        asserted = self._offered.scopes if found.scopes is None else found.scopes
        scopes = _intersect_scopes(form, [scope for scope in may_give if scope in asserted])
        await self._spend_proofs(client, proved)
        if not trusted.reuse and not await self._grants.claim_first_use("id-jag", found.id, found.seconds):
            log.warning("an identity assertion for the client %s was used twice", client.key)
            raise OAuthError("invalid_grant", "this assertion is not good here: jti: it was used before")
        return await self._issue_for(
            client, found.principal, scopes, found.claims, trusted.seconds, trusted.name, proved.thumbprint
        )

    async def _by_client_credentials(
        self, client: OAuthClient, form: Mapping[str, str], proved: ProvedKey
    ) -> dict[str, Any]:
        """A token for a client that acts for itself, if the operator has said that it may (RFC 6749 §4.4)."""
        if client.own_scopes is None:
            raise OAuthError("unauthorized_client", "this client may not act for itself")
        self._check_resource(form, self.audiences[0])
        subject = make_client_subject(self.issuers[0], client.id)
        scopes, claims = _intersect_scopes(form, client.own_scopes), {"sub": subject, "client_name": client.name}
        await self._spend_proofs(client, proved)
        return await self._issue_for(
            client, subject, scopes, claims, MAX_TOKEN_SECONDS, CLIENT_SOURCE, proved.thumbprint
        )

    async def _issue_for(
        self,
        client: OAuthClient,
        subject: str,
        scopes: tuple[str, ...],
        claims: Mapping[str, Any],
        seconds: float,
        source: str,
        thumbprint: str,
    ) -> dict[str, Any]:
        now = time.time()
        grant = UserGrant(
            make_random_id(),
            client.key,
            subject,
            scopes,
            self.audiences[0],
            claims,
            "",
            now + seconds,
            generation=1,
            confirmed=now,
            source=source,
            bound_to=thumbprint,
        )
        await self._grants.add_grant(grant, seconds)
        return self._issue_tokens(grant, scopes)

    async def _by_code(self, client: OAuthClient, form: Mapping[str, str], proved: ProvedKey) -> dict[str, Any]:
        verifier, found = (
            require_form_field(form, "code_verifier"),
            self._seals.open("code", require_form_field(form, "code")),
        )
        if found is None or _VERIFIER.fullmatch(verifier) is None:
            raise _refuse_code()
        id, challenge, redirect = found
        grant = await self._grants.find_grant(id)
        if (
            not self._is_ours(grant)
            or not _same(grant.client, client.key)
            or not _same(challenge, make_pkce_challenge(verifier))
            or form.get("redirect_uri", redirect) != redirect
        ):
            raise _refuse_code()
        self._check_resource(form, grant.resource)
        await self._spend_proofs(client, proved)
        if not await self._grants.claim_first_use("code", id, PENDING_SECONDS):
            # Two have shown the same code: nobody knows which of them is the client (RFC 6749 §4.1.2).
            await self._grants.revoke_grant(id)
            raise _refuse_code()
        renewed = await self._grants.renew_grant(grant, bound_to=proved.thumbprint)
        if renewed is None:
            raise _refuse_code()
        return self._issue_tokens(renewed, renewed.scopes)

    async def _by_refresh_token(
        self, client: OAuthClient, form: Mapping[str, str], proved: ProvedKey
    ) -> dict[str, Any]:
        found = self._seals.open("refresh", require_form_field(form, "refresh_token"))
        if found is None:
            raise _refuse_refresh_token()
        # A tool may renew the vendor's tokens of this grant at the same time, which vendors may take for a theft.
        async with self._grants.hold_grant(found[0]):
            return await self._renew_for_client(found[0], found[1], client, form, proved)

    async def _renew_for_client(
        self, id: str, generation: int, client: OAuthClient, form: Mapping[str, str], proved: ProvedKey
    ) -> dict[str, Any]:
        grant = await self._grants.find_grant(id)
        if not self._is_ours(grant) or not _same(grant.client, client.key):
            raise _refuse_refresh_token()
        await self._spend_proofs(client, proved)
        if generation != grant.generation:
            # A refresh token came back that was used already: it, or what it was exchanged for, was stolen.
            log.warning("a refresh token was used twice; the grant of client %s is taken back", client.key)
            await self._grants.revoke_grant(grant.id)
            raise _refuse_refresh_token()
        self._check_resource(form, grant.resource)
        if grant.bound_to and not _same(grant.bound_to, proved.thumbprint):
            raise OAuthError("invalid_dpop_proof", "this refresh token is bound to a key that has not been proved")
        scopes = tuple(dict.fromkeys(form.get("scope", "").split())) or grant.scopes
        if not set(scopes) <= set(grant.scopes):
            raise OAuthError("invalid_scope", "a refresh cannot add scopes; sign in again for more")
        try:
            vendor, claims, is_confirmed = await self._renew_at_vendor(grant)
            assert self._vendor is not None
            if not self._vendor.allows(claims):
                log.warning("%s may not use this server any more: OAuthProxy(allow=…)", grant.subject)
                raise _refuse_refresh_token()
            scopes = await self._vendor.rule.grant_scopes(claims, scopes)
            confirmed = time.time() if is_confirmed else grant.confirmed
            until = grant.until if is_confirmed else min(grant.until, confirmed + MAX_UNCONFIRMED_SECONDS)
            if until <= time.time():
                raise OAuthError("invalid_grant", "the vendor cannot be asked about this account: sign in again")
            renewed = await self._grants.renew_grant(
                grant,
                vendor=vendor,
                claims=claims,
                confirmed=confirmed,
                until=until,
                # A client that proves a key only from now on gets tokens that are bound to it (RFC 9449 §5).
                bound_to=grant.bound_to or proved.thumbprint,
            )
            if renewed is None:
                raise _refuse_refresh_token()
        except OAuthError as error:
            if error.error == "invalid_grant":
                await self._grants.revoke_grant(grant.id)
            raise
        return self._issue_tokens(renewed, scopes)

    async def _renew_at_vendor(self, grant: UserGrant) -> tuple[str, Mapping[str, Any], bool]:
        """The vendor's tokens, sealed again, what it says of the user, and whether it says so now.

        Raises OAuthError: `invalid_grant` if it does not vouch for this user any more.
        """
        assert self._vendor is not None
        tokens = await self._vendor.login.renew_tokens(self._vendor_tokens(grant))
        sealed = self._seal_vendor_tokens(tokens)
        try:
            claims = await self._vendor.login.reconfirm_user(tokens)
        except OAuthError as error:
            if error.error != "invalid_grant":
                # Many vendors take a refresh token once: what came for it must not be lost.
                await self._grants.change_grant(grant, vendor=sealed)
            raise
        if claims is None:
            return sealed, grant.claims, False
        if claims["sub"] != grant.subject:
            log.warning("the vendor speaks of %s, and %s had signed in", claims["sub"], grant.subject)
            raise _refuse_refresh_token()
        # A rule that refuses by a claim would let in whoever has lost it.
        if lost := sorted(grant.claims.keys() - claims.keys()):
            log.warning("the vendor does not say %s of %s any more, who signs in again", ", ".join(lost), grant.subject)
            raise OAuthError("invalid_grant", "the vendor says less of this account than at the sign-in: sign in again")
        return sealed, claims, True

    def _check_resource(self, form: Mapping[str, str], resource: str) -> None:
        if "resource" in form and not is_same_resource(form["resource"], resource):
            raise OAuthError("invalid_target", "tokens are issued here for this server only")

    def _issue_tokens(self, grant: UserGrant, scopes: tuple[str, ...]) -> dict[str, Any]:
        now = time.time()
        ends = int(min(grant.until, now + ACCESS_SECONDS))
        access = self._seals.seal("access", [grant.id, scopes, ends], seconds=ACCESS_SECONDS)
        # Who came by a statement gets a new token by a new one, so whoever may not come back has no other way.
        renewal = {} if grant.source else {"refresh_token": self._seals.seal("refresh", [grant.id, grant.generation])}
        return {
            "access_token": access,
            "token_type": "DPoP" if grant.bound_to else "Bearer",
            "expires_in": max(0, ends - int(now)),
            **renewal,
            "scope": " ".join(scopes),
        }

    # -- taking back -------------------------------------------------------------------------------------

    async def answer_revoke_request(self, request: SiteRequest) -> None:
        """Take back a token, and all that hang on the same grant (RFC 7009). An unknown token is no error."""
        form = parse_request_form(request)
        client = await self._clients.authenticate_client(request, form)
        token = require_form_field(form, "token")
        found = self._seals.open("refresh", token) or self._seals.open("access", token)
        grant = await self._grants.find_grant(found[0]) if found is not None else None
        if self._is_ours(grant) and _same(grant.client, client.key):
            await self._clients.spend_assertion(client)
            await self._grants.revoke_grant(grant.id)


def make_client_subject(issuer: str, client_id: str) -> str:
    """What a client is called that acts for itself."""
    return f"{issuer}|{client_id}"


def _intersect_scopes(form: Mapping[str, str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Those of the allowed scopes that a request asks for; all, if it names none. Raises OAuthError if none is left."""
    asked = form.get("scope", "").split()
    granted = tuple(scope for scope in allowed if not asked or scope in asked)
    if asked and not granted:
        raise OAuthError("invalid_scope", "none of these scopes can be had here")
    return granted


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


# -- What a user has allowed a client: one record in the store, which all tokens of the client hang on.


_RECORD: Final = "record"
KEPT_BYTES: Final = 4 * 1024 * 1024

# As for tokens that are asked about: credentials in use are verified every two seconds.
KEPT_SECONDS: Final = 1.5
PENDING_SECONDS: Final = 120.0
MAX_HOLD_WAIT_SECONDS: Final = 15.0
"""How long a renewal waits for another one of the same grant, which waits for the vendor."""


@dataclass(frozen=True, slots=True)
class UserGrant:
    """A user's yes. `generation` counts its refresh tokens; 0 until the code was exchanged. `vendor` is sealed.

    `claims` are what the vendor said of the user, and `confirmed` is when it said so last. `source` says who vouches
    for a caller that is none of the vendor's: a trusted issuer, or the client itself. `bound_to` is the thumbprint of
    the key that its tokens are bound to.
    """

    id: str
    client: str
    subject: str
    scopes: tuple[str, ...]
    resource: str
    claims: Mapping[str, Any]
    vendor: str
    until: float
    generation: int = 0
    confirmed: float = 0.0
    source: str = ""
    bound_to: str = ""


class UserGrants:
    """The grants of an authorization server, in a store that all its processes share."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._nonces = SharedNonceStore(store)
        self._kept: ByteBoundedCache[tuple[UserGrant | None, float]] = ByteBoundedCache(KEPT_BYTES)

    async def add_grant(self, grant: UserGrant, seconds: float = PENDING_SECONDS) -> None:
        """Keep a new grant: until its code is exchanged, or for so many seconds."""
        await self._store.change(
            StoreChange(OAUTH_GRANT_SPACES.make_space(grant.id), {_RECORD: _encode_grant(grant)}, ttl=seconds)
        )

    async def find_grant(self, id: str) -> UserGrant | None:
        """The grant as it is now."""
        found = (await self._store.get(OAUTH_GRANT_SPACES.make_space(id), (_RECORD,))).get(_RECORD)
        grant = None if found is None else _decode_grant(found)
        return grant if grant is not None and self._clock() < grant.until else None

    async def find_recent_grant(self, id: str) -> UserGrant | None:
        """The grant as it was less than two seconds ago."""
        kept, now = self._kept.get(id), time.monotonic()
        if kept is not None and now < kept[1]:
            return kept[0]
        grant = await self.find_grant(id)
        size = 1024 + (len(_encode_grant(grant)) if grant is not None else 0)
        self._kept.store_value(id, (grant, now + KEPT_SECONDS), size)
        return grant

    @asynccontextmanager
    async def hold_grant(self, id: str) -> AsyncGenerator[None]:
        """Nobody else who holds this grant renews it meanwhile, in any process. Raises StoreBusy after a while."""
        lease = Lease(self._store, f"oauth grant {id}")
        await lease.acquire(MAX_HOLD_WAIT_SECONDS)
        try:
            yield
        finally:
            await lease.release()

    async def renew_grant(self, grant: UserGrant, **changed: Any) -> UserGrant | None:
        """The grant with its next refresh token, and what has changed. None: another request was first, or it is gone.

        It is called once for a code (`claim_first_use`), and each refresh has sealed its `vendor` anew. So no two
        requests make the same record, and one that is found in the store is this request's own.
        """
        return await self.change_grant(grant, generation=grant.generation + 1, **changed)

    async def change_grant(self, grant: UserGrant, **changed: Any) -> UserGrant | None:
        """The grant with other values. None: it was changed meanwhile, or is gone."""
        after = replace(grant, **changed)
        change = StoreChange(
            OAUTH_GRANT_SPACES.make_space(grant.id),
            {_RECORD: _encode_grant(after)},
            expect={_RECORD: _encode_grant(grant)},
            ttl=max(after.until - self._clock(), 1.0),
        )
        # A store that lost its connection may repeat a change, and then find its own first attempt.
        return after if await self._store.change(change) or await self.find_grant(grant.id) == after else None

    async def revoke_grant(self, id: str) -> None:
        """Take a grant back, and with it every token that hangs on it."""
        await self._store.change(StoreChange(OAUTH_GRANT_SPACES.make_space(id), drop=(_RECORD,), ttl=PENDING_SECONDS))
        self._kept.drop(id)

    async def claim_first_use(self, what: str, id: str, seconds: float) -> bool:
        """Whether something that may be used once is used for the first time, in any process."""
        return await self._nonces.spend(f"oauth {what} {id}", ttl=seconds)


def make_random_id() -> str:
    return secrets.token_urlsafe(24)


def _encode_grant(grant: UserGrant) -> bytes:
    return json.dumps(asdict(grant), sort_keys=True).encode()


def _decode_grant(value: bytes) -> UserGrant:
    """Raises StoreCorrupt."""
    try:
        kept: dict[str, Any] = json.loads(value)
        kept["scopes"] = tuple(kept["scopes"])
        return UserGrant(**kept)
    except (ValueError, TypeError, KeyError):
        raise StoreCorrupt("a grant in the store cannot be read") from None
