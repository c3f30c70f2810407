"""The metadata of an authorization server (RFC 8414, OpenID Connect Discovery): where it is, and what makes it good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from defserve.auth.issuers.fetching import Fetch, IssuerUnavailable
from defserve.auth.oauth.well_known import issuer_places
from defserve.auth.urls import checked_url
from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_object


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Where an issuer's metadata may be: below its path first, because nearly every OpenID provider has it there."""
    checked_url(issuer, "the issuer")
    *others, below = issuer_places(issuer)
    return (below, *others)


async def metadata_of(issuer: str, fetch: Fetch) -> Mapping[str, Any]:
    """The metadata of an issuer. Raises IssuerUnavailable if no address has a document of exactly this issuer."""
    reasons: list[str] = []
    for url in metadata_urls(issuer):
        try:
            found: Any = json.loads(await fetch(url))
        except (OSError, ValueError, RecursionError) as error:
            reasons.append(f"{url}: {error or type(error).__name__}")
            continue
        if not is_object(found):
            reasons.append(f"{url}: not a JSON object")
        elif found.get("issuer") != issuer:
            # Compared as text: another issuer's document must not lend its endpoints and keys (RFC 8414 §3.3).
            reasons.append(f"{url}: it is the metadata of {str(found.get('issuer'))[:200]!r}")
        else:
            return found
    raise IssuerUnavailable(f"{issuer} has no usable metadata; " + "; ".join(reasons))


def endpoint_of(metadata: Mapping[str, Any], name: str) -> str:
    """The URL of an endpoint. Raises IssuerUnavailable if it is missing or not safe."""
    url = metadata.get(name)
    try:
        if isinstance(url, str):
            checked_url(url, name, query=True)
            return url
    except UsageError as error:
        raise IssuerUnavailable(f"{metadata['issuer']}: {error.problem}") from None
    raise IssuerUnavailable(f"{metadata['issuer']} publishes no {name}")
