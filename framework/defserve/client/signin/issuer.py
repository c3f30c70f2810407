"""Who issues tokens for a server, what it publishes about itself (RFC 9728, RFC 8414), and who we are to it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from defserve.auth.oauth import (
    OAuthChallenge,
    get_origin,
    is_loopback,
    is_token_resource_for,
    list_issuer_metadata_urls,
    list_resource_metadata_urls,
)
from defserve.base.redaction import get_logger
from defserve.client.replies import Json, filter_strings, number_or_none, string_or_none
from defserve.client.signin.fetching import Fetcher, RefusedByIssuer, SignInError, quote_peer_text

log = get_logger("client")


class DiscoveredIssuer(NamedTuple):
    """A server as one signs in to it."""

    resource: ResourceMetadata
    issuer: IssuerMetadata


async def discover_issuer(
    server: str, challenge: OAuthChallenge, fetcher: Fetcher, trusted: str | None = None
) -> DiscoveredIssuer:
    """Who issues tokens for the server at `server`, which gave this challenge. Raises SignInError.

    It is the `trusted` one, which must be among them; else the first.
    A server without metadata is its own issuer, as in 2025-03-26.
    """
    resource = await _resource(server, challenge, fetcher)
    if resource is None:
        origin = _choose_issuer(server, (get_origin(server),), trusted)
        # One that publishes nothing has the endpoints of 2025-03-26.
        guess = IssuerMetadata(
            origin,
            f"{origin}/authorize",
            f"{origin}/token",
            f"{origin}/register",
            pkce_methods=("S256",),
            is_guessed=True,
        )
        return DiscoveredIssuer(ResourceMetadata(server), await _issuer(origin, fetcher, is_required=False) or guess)
    if not resource.issuers:
        raise SignInError(f"{server} does not say who issues its tokens", fix="tell who runs the server")
    found = await _issuer(_choose_issuer(server, resource.issuers, trusted), fetcher, is_required=True)
    assert found is not None
    return DiscoveredIssuer(resource, found)


def is_issuer_at_server_origin(server: str, issuer: str) -> bool:
    """Whether the issuer is at the very place that the server is at."""
    return get_origin(server) == get_origin(issuer)


def _choose_issuer(server: str, issuers: Sequence[str], trusted: str | None) -> str:
    if trusted is None:
        return issuers[0]
    if trusted not in issuers:
        raise SignInError(
            f"{server} takes tokens of {', '.join(issuers)[:500]}, not of {trusted}, the issuer that was given",
            fix="check with who runs the server which issuer is right; the name must be the same text",
        )
    return trusted


async def _resource(server: str, challenge: OAuthChallenge, fetcher: Fetcher) -> ResourceMetadata | None:
    """What the server publishes of itself: where its challenge says, else at the usual places."""
    named = challenge.parameters.get("resource_metadata")
    urls = (named,) if named else list_resource_metadata_urls(server)
    document = await _fetch_first(urls, "the server's metadata at", fetcher)
    if document is not None:
        return read_resource_metadata(document, server)
    if named:
        raise SignInError(f"{server} says that its metadata is at {named}, where there is none")
    return None


async def _issuer(issuer: str, fetcher: Fetcher, *, is_required: bool) -> IssuerMetadata | None:
    document = await _fetch_first(list_issuer_metadata_urls(issuer), "the issuer's metadata at", fetcher)
    if document is not None:
        return read_issuer_metadata(document, issuer)
    if is_required:
        raise SignInError(f"the issuer {issuer} publishes no metadata", fix="tell who runs it; see RFC 8414")
    return None


async def _fetch_first(urls: Iterable[str], what: str, fetcher: Fetcher) -> Json | None:
    """The first document there is. Raises SignInError if one that may be there cannot be had now."""
    for url in urls:
        found = await fetcher.get(url, what)
        if found.is_good:
            return found.document
        # It may be there later. To go on without it would be to guess endpoints that it may contradict.
        if found.status == 429 or found.status >= 500:
            raise SignInError(f"{what} {url} cannot be had: HTTP {found.status}", fix="try again later")
        log.debug("no metadata at %s: HTTP %s", url, found.status)
    return None


# -- What a server and its issuer publish about signing in (RFC 9728, RFC 8414). Checked where it counts.


MAX_LISTED: Final = 200
"""Scopes, methods or servers of one list that are read."""


@dataclass(frozen=True, slots=True)
class ResourceMetadata:
    """What a server says of itself: by which name tokens are made for it, and by whom."""

    resource: str
    issuers: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    wants_dpop: bool = False


@dataclass(frozen=True, slots=True)
class IssuerMetadata:
    """An authorization server: its name, its endpoints (empty if it has none), and what it supports.

    `is_guessed` says that it publishes nothing, so that its endpoints are those of 2025-03-26.
    """

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    pkce_methods: tuple[str, ...] = ()
    dpop_algorithms: tuple[str, ...] = ()
    takes_url_ids: bool = False
    sends_issuer: bool = False
    is_guessed: bool = False


def read_resource_metadata(document: Json, server: str) -> ResourceMetadata:
    """The metadata of the server at `server`. Raises SignInError if it is that of another one."""
    resource = string_or_none(document.get("resource"))
    if resource is None:
        raise SignInError(f"the metadata of {server} has no `resource`", fix="tell who runs the server")
    if not is_token_resource_for(resource, server):
        raise SignInError(
            f"the metadata of {server} is about another server, {quote_peer_text(resource)}; no token is asked for",
            fix="check the address; if it is right, tell who runs the server",
        )
    return ResourceMetadata(
        resource,
        _read_list(document, "authorization_servers"),
        _read_list(document, "scopes_supported"),
        document.get("dpop_bound_access_tokens_required") is True,
    )


def read_issuer_metadata(document: Json, issuer: str) -> IssuerMetadata:
    """The metadata of `issuer`. Raises SignInError if it is that of another one."""
    named = string_or_none(document.get("issuer"))
    # As plain text, without any normalisation (RFC 8414 §3.3): otherwise one issuer could stand in for another.
    if named != issuer:
        raise SignInError(
            f"the metadata of the issuer {issuer} is about another one, {quote_peer_text(named)}; none of it is used",
            fix="tell who runs the server: both names must be the same text",
        )
    return IssuerMetadata(
        issuer,
        authorization_endpoint=string_or_none(document.get("authorization_endpoint")) or "",
        token_endpoint=string_or_none(document.get("token_endpoint")) or "",
        registration_endpoint=string_or_none(document.get("registration_endpoint")) or "",
        revocation_endpoint=string_or_none(document.get("revocation_endpoint")) or "",
        scopes=_read_list(document, "scopes_supported"),
        grants=_read_list(document, "grant_types_supported"),
        auth_methods=_read_list(document, "token_endpoint_auth_methods_supported"),
        pkce_methods=_read_list(document, "code_challenge_methods_supported"),
        dpop_algorithms=_read_list(document, "dpop_signing_alg_values_supported"),
        takes_url_ids=document.get("client_id_metadata_document_supported") is True,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _read_list(document: Json, name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter_strings(document.get(name))[:MAX_LISTED]))


# -- Who we are to an issuer: credentials that were given, a URL id (CIMD), or a registration (RFC 7591).


NONE, BASIC, POST, SIGNED = "none", "client_secret_basic", "client_secret_post", "private_key_jwt"

# RFC 8414 §2: what an issuer takes that does not say.
DEFAULT_METHODS: Final = (BASIC,)
MAX_CLIENT_ID_LENGTH: Final = 4_096


@dataclass(frozen=True, slots=True)
class ClientRegistration:
    """A client as one issuer knows it. `method` is how it proves itself at the token endpoint."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    method: str = NONE
    redirect_uri: str = ""
    """Where it was registered to come back to; empty if that is not known."""
    expires_at: float | None = None
    """When its secret ends."""
    scopes: tuple[str, ...] = ()
    """What it was registered for: some issuers refuse anything else."""

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


def with_best_auth_method(client: ClientRegistration, issuer: IssuerMetadata) -> ClientRegistration:
    """A client whose credentials were given, with the best method that its issuer takes."""
    offered = issuer.auth_methods or DEFAULT_METHODS
    wanted = (BASIC, POST) if client.client_secret else (NONE,)
    return replace(client, method=next((each for each in wanted if each in offered), wanted[0]))


def is_url_client_id(client_id: str) -> bool:
    """Whether a client id is the address of the client's own metadata (CIMD)."""
    return client_id.startswith("https://") and "/" in client_id.removeprefix("https://")


async def register_client(
    issuer: IssuerMetadata, name: str, redirect_uris: Sequence[str], scopes: Sequence[str], fetcher: Fetcher
) -> ClientRegistration:
    """Register with an issuer. Raises SignInError if it takes no registrations or refuses this one."""
    if not issuer.registration_endpoint:
        raise SignInError(
            f"{issuer.issuer} takes no new clients by itself",
            fix="register one with it, and give --client-id (and --client-secret-file); in code: SignIn(client_id=…)",
        )
    answer = await fetcher.post_json(
        issuer.registration_endpoint, "the registration endpoint", _metadata(issuer, name, redirect_uris, scopes)
    )
    document = answer.document
    client_id = string_or_none(document.get("client_id"))
    if answer.status not in (200, 201) or not client_id or len(client_id) > MAX_CLIENT_ID_LENGTH:
        error = string_or_none(document.get("error")) or f"HTTP {answer.status}"
        said = quote_peer_text(document.get("error_description") or "")
        raise RefusedByIssuer(
            error,
            f"{issuer.issuer} refuses to register us: {quote_peer_text(error)}{f': {said}' if said else ''}",
            fix="ask for other scopes: --scope; in code: scopes=[…]"
            if scopes and "scope" in said
            else "register a client by hand, and give --client-id; in code: SignIn(client_id=…)",
        )
    secret = string_or_none(document.get("client_secret")) or None
    ends = (number_or_none(document.get("client_secret_expires_at")) or None) if secret else None
    method = string_or_none(document.get("token_endpoint_auth_method"))
    client = ClientRegistration(client_id, secret, NONE, redirect_uris[0], ends, tuple(scopes))
    if method in (NONE, BASIC, POST) and (method == NONE or secret):
        return replace(client, method=method)
    return with_best_auth_method(client, issuer)


def _metadata(issuer: IssuerMetadata, name: str, redirect_uris: Sequence[str], scopes: Sequence[str]) -> Json:
    offered = issuer.auth_methods or DEFAULT_METHODS
    native = all(is_loopback(uri.partition("://")[2].partition("/")[0].rpartition(":")[0]) for uri in redirect_uris)
    return {
        "client_name": name,
        "redirect_uris": list(redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "native" if native else "web",
        # A program on somebody's machine keeps no secret better than a token, so it asks for none if it may.
        "token_endpoint_auth_method": next((each for each in (NONE, BASIC, POST) if each in offered), NONE),
        **({"scope": " ".join(scopes)} if scopes else {}),
    }
