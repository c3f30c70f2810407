"""How tokens are got: by a person (`SignIn`), by a secret or key of a client, by a company's identity provider, or by
the identity of a workload.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from defserve.auth.oauth import make_pkce_challenge
from defserve.client.replies import string_or_none
from defserve.client.signin.credentials import Credential, DpopProofKey, SigningKey, TokenEndpoint
from defserve.client.signin.fetching import Fetcher, NetworkReach, RefusedByIssuer, SignInError, quote_peer_text
from defserve.client.signin.issuer import (
    NONE,
    SIGNED,
    ClientRegistration,
    DiscoveredIssuer,
    IssuerMetadata,
    is_url_client_id,
    register_client,
    with_best_auth_method,
)
from defserve.errors import UsageError

TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"


class GrantRequest(NamedTuple):
    """What a grant is to get: tokens for `server`, with these scopes. `known` is what was kept for it before."""

    server: str
    found: DiscoveredIssuer
    scopes: tuple[str, ...]
    fetcher: Fetcher
    key: DpopProofKey | None
    known: Credential | None
    claims: str = ""
    """What a server says that its issuer has to ask the person for, as JSON (a claims request of OpenID Connect)."""

    def make_credential(self, client: ClientRegistration) -> Credential:
        """What will be kept, without its tokens."""
        resource, reach = self.found.resource.resource, self.fetcher.reach
        return Credential(self.server, resource, self.found.issuer, client, None, self.scopes, self.key, reach)


# -- The ways to get tokens.
#
# scopes        the scopes to ask for; None for those that the server names
# shows_secret  whether the issuer is shown a secret or an assertion that was given, and that others could use
# obtain        gets tokens; raises SignInError


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

    async def obtain(self, wanted: GrantRequest) -> Credential:
        issuer = wanted.found.issuer
        check_issuer(issuer)
        known = self._find_registration(wanted)
        # Each issuer sends people to an address of its own, so that none can pass on a code of another (RFC 9700 §4.4).
        # Not if somebody else decided which addresses the client may be sent back to.
        is_given = self.client is not None or (self.url_id is not None and issuer.takes_url_ids)
        mark = "" if is_given else hashlib.sha256(issuer.issuer.encode()).hexdigest()[:16]
        async with self.redirect.open(known.redirect_uri if known else "", mark) as visit:
            client = await self._client(wanted, known, visit.uri)
            attempt = Attempt(wanted.found, client, visit.uri, wanted.scopes, wanted.claims)
            await wanted.fetcher.check_url(issuer.authorization_endpoint, "the authorization endpoint")
            code = attempt.code_in(await visit.visit(attempt.url, attempt.is_answered_by))
            endpoint = TokenEndpoint(issuer, client, wanted.fetcher, proof_key=wanted.key)
            tokens = await endpoint.request_tokens(attempt.token_request(code), wanted.scopes)
        return replace(wanted.make_credential(client), tokens=tokens)

    def _find_registration(self, wanted: GrantRequest) -> ClientRegistration | None:
        """The client that was registered before, with this very issuer, for as much as is wanted now."""
        known = wanted.known
        if self.client or known is None or known.issuer.issuer != wanted.found.issuer.issuer or known.client.is_expired:
            return None
        is_enough = set(wanted.scopes) <= set(known.client.scopes)
        return known.client if known.client.redirect_uri and is_enough else None

    async def _client(self, wanted: GrantRequest, known: ClientRegistration | None, uri: str) -> ClientRegistration:
        """In the order of the specification: what was given, a URL id, a registration."""
        issuer = wanted.found.issuer
        if self.client is not None:
            return with_best_auth_method(self.client, issuer)
        if self.url_id is not None and issuer.takes_url_ids:
            return ClientRegistration(self.url_id, None, NONE)
        if known is not None and known.redirect_uri == uri and await is_still_registered(issuer, known, wanted):
            return known
        return await register_client(issuer, self.name, [uri], wanted.scopes, wanted.fetcher)


async def is_still_registered(issuer: IssuerMetadata, client: ClientRegistration, wanted: GrantRequest) -> bool:
    """Whether an issuer still knows a client: one that was restarted may not, and tells it only to the browser.

    It is shown a code that nobody has issued, and says of an unknown client that it is that (RFC 6749 §5.2).
    """
    form = {
        "grant_type": "authorization_code",
        "code": secrets.token_urlsafe(32),
        "redirect_uri": client.redirect_uri,
        "code_verifier": secrets.token_urlsafe(48),
    }
    try:
        await TokenEndpoint(issuer, client, wanted.fetcher, proof_key=wanted.key).post_form(form)
    except RefusedByIssuer as refusal:
        return refusal.error != "invalid_client"
    except SignInError:
        pass  # the request that counts will say what is wrong
    return True


@dataclass(frozen=True, slots=True)
class ClientCredentialsGrant:
    """The client acts for itself."""

    client: ClientRegistration
    signing_key: SigningKey | None = None
    scopes: Sequence[str] | None = None
    shows_secret: bool = True

    async def obtain(self, wanted: GrantRequest) -> Credential:
        issuer = wanted.found.issuer
        client = choose_client_method(self.client, self.signing_key, issuer)
        form = {"grant_type": "client_credentials", "resource": wanted.found.resource.resource, **_scope(wanted)}
        endpoint = TokenEndpoint(issuer, client, wanted.fetcher, proof_key=wanted.key, signing_key=self.signing_key)
        tokens = await endpoint.request_tokens(form, wanted.scopes)
        # The client can ask anew whenever it wants (RFC 6749 §4.4.3), and a refresh would be without its signing key.
        return replace(wanted.make_credential(client), tokens=replace(tokens, refresh_token=None))


@dataclass(frozen=True, slots=True)
class AssertionGrant:
    """A signed statement of somebody whom the issuer trusts (RFC 7523): `assertion` gives it, for an issuer."""

    assertion: Callable[[GrantRequest], Awaitable[str]] = field(repr=False)
    client: ClientRegistration
    scopes: Sequence[str] | None = None
    shows_secret: bool = True
    signing_key: SigningKey | None = None

    async def obtain(self, wanted: GrantRequest) -> Credential:
        client = choose_client_method(self.client, self.signing_key, wanted.found.issuer)
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": await self.assertion(wanted),
            "resource": wanted.found.resource.resource,
            **_scope(wanted),
        }
        endpoint = TokenEndpoint(
            wanted.found.issuer, client, wanted.fetcher, proof_key=wanted.key, signing_key=self.signing_key
        )
        tokens = await endpoint.request_tokens(form, wanted.scopes)
        # A refresh would be without the signing key, and a new statement can be had whenever it is needed.
        kept = replace(tokens, refresh_token=None) if self.signing_key is not None else tokens
        return replace(wanted.make_credential(client), tokens=kept)


def choose_client_method(
    client: ClientRegistration, signing_key: SigningKey | None, issuer: IssuerMetadata
) -> ClientRegistration:
    """The client with the way in which it proves who it is: by its key, if it has one."""
    return replace(client, method=SIGNED) if signing_key is not None else with_best_auth_method(client, issuer)


TokenGrant: TypeAlias = PersonGrant | ClientCredentialsGrant | AssertionGrant


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """The identity provider of a company, and a token that it gave for a person (cross-app access)."""

    token_endpoint: str
    id_token: GivenToken = field(repr=False)
    client: ClientRegistration | None = None

    async def assertion(self, wanted: GrantRequest) -> str:
        """The identity assertion (ID-JAG) for the issuer of a server."""
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": wanted.found.issuer.issuer,
            "resource": wanted.found.resource.resource,
            "subject_token": await resolve_given_token(self.id_token),
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            **_scope(wanted),
        }
        provider = IssuerMetadata(self.token_endpoint, token_endpoint=self.token_endpoint)
        client = with_best_auth_method(self.client, provider) if self.client is not None else ClientRegistration("")
        # It was given, not named by a peer: it may be anywhere that its user can reach.
        answer = (await TokenEndpoint(provider, client, Fetcher(NetworkReach.MACHINE)).post_form(form)).document
        made = string_or_none(answer.get("access_token"))
        if not made or answer.get("issued_token_type") != ID_JAG:
            raise SignInError(f"the identity provider {self.token_endpoint} gave no assertion for {wanted.server}")
        return made


GivenToken: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token, or a function that gives a fresh one; sync or async."""


async def resolve_given_token(token: GivenToken) -> str:
    given = token if isinstance(token, str) else token()
    return await given if isawaitable(given) else given


def _scope(wanted: GrantRequest) -> dict[str, str]:
    return {"scope": " ".join(wanted.scopes)} if wanted.scopes else {}


def parse_client_id_and_secret(
    client_id: str | None, client_secret: str | None
) -> tuple[ClientRegistration | None, str | None]:
    """A client and a URL id, of which at most one is given. Raises UsageError."""
    if client_id is None:
        if client_secret is not None:
            raise UsageError("a client secret was given without its client id", fix="give client_id too")
        return None, None
    if client_secret is None and is_url_client_id(client_id):
        return None, client_id
    return ClientRegistration(client_id, client_secret), None


# -- The authorization code flow with PKCE: a person says yes at the issuer, and a code comes back for tokens.


OFFLINE_SCOPE = "offline_access"
OWN_FIELDS: Final = frozenset(
    (
        "response_type",
        "client_id",
        "redirect_uri",
        "state",
        "code_challenge",
        "code_challenge_method",
        "resource",
        "scope",
        "prompt",
        "claims",
    )
)
"""What the request for a code says. Of a field that stands there twice, an issuer may read either."""


def check_issuer(issuer: IssuerMetadata) -> None:
    """Raise SignInError for an issuer that cannot be signed in at safely."""
    if not issuer.authorization_endpoint:
        raise SignInError(f"{issuer.issuer} has no page where people sign in", fix="use ClientCredentials(…)")
    named = {name for name, _ in _query_fields(issuer.authorization_endpoint)} & OWN_FIELDS
    if named:
        raise SignInError(f"the sign-in page of {issuer.issuer} fixes {', '.join(sorted(named))}, which is ours to say")
    if "S256" not in issuer.pkce_methods:
        raise SignInError(
            f"{issuer.issuer} does not say that it supports PKCE with S256, so a stolen code could be used",
            fix="tell who runs it: `code_challenge_methods_supported` must have S256",
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to sign in. Its state and its verifier are used for nothing else, and belong to one issuer."""

    found: DiscoveredIssuer
    client: ClientRegistration
    redirect_uri: str
    scopes: Sequence[str]
    claims: str = ""
    state: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)

    @property
    def url(self) -> str:
        """Where the person says yes."""
        fields = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "code_challenge": make_pkce_challenge(self.verifier),
            "code_challenge_method": "S256",
            "resource": self.found.resource.resource,
        }
        if self.scopes:
            fields["scope"] = " ".join(self.scopes)
        if self.claims:
            fields["claims"] = self.claims
        if OFFLINE_SCOPE in self.scopes:
            # OpenID Connect Core §11: without it, this scope is ignored.
            fields["prompt"] = "consent"
        endpoint = self.found.issuer.authorization_endpoint
        mark = "&" if urlsplit(endpoint).query else "?"
        return f"{endpoint.removesuffix('?')}{mark}{urlencode(fields)}"

    def is_answered_by(self, location: str) -> bool:
        """Whether an address is the answer to this attempt, and not one that somebody else made up."""
        states = [value for name, value in _query_fields(location) if name == "state"]
        return len(states) == 1 and secrets.compare_digest(states[0].encode(), self.state.encode())

    def code_in(self, location: str) -> str:
        """The code in the address that the person was sent back to. Raises SignInError.

        The issuer's name is compared as plain text (RFC 9207), and before anything else is believed.
        """
        fields = _query_fields(location)
        answer = dict(fields)
        if not self.is_answered_by(location) or len(answer) != len(fields):
            raise SignInError("what came back does not belong to this sign-in", fix="sign in again")
        issuer = self.found.issuer
        if "iss" not in answer and issuer.sends_issuer:
            raise SignInError(
                f"the answer to the sign-in does not name {issuer.issuer} as its sender", fix="sign in again"
            )
        if answer.get("iss", issuer.issuer) != issuer.issuer:
            raise SignInError(
                f"what came back is from {quote_peer_text(answer['iss'])}, not from {issuer.issuer}; "
                "its code is not used",
                fix="tell who runs the server: another issuer may be trying to get your code",
            )
        if "error" in answer:
            said = quote_peer_text(answer.get("error_description", ""))
            raise RefusedByIssuer(
                answer["error"],
                f"{issuer.issuer} refused the sign-in: {quote_peer_text(answer['error'])}{f': {said}' if said else ''}",
            )
        if not answer.get("code"):
            raise SignInError(f"{issuer.issuer} sent no code back", fix="sign in again")
        return answer["code"]

    def token_request(self, code: str) -> dict[str, str]:
        """The form that turns the code into tokens."""
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": self.verifier,
            "resource": self.found.resource.resource,
        }


def _query_fields(location: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(urlsplit(location).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return []


# -- How a person gets to the issuer's page and back.


class Visit(Protocol):
    """One way to the issuer and back, open while a person signs in."""

    uri: str
    """Where the issuer is to send the person back to."""

    async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
        """Take the person to `url`, and give the whole address they were sent back to.

        Addresses that are no answer to this attempt are passed over. Raises SignInError if none comes.
        """
        ...


class Redirect(Protocol):
    """Opens such ways: a browser of this machine, or addresses that are copied by hand."""

    def open(self, preferred: str, mark: str) -> AbstractAsyncContextManager[Visit]:
        """A way whose `uri` is `preferred`, if that is possible and not empty.

        With a `mark` the path of `uri` ends with it, if the way can have such addresses.
        """
        ...
