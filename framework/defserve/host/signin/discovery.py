"""Finds out who issues tokens for a server, by its challenge and its metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from defserve.auth.challenges import Challenge
from defserve.auth.oauth.well_known import issuer_places, origin_of, resource_places
from defserve.host.signin.documents import (
    IssuerMetadata,
    ResourceMetadata,
    guessed_issuer,
    read_issuer_metadata,
    read_resource_metadata,
)
from defserve.host.signin.errors import SignInError
from defserve.host.signin.fetching import Fetched, Fetcher

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
        _chosen(server, (origin_of(server),), trusted)
        issuer = await _issuer(origin_of(server), fetcher, is_required=False)
        return Discovered(ResourceMetadata(server), issuer or guessed_issuer(origin_of(server)))
    if not resource.issuers:
        raise SignInError(f"{server} does not say who issues its tokens", fix="tell who runs the server")
    found = await _issuer(_chosen(server, resource.issuers, trusted), fetcher, is_required=True)
    assert found is not None
    return Discovered(resource, found)


def is_own_issuer(server: str, issuer: str) -> bool:
    """Whether the issuer is at the very place that the server is at."""
    return origin_of(server) == origin_of(issuer)


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


def _note(url: str, found: Fetched) -> None:
    log.debug("no metadata at %s: HTTP %s", url, found.status)
