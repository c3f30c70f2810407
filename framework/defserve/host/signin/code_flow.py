"""The authorization code flow with PKCE: a person says yes at the issuer, and a code comes back for tokens."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from defserve.auth.oauth.pkce import challenge_of
from defserve.host.signin.clients import ClientRegistration
from defserve.host.signin.discovery import Discovered
from defserve.host.signin.documents import IssuerMetadata
from defserve.host.signin.errors import RefusedByIssuer, SignInError, quoted

OFFLINE = "offline_access"
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
    )
)
"""What the request for a code says. Of a field that stands there twice, an issuer may read either."""


def check_issuer(issuer: IssuerMetadata) -> None:
    """Raise SignInError for an issuer that cannot be signed in at safely."""
    if not issuer.authorization_endpoint:
        raise SignInError(f"{issuer.issuer} has no page where people sign in", fix="use ClientCredentials(…)")
    named = {name for name, _ in _fields(issuer.authorization_endpoint)} & OWN_FIELDS
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

    found: Discovered
    client: ClientRegistration
    redirect_uri: str
    scopes: Sequence[str]
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
            "code_challenge": challenge_of(self.verifier),
            "code_challenge_method": "S256",
            "resource": self.found.resource.resource,
        }
        if self.scopes:
            fields["scope"] = " ".join(self.scopes)
        if OFFLINE in self.scopes:
            # OpenID Connect Core §11: without it, this scope is ignored.
            fields["prompt"] = "consent"
        endpoint = self.found.issuer.authorization_endpoint
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(fields)}"

    def is_answered_by(self, location: str) -> bool:
        """Whether an address is the answer to this attempt, and not one that somebody else made up."""
        states = [value for name, value in _fields(location) if name == "state"]
        return len(states) == 1 and secrets.compare_digest(states[0].encode(), self.state.encode())

    def code_in(self, location: str) -> str:
        """The code in the address that the person was sent back to. Raises SignInError.

        The issuer's name is compared as plain text (RFC 9207), and before anything else is believed.
        """
        fields = _fields(location)
        answer = dict(fields)
        if not self.is_answered_by(location) or len(answer) != len(fields):
            raise SignInError("what came back does not belong to this sign-in", fix="sign in again")
        issuer = self.found.issuer
        if "iss" not in answer and issuer.sends_issuer:
            raise SignInError(f"what came back does not say that it is from {issuer.issuer}", fix="sign in again")
        if answer.get("iss", issuer.issuer) != issuer.issuer:
            raise SignInError(
                f"what came back is from {quoted(answer['iss'])}, not from {issuer.issuer}; its code is not used",
                fix="tell who runs the server: another issuer may be trying to get your code",
            )
        if "error" in answer:
            said = quoted(answer.get("error_description", ""))
            raise RefusedByIssuer(
                answer["error"], f"{issuer.issuer} says no: {quoted(answer['error'])}{f': {said}' if said else ''}"
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


def _fields(location: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(urlsplit(location).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return []
