"""What one sign-in leaves: tokens, and what renewing and ending them needs. Also in the form in which it is kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from defserve.host.fields import Json, number_of, object_of, text_of, texts_of
from defserve.host.signin.clients import ClientRegistration
from defserve.host.signin.documents import IssuerMetadata
from defserve.host.signin.proofs import ProofKey
from defserve.host.signin.reach import Reach
from defserve.host.signin.tokens import Tokens

SECRET_NAMES: Final = ("access_token", "refresh_token", "client_secret", "key")
# Of an issuer's metadata, what renewing and ending a token needs.
_ISSUER_FIELDS: Final = ("issuer", "token_endpoint", "revocation_endpoint")


@dataclass(frozen=True, slots=True)
class Credential:
    """A token goes to `server` alone. `asked` are the scopes that were asked for.

    Without `tokens` it is a registration that can be used again.
    """

    server: str
    resource: str
    issuer: IssuerMetadata
    client: ClientRegistration
    tokens: Tokens | None = None
    asked: tuple[str, ...] = ()
    key: ProofKey | None = None
    reach: Reach = Reach.INTERNET

    @property
    def can_refresh(self) -> bool:
        return self.tokens is not None and self.tokens.refresh_token is not None

    def with_tokens(self, tokens: Tokens) -> Credential:
        """The same with renewed tokens. An issuer that sends no new refresh token means the old one."""
        if tokens.refresh_token is None and self.tokens is not None:
            tokens = replace(tokens, refresh_token=self.tokens.refresh_token)
        return replace(self, tokens=tokens)


def public_part(credential: Credential) -> Json:
    """What anyone may see of it."""
    issuer, client, tokens = credential.issuer, credential.client, credential.tokens
    return {
        "server": credential.server,
        "resource": credential.resource,
        "asked": list(credential.asked),
        "reach": int(credential.reach),
        "issuer": {name: getattr(issuer, name) for name in _ISSUER_FIELDS},
        "client": {name: value for name, value in asdict(client).items() if name not in SECRET_NAMES},
        "tokens": tokens and {"type": tokens.type, "scopes": list(tokens.scopes), "expires_at": tokens.expires_at},
    }


def secret_part(credential: Credential) -> Json:
    """What only its owner may see."""
    tokens = credential.tokens
    parts: dict[str, Any] = {
        "access_token": tokens and tokens.access_token,
        "refresh_token": tokens and tokens.refresh_token,
        "client_secret": credential.client.client_secret,
        "key": credential.key and credential.key.kept,
    }
    return {name: value for name, value in parts.items() if value is not None}


def read_credential(public: Json, secret: Json) -> Credential | None:
    """A credential of both parts; None if they are not those of one."""
    server, resource = text_of(public.get("server")), text_of(public.get("resource"))
    issuer, client, kept = (object_of(public.get(name)) for name in ("issuer", "client", "tokens"))
    client_id, access = text_of(client.get("client_id")), text_of(secret.get("access_token"))
    if not server or not resource or not client_id:
        return None
    key = object_of(secret.get("key"))
    tokens = access and Tokens(
        access,
        text_of(kept.get("type")) or "Bearer",
        tuple(texts_of(kept.get("scopes"))),
        number_of(kept.get("expires_at")),
        text_of(secret.get("refresh_token")),
    )
    return Credential(
        server,
        resource,
        IssuerMetadata(
            text_of(issuer.get("issuer")) or "",
            token_endpoint=text_of(issuer.get("token_endpoint")) or "",
            revocation_endpoint=text_of(issuer.get("revocation_endpoint")) or "",
        ),
        ClientRegistration(
            client_id,
            text_of(secret.get("client_secret")),
            text_of(client.get("method")) or "none",
            text_of(client.get("redirect_uri")) or "",
            number_of(client.get("expires_at")),
            tuple(texts_of(client.get("scopes"))),
        ),
        tokens or None,
        tuple(texts_of(public.get("asked"))),
        ProofKey(key) if key else None,
        Reach(min(int(number_of(public.get("reach")) or 0), Reach.MACHINE)),
    )
