"""What a server and its issuer publish about signing in (RFC 9728, RFC 8414). Checked where it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from defserve.auth.oauth.well_known import covers
from defserve.host.fields import Json, text_of, texts_of
from defserve.host.signin.errors import SignInError, quoted

MOST: Final = 200
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
    resource = text_of(document.get("resource"))
    if resource is None:
        raise SignInError(f"the metadata of {server} has no `resource`", fix="tell who runs the server")
    if not covers(resource, server):
        raise SignInError(
            f"the metadata of {server} is about another server, {quoted(resource)}; no token is asked for",
            fix="check the address; if it is right, tell who runs the server",
        )
    return ResourceMetadata(
        resource,
        _list(document, "authorization_servers"),
        _list(document, "scopes_supported"),
        document.get("dpop_bound_access_tokens_required") is True,
    )


def read_issuer_metadata(document: Json, issuer: str) -> IssuerMetadata:
    """The metadata of `issuer`. Raises SignInError if it is that of another one."""
    named = text_of(document.get("issuer"))
    # As plain text, without any normalisation (RFC 8414 §3.3): otherwise one issuer could stand in for another.
    if named != issuer:
        raise SignInError(
            f"the metadata of the issuer {issuer} is about another one, {quoted(named)}; none of it is used",
            fix="tell who runs the server: both names must be the same text",
        )
    return IssuerMetadata(
        issuer,
        authorization_endpoint=text_of(document.get("authorization_endpoint")) or "",
        token_endpoint=text_of(document.get("token_endpoint")) or "",
        registration_endpoint=text_of(document.get("registration_endpoint")) or "",
        revocation_endpoint=text_of(document.get("revocation_endpoint")) or "",
        scopes=_list(document, "scopes_supported"),
        grants=_list(document, "grant_types_supported"),
        auth_methods=_list(document, "token_endpoint_auth_methods_supported"),
        pkce_methods=_list(document, "code_challenge_methods_supported"),
        dpop_algorithms=_list(document, "dpop_signing_alg_values_supported"),
        takes_url_ids=document.get("client_id_metadata_document_supported") is True,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def guessed_issuer(origin: str) -> IssuerMetadata:
    """An issuer that publishes nothing, by the rules of 2025-03-26."""
    return IssuerMetadata(
        origin,
        f"{origin}/authorize",
        f"{origin}/token",
        f"{origin}/register",
        pkce_methods=("S256",),
        is_guessed=True,
    )


def _list(document: Json, name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts_of(document.get(name))[:MOST]))
