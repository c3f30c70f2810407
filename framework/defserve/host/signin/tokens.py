"""Tokens, and the endpoint that gives, renews and revokes them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from defserve.auth.oauth.basic import client_basic
from defserve.host.fields import Json, number_of, text_of
from defserve.host.signin.clients import BASIC, POST, SIGNED, ClientRegistration
from defserve.host.signin.documents import IssuerMetadata
from defserve.host.signin.errors import RefusedByIssuer, SignInError, quoted
from defserve.host.signin.fetching import Fetched, Fetcher
from defserve.host.signin.proofs import ProofKey, signed_assertion

SLACK_SECONDS: Final = 30.0
"""A token that ends sooner counts as ended: it has to last until its request arrives."""
LONGEST_TOKEN: Final = 32 * 1024
LONGEST_LIFE: Final = 10 * 365 * 86_400
"""Seconds. An issuer may write any number."""
ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
NONCE_WANTED: Final = "use_dpop_nonce"
TYPES: Final = {"bearer": "Bearer", "dpop": "DPoP"}


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an issuer gave. `scopes` are those it says, or else those that were asked for."""

    access_token: str = field(repr=False)
    type: str = "Bearer"
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    refresh_token: str | None = field(default=None, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()

    @property
    def is_ending(self) -> bool:
        return self.expires_at is not None and self.expires_at - SLACK_SECONDS <= time.time()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private key of a client (PEM or JWK), for `private_key_jwt`."""

    key: str | bytes = field(repr=False)
    algorithm: str = "ES256"


class TokenEndpoint:
    """The token endpoint of one issuer, as one client uses it. With a `proof_key`, tokens are bound to it (DPoP)."""

    def __init__(
        self,
        issuer: IssuerMetadata,
        client: ClientRegistration,
        fetcher: Fetcher,
        *,
        proof_key: ProofKey | None = None,
        signing_key: SigningKey | None = None,
    ) -> None:
        self._issuer, self._client, self._fetcher = issuer, client, fetcher
        self._proof_key, self._signing_key = proof_key, signing_key
        self._nonce: str | None = None

    async def tokens(self, form: Mapping[str, str], asked: Sequence[str]) -> Tokens:
        """Ask for tokens. Raises RefusedByIssuer with the issuer's error, SignInError for anything else."""
        answer = await self.ask(form)
        return read_tokens(answer.document, asked, is_bound=self._proof_key is not None)

    async def ask(self, form: Mapping[str, str]) -> Fetched:
        """Send a form with the client's proof of who it is, and give the answer. Raises like `tokens`."""
        answer = await self._post(self._issuer.token_endpoint, "the token endpoint", form)
        if self._proof_key is not None and self._nonce and answer.document.get("error") == NONCE_WANTED:
            answer = await self._post(self._issuer.token_endpoint, "the token endpoint", form)
        if not answer.is_good:
            raise self._refusal(answer, "the token endpoint")
        return answer

    async def revoke(self, tokens: Tokens) -> bool:
        """Have tokens ended (RFC 7009). Whether the issuer could be asked. Raises SignInError if it refuses."""
        endpoint = self._issuer.revocation_endpoint
        if not endpoint:
            return False
        for kind, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
            if token:
                form = {"token": token, "token_type_hint": kind}
                answer = await self._post(endpoint, "the revocation endpoint", form)
                if answer.status != 200 and answer.document.get("error") != "unsupported_token_type":
                    raise self._refusal(answer, "the revocation endpoint")
        return True

    async def _post(self, url: str, what: str, form: Mapping[str, str]) -> Fetched:
        if not url:
            raise SignInError(f"{self._issuer.issuer} does not say where its token endpoint is")
        fields, headers = self._authenticated(form)
        if self._proof_key is not None:
            headers["DPoP"] = self._proof_key.proof("POST", url, nonce=self._nonce)
        answer = await self._fetcher.post(url, what, fields, headers)
        self._nonce = answer.headers.get("dpop-nonce") or self._nonce
        return answer

    def _authenticated(self, form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """The form and the headers with what proves who the client is."""
        client, fields = self._client, dict(form)
        if client.method == BASIC and client.client_secret is not None:
            return fields, {"authorization": client_basic(client.client_id, client.client_secret)}
        fields["client_id"] = client.client_id
        if client.method == POST and client.client_secret is not None:
            fields["client_secret"] = client.client_secret
        elif client.method == SIGNED and (signing := self._signing_key) is not None:
            fields["client_assertion_type"] = ASSERTION
            fields["client_assertion"] = signed_assertion(
                signing.key, signing.algorithm, client.client_id, self._issuer.issuer
            )
        return fields, {}

    def _refusal(self, answer: Fetched, what: str) -> RefusedByIssuer:
        error = text_of(answer.document.get("error")) or f"HTTP {answer.status}"
        said = quoted(answer.document.get("error_description") or "")
        return RefusedByIssuer(
            error,
            f"{what} of {self._issuer.issuer} refuses: {quoted(error)}{f': {said}' if said else ''}",
            fix=_FIXES.get(error, ""),
        )


_FIXES: Final = {
    "invalid_client": "check the client id and its secret; a registration may have ended",
    "invalid_grant": "sign in again",
    "invalid_scope": "ask for other scopes: --scope; in code: scopes=[…]",
    "invalid_target": "the issuer does not know this server: tell who runs it",
    "unauthorized_client": "the client may not use this grant: change that where it was registered",
}


def read_tokens(document: Json, asked: Sequence[str], *, is_bound: bool) -> Tokens:
    """The tokens in an answer. Raises SignInError if it has none, or they are of a kind that was not asked for."""
    access, kind = text_of(document.get("access_token")), text_of(document.get("token_type")) or ""
    type = TYPES.get(kind.lower())
    if not access or len(access) > LONGEST_TOKEN or not access.isascii() or not access.isprintable() or " " in access:
        raise SignInError("the token endpoint answered without an access token that can be sent")
    if type is None or (type == "DPoP" and not is_bound):
        raise SignInError(f"the token endpoint gave a token of the type {quoted(kind)!r}, which was not asked for")
    granted, seconds = text_of(document.get("scope")), number_of(document.get("expires_in"))
    refresh = text_of(document.get("refresh_token"))
    return Tokens(
        access,
        type,
        tuple(granted.split()) if granted is not None else tuple(asked),
        time.time() + min(seconds, LONGEST_LIFE) if seconds is not None and seconds >= 0 else None,
        refresh if refresh and len(refresh) <= LONGEST_TOKEN else None,
    )
