"""Signed tokens of an OpenID provider or OAuth server, which says by its metadata where its keys are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from defserve.auth.issuers.discovery import endpoint_of, metadata_of, metadata_urls
from defserve.auth.issuers.fetching import Fetch, download
from defserve.auth.jwt.signing_keys import ASYMMETRIC
from defserve.auth.jwt.verifier import JWT

if TYPE_CHECKING:
    from defserve.auth.jwt.denied_tokens import DeniedTokens

SCOPE_CLAIMS: Final = ("scope", "scp")
"""RFC 9068, and what Entra and Okta write instead."""


class OIDC(JWT):
    """Access tokens of one issuer, checked with the keys that it publishes.

    `issuer` is written exactly as in its metadata and its tokens. `audience` is this server's public URL, or whatever
    the issuer writes into `aud` for it. Metadata and keys are fetched when the first token comes, kept for ten minutes,
    and fetched again for a key that is not known, at most once a minute. ID tokens are not accepted.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Iterable[str],
        algorithms: str | Iterable[str] = tuple(ASYMMETRIC),
        scopes_claim: str | Iterable[str] = SCOPE_CLAIMS,
        leeway: float = 30,
        fetch: Fetch | None = None,
        denied: DeniedTokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            audience=audience,
            issuer=issuer,
            jwks_url=metadata_urls(issuer)[0],
            algorithms=algorithms,
            scopes_claim=scopes_claim,
            leeway=leeway,
            fetch=partial(_keys, issuer, fetch or download),
            denied=denied,
            clock=clock,
        )


async def _keys(issuer: str, fetch: Fetch, url: str) -> bytes:
    del url  # the metadata says it
    return await published_keys(issuer, fetch)


async def published_keys(issuer: str, fetch: Fetch) -> bytes:
    """The key set of an issuer. Its metadata is read anew each time, so it may move its keys."""
    return await fetch(endpoint_of(await metadata_of(issuer, fetch), "jwks_uri"))
