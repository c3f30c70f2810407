"""Who we are to an issuer: credentials that were given, a URL id (CIMD), or a registration (RFC 7591)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from defserve.auth.urls import is_loopback
from defserve.host.fields import Json, number_of, text_of
from defserve.host.signin.documents import IssuerMetadata
from defserve.host.signin.errors import RefusedByIssuer, SignInError, quoted
from defserve.host.signin.fetching import Fetcher

NONE, BASIC, POST, SIGNED = "none", "client_secret_basic", "client_secret_post", "private_key_jwt"
# RFC 8414 §2: what an issuer takes that does not say.
DEFAULT_METHODS: Final = (BASIC,)
LONGEST_ID: Final = 4_096


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


def method_for(client: ClientRegistration, issuer: IssuerMetadata) -> ClientRegistration:
    """A client whose credentials were given, with the best method that its issuer takes."""
    offered = issuer.auth_methods or DEFAULT_METHODS
    wanted = (BASIC, POST) if client.client_secret else (NONE,)
    return replace(client, method=next((each for each in wanted if each in offered), wanted[0]))


def is_url_id(client_id: str) -> bool:
    """Whether a client id is the address of the client's own metadata (CIMD)."""
    return client_id.startswith("https://") and "/" in client_id.removeprefix("https://")


async def register(
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
    client_id = text_of(document.get("client_id"))
    if answer.status not in (200, 201) or not client_id or len(client_id) > LONGEST_ID:
        error = text_of(document.get("error")) or f"HTTP {answer.status}"
        said = quoted(document.get("error_description") or "")
        raise RefusedByIssuer(
            error,
            f"{issuer.issuer} refuses to register us: {quoted(error)}{f': {said}' if said else ''}",
            fix="ask for other scopes: --scope; in code: scopes=[…]"
            if scopes and "scope" in said
            else "register a client by hand, and give --client-id; in code: SignIn(client_id=…)",
        )
    secret = text_of(document.get("client_secret")) or None
    ends = number_of(document.get("client_secret_expires_at")) or None
    method = text_of(document.get("token_endpoint_auth_method"))
    ends = ends if secret else None
    client = ClientRegistration(client_id, secret, NONE, redirect_uris[0], ends, tuple(scopes))
    if method in (NONE, BASIC, POST) and (method == NONE or secret):
        return replace(client, method=method)
    return method_for(client, issuer)


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
