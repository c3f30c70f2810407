"""Codes, access tokens and refresh tokens: made, exchanged, verified, taken back."""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeGuard

from defserve.auth.bearer_tokens import ExplainingVerifier, TokenRefused, make_credential_name
from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.oauth import make_pkce_challenge
from defserve.auth.principals import Principal, is_scope, is_token_principal_id
from defserve.auth.proxy.authorization_requests import AuthorizationRequest, ScopeRule, UserFilter, is_same_resource
from defserve.auth.proxy.clients import ClientDirectory, OAuthClient
from defserve.auth.proxy.seals import TokenSealer
from defserve.auth.proxy.site_messages import OAuthError, SiteRequest, parse_form, require_field
from defserve.auth.proxy.vendors import VendorLogin
from defserve.base.peer_bounds import ByteCache
from defserve.errors import DefserveError
from defserve.stores.store import OAUTH_GRANT_SPACES, Store, StoreChange, StoreCorrupt, StoreNonces

log = logging.getLogger("defserve.auth")

CODE_SECONDS: Final = 60.0
ACCESS_SECONDS: Final = 3600.0
MAX_UNCONFIRMED_SECONDS: Final = 8 * 3600.0
"""How long a sign-in lasts after the vendor has said who the user is, if it cannot be asked again."""
UNCONFIRMED_WARNING: Final = (
    "%s gives neither a refresh token nor an address that says who a user is, so nobody can ask whether a user is "
    "still welcome there: users sign in again after %g hours"
)
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_BAD_CODE: Final = OAuthError("invalid_grant", "this code is not good, was used, or belongs to another request")
_BAD_TOKEN: Final = OAuthError("invalid_grant", "this refresh token is not good, was used, or was taken back")


class ProxyTokens(ExplainingVerifier):
    """Issues and verifies the tokens of one authorization server. `audiences` and `issuers` are its own."""

    def __init__(
        self,
        issuer: str,
        resource: str,
        seals: TokenSealer,
        grants: UserGrants,
        clients: ClientDirectory,
        login: VendorLogin,
        allows: UserFilter,
        rule: ScopeRule,
    ) -> None:
        self.audiences, self.issuers = (resource,), (issuer,)
        self._seals, self._grants, self._clients, self._login = seals, grants, clients, login
        self._allows, self._rule = allows, rule

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
        if not self._allows(grant.claims):
            raise TokenRefused("user: the user is not allowed in any more", {"sub": grant.subject})
        claims = {**grant.claims, "iss": self.issuers[0], "aud": grant.resource, "client_id": grant.client}
        more = {"scope": " ".join(scopes), "exp": ends, "grant": id}
        return Principal(grant.subject, frozenset(scopes), {**claims, **more}, credential=make_credential_name(token))

    async def vendor_token(self, principal: Principal) -> str | None:
        """The vendor's own token of a caller, for calls in its name. It must never be given to the caller."""
        id = principal.claims.get("grant")
        grant = await self._grants.find_grant(id) if isinstance(id, str) else None
        return self._vendor_tokens(grant).get("access_token") if self._is_ours(grant) else None

    def _is_ours(self, grant: UserGrant | None) -> TypeGuard[UserGrant]:
        """Whether a grant was given for this server, and not for another that shares its namespace."""
        return grant is not None and is_same_resource(grant.resource, self.audiences[0])

    def _vendor_tokens(self, grant: UserGrant) -> dict[str, str]:
        found: dict[str, str] | None = self._seals.open("vendor", grant.vendor)
        return found or {}

    # -- at the token endpoint ---------------------------------------------------------------------------

    def issue_code(self, grant: UserGrant, request: AuthorizationRequest) -> str:
        """A code for a grant, which only the client that made the request can use."""
        return self._seals.seal("code", [grant.id, request.challenge, request.redirect], seconds=CODE_SECONDS)

    async def answer_token_request(self, request: SiteRequest) -> dict[str, Any]:
        """The answer of the token endpoint. Raises OAuthError."""
        form = parse_form(request)
        client = await self._clients.authenticate_client(request, form)
        match require_field(form, "grant_type"):
            case "authorization_code":
                return await self._by_code(client, form)
            case "refresh_token":
                return await self._by_refresh_token(client, form)
            case _:
                raise OAuthError("unsupported_grant_type", "use authorization_code or refresh_token")

    async def _by_code(self, client: OAuthClient, form: Mapping[str, str]) -> dict[str, Any]:
        verifier, found = require_field(form, "code_verifier"), self._seals.open("code", require_field(form, "code"))
        if found is None or _VERIFIER.fullmatch(verifier) is None:
            raise _BAD_CODE
        id, challenge, redirect = found
        grant = await self._grants.find_grant(id)
        if (
            not self._is_ours(grant)
            or not _same(grant.client, client.key)
            or not _same(challenge, make_pkce_challenge(verifier))
            or form.get("redirect_uri", redirect) != redirect
        ):
            raise _BAD_CODE
        self._check_resource(form, grant)
        if not await self._grants.is_first_use("code", id, PENDING_SECONDS):
            # Two have shown the same code: nobody knows which of them is the client (RFC 6749 §4.1.2).
            await self._grants.revoke_grant(id)
            raise _BAD_CODE
        renewed = await self._grants.renew_grant(grant)
        if renewed is None:
            raise _BAD_CODE
        return self._issue_tokens(renewed, renewed.scopes)

    async def _by_refresh_token(self, client: OAuthClient, form: Mapping[str, str]) -> dict[str, Any]:
        found = self._seals.open("refresh", require_field(form, "refresh_token"))
        grant = await self._grants.find_grant(found[0]) if found is not None else None
        if found is None or not self._is_ours(grant) or not _same(grant.client, client.key):
            raise _BAD_TOKEN
        if found[1] != grant.generation:
            # A refresh token came back that was used already: it, or what it was exchanged for, was stolen.
            log.warning("a refresh token was used twice; the grant of client %s is taken back", client.key)
            await self._grants.revoke_grant(grant.id)
            raise _BAD_TOKEN
        self._check_resource(form, grant)
        scopes = tuple(filter(is_scope, form["scope"].split(" "))) if form.get("scope") else grant.scopes
        if not set(scopes) <= set(grant.scopes):
            raise OAuthError("invalid_scope", "a refresh cannot add scopes; sign in again for more")
        try:
            vendor, claims, is_confirmed = await self._renew_at_vendor(grant)
            if not self._allows(claims):
                log.warning("%s may not use this server any more: OAuthProxy(allow=…)", grant.subject)
                raise _BAD_TOKEN
            scopes = await self._rule.grant_scopes(claims, scopes)
            confirmed = time.time() if is_confirmed else grant.confirmed
            until = grant.until if is_confirmed else min(grant.until, confirmed + MAX_UNCONFIRMED_SECONDS)
            if until <= time.time():
                raise OAuthError("invalid_grant", "the vendor cannot be asked about this account: sign in again")
            renewed = await self._grants.renew_grant(
                grant, vendor=vendor, claims=claims, confirmed=confirmed, until=until
            )
            if renewed is None:
                raise _BAD_TOKEN
        except OAuthError as error:
            if error.error == "invalid_grant":
                await self._grants.revoke_grant(grant.id)
            raise
        return self._issue_tokens(renewed, scopes)

    async def _renew_at_vendor(self, grant: UserGrant) -> tuple[str, Mapping[str, Any], bool]:
        """The vendor's tokens, sealed again, what it says of the user, and whether it says so now.

        Raises OAuthError: `invalid_grant` if it does not vouch for this user any more.
        """
        tokens = await self._login.renew_tokens(self._vendor_tokens(grant))
        sealed = self._seals.seal("vendor", {name: tokens[name] for name in tokens if name != "id_token"})
        try:
            claims = await self._login.confirm_user(tokens)
        except OAuthError as error:
            if error.error != "invalid_grant":
                # Many vendors take a refresh token once: what came for it must not be lost.
                await self._grants.change_grant(grant, vendor=sealed)
            raise
        if claims is None:
            return sealed, grant.claims, False
        if claims["sub"] != grant.subject:
            log.warning("the vendor speaks of %s, and %s had signed in", claims["sub"], grant.subject)
            raise _BAD_TOKEN
        # A rule that refuses by a claim would let in whoever has lost it.
        if lost := sorted(grant.claims.keys() - claims.keys()):
            log.warning("the vendor does not say %s of %s any more, who signs in again", ", ".join(lost), grant.subject)
            raise OAuthError("invalid_grant", "the vendor says less of this account than at the sign-in: sign in again")
        return sealed, claims, True

    def _check_resource(self, form: Mapping[str, str], grant: UserGrant) -> None:
        if "resource" in form and not is_same_resource(form["resource"], grant.resource):
            raise OAuthError("invalid_target", "tokens are issued here for this server only")

    def _issue_tokens(self, grant: UserGrant, scopes: tuple[str, ...]) -> dict[str, Any]:
        now = time.time()
        ends = int(min(grant.until, now + ACCESS_SECONDS))
        access = self._seals.seal("access", [grant.id, scopes, ends], seconds=ACCESS_SECONDS)
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": max(0, ends - int(now)),
            "refresh_token": self._seals.seal("refresh", [grant.id, grant.generation]),
            "scope": " ".join(scopes),
        }

    # -- taking back -------------------------------------------------------------------------------------

    async def answer_revoke_request(self, request: SiteRequest) -> None:
        """Take back a token, and all that hang on the same grant (RFC 7009). An unknown token is no error."""
        form = parse_form(request)
        client = await self._clients.authenticate_client(request, form)
        token = require_field(form, "token")
        found = self._seals.open("refresh", token) or self._seals.open("access", token)
        grant = await self._grants.find_grant(found[0]) if found is not None else None
        if self._is_ours(grant) and _same(grant.client, client.key):
            await self._grants.revoke_grant(grant.id)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


# -- What a user has allowed a client: one record in the store, which all tokens of the client hang on.


_RECORD: Final = "record"
KEPT_BYTES: Final = 4 * 1024 * 1024

# As for tokens that are asked about: credentials in use are verified every two seconds.
KEPT_SECONDS: Final = 1.5
PENDING_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class UserGrant:
    """A user's yes. `generation` counts its refresh tokens; 0 until the code was exchanged. `vendor` is sealed.

    `claims` are what the vendor said of the user, and `confirmed` is when it said so last.
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


class UserGrants:
    """The grants of an authorization server, in a store that all its processes share."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._nonces = StoreNonces(store)
        self._kept: ByteCache[tuple[UserGrant | None, float]] = ByteCache(KEPT_BYTES)

    async def add_grant(self, grant: UserGrant) -> None:
        """Keep a new grant until its code is exchanged."""
        await self._store.change(
            StoreChange(OAUTH_GRANT_SPACES.make_space(grant.id), {_RECORD: _encode_grant(grant)}, ttl=PENDING_SECONDS)
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

    async def renew_grant(self, grant: UserGrant, **changed: Any) -> UserGrant | None:
        """The grant with its next refresh token, and what has changed. None: another request was first, or it is gone.

        It is called once for a code (`is_first`), and each refresh has sealed its `vendor` anew. So no two requests
        make the same record, and one that is found in the store is this request's own.
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

    async def is_first_use(self, what: str, id: str, seconds: float) -> bool:
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
