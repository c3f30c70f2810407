"""What a client asks for at `/authorize`, read and checked (RFC 6749 §4.1.1, RFC 7636, RFC 8707)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from defserve.auth.proxy.clients.client import OAuthClient
from defserve.auth.proxy.errors import OAuthError

LONGEST_STATE: Final = 1024
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class AuthorizationRequest(NamedTuple):
    """A request that may be put before a user. `client` is the client's short key, `state` its own affair."""

    client: str
    redirect: str
    state: str | None
    challenge: str
    scopes: tuple[str, ...]
    resource: str

    @classmethod
    def opened(cls, value: Any) -> AuthorizationRequest:
        """From its JSON form, which was sealed."""
        client, redirect, state, challenge, scopes, resource = value
        return cls(client, redirect, state, challenge, tuple(scopes), resource)

    def location(self, issuer: str, **said: str) -> str:
        """Where the answer to the client goes. It names the issuer, so that nobody can mix up two (RFC 9207)."""
        fields = {**said, **({"state": self.state} if self.state is not None else {}), "iss": issuer}
        return f"{self.redirect}{'&' if '?' in self.redirect else '?'}{urlencode(fields)}"


class Offered(NamedTuple):
    """What may be asked for: this server, scopes that every token gets, and further ones."""

    resource: str
    scopes: tuple[str, ...]
    optional: tuple[str, ...]


def checked_request(
    client: OAuthClient, redirect: str, fields: Mapping[str, str], offered: Offered
) -> AuthorizationRequest:
    """The request of a client whose redirect is known to be its own. Raises OAuthError."""
    if len(fields.get("state", "")) > LONGEST_STATE:
        raise OAuthError("invalid_request", f"state is longer than {LONGEST_STATE} characters")
    if fields.get("response_type") != "code":
        raise OAuthError("unsupported_response_type", "response_type must be code")
    if fields.get("response_mode", "query") != "query":
        raise OAuthError("invalid_request", "response_mode must be query")
    if "request" in fields or "request_uri" in fields:
        raise OAuthError("request_not_supported", "send the parameters themselves")
    challenge = fields.get("code_challenge", "")
    if fields.get("code_challenge_method") != "S256" or _CHALLENGE.fullmatch(challenge) is None:
        raise OAuthError("invalid_request", "PKCE is required: send code_challenge, with code_challenge_method=S256")
    if not same_resource(fields.get("resource", offered.resource), offered.resource):
        raise OAuthError("invalid_target", "tokens are issued here for this server only")
    scopes = granted_scopes(fields.get("scope", "").split(), offered)
    return AuthorizationRequest(client.key, redirect, fields.get("state"), challenge, scopes, offered.resource)


def granted_scopes(asked: Sequence[str], offered: Offered) -> tuple[str, ...]:
    """What every token gets, and what was asked for. Scopes that are unknown here are left out (RFC 6749 §3.3)."""
    return tuple(dict.fromkeys((*offered.scopes, *(scope for scope in asked if scope in offered.optional))))


def same_resource(asked: str, ours: str) -> bool:
    """Whether a client means this server. Some write a slash at the end."""
    return asked.rstrip("/") == ours.rstrip("/")
