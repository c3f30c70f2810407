"""Finds out who issues tokens for a server, by its challenge and its metadata."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from defserve.host.signin.challenges import Challenge
from defserve.host.signin.documents import (
    IssuerMetadata,
    ResourceMetadata,
    guessed_issuer,
    read_issuer_metadata,
    read_resource_metadata,
)
from defserve.host.signin.errors import SignInError
from defserve.host.signin.fetching import Fetched, Fetcher

RESOURCE: Final = "/.well-known/oauth-protected-resource"
ISSUER: Final = "/.well-known/oauth-authorization-server"
OPENID: Final = "/.well-known/openid-configuration"

log = logging.getLogger("defserve.host")


class Discovered(NamedTuple):
    """A server as one signs in to it."""

    resource: ResourceMetadata
    issuer: IssuerMetadata


async def discover(server: str, challenge: Challenge, fetcher: Fetcher, trusted: str | None = None) -> Discovered:
    """Who issues tokens for the server at `server`, which gave this challenge. Raises SignInError.

    It is the `trusted` one, which must be among them; else the first.
    A server without metadata is its own issuer, as in 2025-03-26.
    """
    resource = await _resource(server, challenge, fetcher)
    if resource is None:
        _chosen(server, (_origin(server),), trusted)
        issuer = await _issuer(_origin(server), fetcher, is_required=False)
        return Discovered(ResourceMetadata(server), issuer or guessed_issuer(_origin(server)))
    if not resource.issuers:
        raise SignInError(f"{server} does not say who issues its tokens", fix="tell who runs the server")
    found = await _issuer(_chosen(server, resource.issuers, trusted), fetcher, is_required=True)
    assert found is not None
    return Discovered(resource, found)


def is_own_issuer(server: str, issuer: str) -> bool:
    """Whether the issuer is at the very place that the server is at."""
    return _origin(server) == _origin(issuer)


def _chosen(server: str, issuers: Sequence[str], trusted: str | None) -> str:
    if trusted is None:
        return issuers[0]
    if trusted not in issuers:
        raise SignInError(
            f"{server} takes tokens of {', '.join(issuers)[:500]}, not of {trusted}, the issuer that was given",
            fix="check with who runs the server which issuer is right; the name must be the same text",
        )
    return trusted


async def _resource(server: str, challenge: Challenge, fetcher: Fetcher) -> ResourceMetadata | None:
    """What the server publishes of itself: where its challenge says, else at the usual places."""
    named = challenge.parameters.get("resource_metadata")
    for url in (named,) if named else resource_places(server):
        found = await fetcher.get(url, "the server's metadata at")
        if found.is_good:
            return read_resource_metadata(found.document, server)
        _note(url, found)
    if named:
        raise SignInError(f"{server} says that its metadata is at {named}, where there is none")
    return None


async def _issuer(issuer: str, fetcher: Fetcher, *, is_required: bool) -> IssuerMetadata | None:
    for url in issuer_places(issuer):
        found = await fetcher.get(url, "the issuer's metadata at")
        if found.is_good:
            return read_issuer_metadata(found.document, issuer)
        _note(url, found)
    if is_required:
        raise SignInError(f"the issuer {issuer} publishes no metadata", fix="tell who runs it; see RFC 8414")
    return None


def resource_places(server: str) -> Iterator[str]:
    """Where the metadata of a server may be: that of its path first, then that of its host."""
    path = urlsplit(server).path.rstrip("/")
    if path:
        yield f"{_origin(server)}{RESOURCE}{path}"
    yield f"{_origin(server)}{RESOURCE}"


def issuer_places(issuer: str) -> Iterator[str]:
    """Where the metadata of an issuer may be, in the order to look."""
    origin, path = _origin(issuer), urlsplit(issuer).path.rstrip("/")
    yield f"{origin}{ISSUER}{path}"
    yield f"{origin}{OPENID}{path}"
    if path:
        yield f"{origin}{path}{OPENID}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _note(url: str, found: Fetched) -> None:
    log.debug("no metadata at %s: HTTP %s", url, found.status)
