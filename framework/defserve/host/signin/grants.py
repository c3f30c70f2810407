"""How tokens are got: by a person (`SignIn`), by a secret or key of a client, by a company's identity provider, or by
the identity of a workload."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from defserve.errors import UsageError
from defserve.host.fields import text_of
from defserve.host.signin.clients import NONE, SIGNED, ClientRegistration, is_url_id, method_for, register
from defserve.host.signin.code_flow import OFFLINE, Attempt, check_issuer
from defserve.host.signin.credential import Credential
from defserve.host.signin.discovery import Discovered
from defserve.host.signin.documents import IssuerMetadata
from defserve.host.signin.errors import SignInError
from defserve.host.signin.fetching import Fetcher
from defserve.host.signin.proofs import ProofKey
from defserve.host.signin.reach import Reach
from defserve.host.signin.redirects.redirect import Redirect
from defserve.host.signin.tokens import SigningKey, TokenEndpoint

TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"


class Wanted(NamedTuple):
    """What a grant is to get: tokens for `server`, with these scopes. `known` is what was kept for it before."""

    server: str
    found: Discovered
    scopes: tuple[str, ...]
    fetcher: Fetcher
    key: ProofKey | None
    known: Credential | None

    def credential(self, client: ClientRegistration) -> Credential:
        """What will be kept, without its tokens."""
        resource, reach = self.found.resource.resource, self.fetcher.reach
        return Credential(self.server, resource, self.found.issuer, client, None, self.scopes, self.key, reach)


class TokenGrant(Protocol):
    """A way to get tokens."""

    @property
    def scopes(self) -> Sequence[str] | None:
        """The scopes to ask for; None for those that the server names."""
        ...

    @property
    def shows_secret(self) -> bool:
        """Whether the issuer is shown a secret or an assertion that was given, and that others could use."""
        ...

    def scopes_beside(self, issuer: IssuerMetadata) -> Sequence[str]:
        """Further scopes to ask this issuer for."""
        ...

    async def obtain(self, wanted: Wanted) -> Credential:
        """Get tokens. Raises SignInError."""
        ...


@dataclass(frozen=True, slots=True)
class PersonGrant:
    """A person says yes in a browser."""

    redirect: Redirect
    client: ClientRegistration | None = None
    url_id: str | None = None
    name: str = "defserve"
    scopes: Sequence[str] | None = None

    @property
    def shows_secret(self) -> bool:
        return self.client is not None and self.client.client_secret is not None

    def scopes_beside(self, issuer: IssuerMetadata) -> Sequence[str]:
        return (OFFLINE,) if OFFLINE in issuer.scopes else ()

    async def obtain(self, wanted: Wanted) -> Credential:
        issuer = wanted.found.issuer
        check_issuer(issuer)
        known = self._registered(wanted)
        # Each issuer sends people to an address of its own, so that none can pass on a code of another (RFC 9700 §4.4).
        mark = "" if self._is_given(issuer) else hashlib.sha256(issuer.issuer.encode()).hexdigest()[:16]
        async with self.redirect.open(known.redirect_uri if known else "", mark) as visit:
            client = await self._client(wanted, known, visit.uri)
            attempt = Attempt(wanted.found, client, visit.uri, wanted.scopes)
            await wanted.fetcher.check(issuer.authorization_endpoint, "the authorization endpoint")
            code = attempt.code_in(await visit.visit(attempt.url, attempt.is_answered_by))
            endpoint = TokenEndpoint(issuer, client, wanted.fetcher, proof_key=wanted.key)
            tokens = await endpoint.tokens(attempt.token_request(code), wanted.scopes)
        return replace(wanted.credential(client), tokens=tokens)

    def _is_given(self, issuer: IssuerMetadata) -> bool:
        """Whether somebody else decided which addresses the client may be sent back to."""
        return self.client is not None or (self.url_id is not None and issuer.takes_url_ids)

    def _registered(self, wanted: Wanted) -> ClientRegistration | None:
        """The client that was registered before, with this very issuer, for as much as is wanted now."""
        known = wanted.known
        if self.client or known is None or known.issuer.issuer != wanted.found.issuer.issuer or known.client.is_expired:
            return None
        is_enough = set(wanted.scopes) <= set(known.client.scopes)
        return known.client if known.client.redirect_uri and is_enough else None

    async def _client(self, wanted: Wanted, known: ClientRegistration | None, uri: str) -> ClientRegistration:
        """In the order of the specification: what was given, a URL id, a registration."""
        issuer = wanted.found.issuer
        if self.client is not None:
            return method_for(self.client, issuer)
        if self.url_id is not None and issuer.takes_url_ids:
            return ClientRegistration(self.url_id, None, NONE)
        if known is not None and known.redirect_uri == uri:
            return known
        return await register(issuer, self.name, [uri], wanted.scopes, wanted.fetcher)


@dataclass(frozen=True, slots=True)
class ClientCredentialsGrant:
    """The client acts for itself."""

    client: ClientRegistration
    signing_key: SigningKey | None = None
    scopes: Sequence[str] | None = None
    shows_secret: bool = True

    def scopes_beside(self, issuer: IssuerMetadata) -> Sequence[str]:
        return ()

    async def obtain(self, wanted: Wanted) -> Credential:
        issuer = wanted.found.issuer
        client = replace(self.client, method=SIGNED) if self.signing_key else method_for(self.client, issuer)
        form = {"grant_type": "client_credentials", "resource": wanted.found.resource.resource, **_scope(wanted)}
        endpoint = TokenEndpoint(issuer, client, wanted.fetcher, proof_key=wanted.key, signing_key=self.signing_key)
        tokens = await endpoint.tokens(form, wanted.scopes)
        # The client can ask anew whenever it wants (RFC 6749 §4.4.3), and a refresh would be without its signing key.
        return replace(wanted.credential(client), tokens=replace(tokens, refresh_token=None))


@dataclass(frozen=True, slots=True)
class AssertionGrant:
    """A signed statement of somebody whom the issuer trusts (RFC 7523): `assertion` gives it, for an issuer."""

    assertion: Callable[[Wanted], Awaitable[str]] = field(repr=False)
    client: ClientRegistration
    scopes: Sequence[str] | None = None
    shows_secret: bool = True

    def scopes_beside(self, issuer: IssuerMetadata) -> Sequence[str]:
        return ()

    async def obtain(self, wanted: Wanted) -> Credential:
        client = method_for(self.client, wanted.found.issuer)
        form = {
            "grant_type": JWT_BEARER,
            "assertion": await self.assertion(wanted),
            "resource": wanted.found.resource.resource,
            **_scope(wanted),
        }
        endpoint = TokenEndpoint(wanted.found.issuer, client, wanted.fetcher, proof_key=wanted.key)
        return replace(wanted.credential(client), tokens=await endpoint.tokens(form, wanted.scopes))


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """The identity provider of a company, and a token that it gave for a person (cross-app access)."""

    token_endpoint: str
    id_token: str = field(repr=False)
    client: ClientRegistration | None = None

    async def assertion(self, wanted: Wanted) -> str:
        """The identity assertion (ID-JAG) for the issuer of a server."""
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": wanted.found.issuer.issuer,
            "resource": wanted.found.resource.resource,
            "subject_token": self.id_token,
            "subject_token_type": ID_TOKEN,
            **_scope(wanted),
        }
        provider = IssuerMetadata(self.token_endpoint, token_endpoint=self.token_endpoint)
        client = self.client or ClientRegistration("")
        # It was given, not named by a peer: it may be anywhere that its user can reach.
        answer = (await TokenEndpoint(provider, client, Fetcher(Reach.MACHINE)).ask(form)).document
        made = text_of(answer.get("access_token"))
        if not made or answer.get("issued_token_type") != ID_JAG:
            raise SignInError(f"the identity provider {self.token_endpoint} gave no assertion for {wanted.server}")
        return made


def _scope(wanted: Wanted) -> dict[str, str]:
    return {"scope": " ".join(wanted.scopes)} if wanted.scopes else {}


def given_client(client_id: str | None, client_secret: str | None) -> tuple[ClientRegistration | None, str | None]:
    """A client and a URL id, of which at most one is given. Raises UsageError."""
    if client_id is None:
        if client_secret is not None:
            raise UsageError("a client secret was given without its client id", fix="give client_id too")
        return None, None
    if client_secret is None and is_url_id(client_id):
        return None, client_id
    return ClientRegistration(client_id, client_secret), None
