"""What a client asks for at `/authorize`, read and checked (RFC 6749 §4.1.1, RFC 7636, RFC 8707).

Below: who may come in, and which scopes a sign-in grants.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode

from defserve.auth.proxy.clients import OAuthClient
from defserve.auth.proxy.site_messages import OAuthError
from defserve.auth.proxy.vendors import Vendor
from defserve.base.redaction import get_logger
from defserve.errors import UsageError

MAX_STATE_LENGTH: Final = 1024
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
    def from_json(cls, value: Any) -> AuthorizationRequest:
        """From its JSON form, which was sealed."""
        client, redirect, state, challenge, scopes, resource = value
        return cls(client, redirect, state, challenge, tuple(scopes), resource)

    def location(self, issuer: str, **said: str) -> str:
        """Where the answer to the client goes. It names the issuer, so that nobody can mix up two (RFC 9207)."""
        fields = {**said, **({"state": self.state} if self.state is not None else {}), "iss": issuer}
        return f"{self.redirect}{'&' if '?' in self.redirect else '?'}{urlencode(fields)}"


class RequestableAccess(NamedTuple):
    """What may be asked for: this server, scopes that every token gets, and further ones."""

    resource: str
    scopes: tuple[str, ...]
    optional: tuple[str, ...]


def parse_authorization_request(
    client: OAuthClient, redirect: str, fields: Mapping[str, str], offered: RequestableAccess
) -> AuthorizationRequest:
    """The request of a client whose redirect is known to be its own. Raises OAuthError."""
    if len(fields.get("state", "")) > MAX_STATE_LENGTH:
        raise OAuthError("invalid_request", f"state is longer than {MAX_STATE_LENGTH} characters")
    if fields.get("response_type") != "code":
        raise OAuthError("unsupported_response_type", "response_type must be code")
    if fields.get("response_mode", "query") != "query":
        raise OAuthError("invalid_request", "response_mode must be query")
    if "request" in fields or "request_uri" in fields:
        raise OAuthError("request_not_supported", "send the parameters themselves")
    challenge = fields.get("code_challenge", "")
    if fields.get("code_challenge_method") != "S256" or _CHALLENGE.fullmatch(challenge) is None:
        raise OAuthError("invalid_request", "PKCE is required: send code_challenge, with code_challenge_method=S256")
    if not is_same_resource(fields.get("resource", offered.resource), offered.resource):
        raise OAuthError("invalid_target", "tokens are issued here for this server only")
    scopes = select_scopes(fields.get("scope", "").split(), offered)
    return AuthorizationRequest(client.key, redirect, fields.get("state"), challenge, scopes, offered.resource)


def select_scopes(asked: Sequence[str], offered: RequestableAccess) -> tuple[str, ...]:
    """What every token gets, and what was asked for. Scopes that are unknown here are left out (RFC 6749 §3.3)."""
    return tuple(dict.fromkeys((*offered.scopes, *(scope for scope in asked if scope in offered.optional))))


def is_same_resource(asked: str, ours: str) -> bool:
    """Whether a client means this server. Some write a slash at the end."""
    return asked.rstrip("/") == ours.rstrip("/")


# -- Who may come in: the list, or the function, of `OAuthProxy(allow=…)`.


log = get_logger("auth")

UserFilter = Callable[[Mapping[str, Any]], bool]
"""Whether a user with these claims may come in. `sub` is the id that never changes for a user of this vendor."""

EVERYBODY: Final = "*"

# Claims that hold an address, if the vendor's `names` have them.
_ADDRESSES: Final = ("email", "preferred_username")

# Numbers and UUIDs are ids. A login may look like one: GitHub lets users choose digits alone.
_ID: Final = re.compile(r"[0-9]+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

# Only these: beyond ASCII, `str.lower` turns letters into others. The sign for kelvin would be the k of an address.
_SMALL: Final = str.maketrans(ascii_uppercase, ascii_lowercase)


def make_user_filter(allow: str | Sequence[str] | UserFilter, vendor: Vendor) -> UserFilter:
    """What `allow` means for the users of a vendor. Raises UsageError if it lets nobody in, or is async."""
    if callable(allow):
        return make_fail_closed_filter(allow, "OAuthProxy")
    given = [allow] if isinstance(allow, str) else list(allow)
    if not given or not all(given):
        raise UsageError("OAuthProxy(allow=…) lets nobody in", fix='name people, or give "*" for everybody')
    if EVERYBODY in given:
        return lambda claims: True
    logins = tuple(name for name in vendor.names if name not in (vendor.subject, "email"))
    # Each kind of name is compared with its own claims only: whoever may choose one kind must not get in as another.
    addresses = {text.translate(_SMALL) for text in given if "@" in text}
    plain = [text for text in given if "@" not in text]
    ids = {text for text in plain if not logins or _ID.fullmatch(text)}
    called = {text.translate(_SMALL) for text in plain if text not in ids}

    def allows(claims: Mapping[str, Any]) -> bool:
        return (
            (vendor.subject in vendor.names and str(claims.get("sub", "")) in ids)
            or not called.isdisjoint(str(claims.get(name) or "").translate(_SMALL) for name in logins)
            or not addresses.isdisjoint(_addresses(claims, vendor))
        )

    return allows


def make_fail_closed_filter(allow: UserFilter, owner: str) -> UserFilter:
    """An author's function. Nobody is let in if it fails, or if its answer would have to be awaited."""
    if iscoroutinefunction(allow):
        raise UsageError(f"{owner}(allow=…) is an async function", fix="write def: it decides by the claims alone")

    def allows(claims: Mapping[str, Any]) -> bool:
        try:
            said: object = allow(claims)
        except Exception:
            log.exception("%s(allow=…) failed for %s, who is not let in", owner, claims.get("sub"))
            return False
        if isawaitable(said):
            log.error("%s(allow=…) gave something to await, so nobody is let in: give True or False", owner)
            return False
        return bool(said)

    return allows


def _addresses(claims: Mapping[str, Any], vendor: Vendor) -> Iterator[str]:
    """A user's addresses and their domains. An e-mail address counts only if the vendor has verified it."""
    for name in _ADDRESSES:
        value = str(claims.get(name) or "").translate(_SMALL)
        is_sure = name in vendor.names and (name != "email" or claims.get("email_verified") is True)
        if is_sure and "@" in value:
            yield from (value, f"@{value.rpartition('@')[2]}")


# -- Which scopes a sign-in grants: those of every token, and of the optional ones those that the author's rule gives.


ScopesForUser: TypeAlias = Callable[[Mapping[str, Any]], Iterable[str] | Awaitable[Iterable[str]]]
"""The scopes that a user with these claims may have. `sub` is the id that never changes for a user of this vendor."""

RULE_SECONDS: Final = 10.0


class ScopeRule:
    """Grants scopes. Raises UsageError for optional scopes that everybody could take, and for a rule about nothing."""

    def __init__(self, offered: RequestableAccess, scopes_for: ScopesForUser | None) -> None:
        if offered.optional and scopes_for is None:
            first = offered.optional[0]
            raise UsageError(
                f"OAuthProxy(optional_scopes=…): whoever may sign in could take {', '.join(offered.optional)}",
                fix=f'say who gets them: scopes_for=lambda claims: ["{first}"] if claims["sub"] in ADMINS else []; '
                "what everybody gets belongs in scopes=",
            )
        if scopes_for is not None and not offered.optional:
            raise UsageError(
                "OAuthProxy(scopes_for=…) decides about nothing: there are no optional_scopes",
                fix="give optional_scopes=[…], or leave scopes_for out: every token gets the scopes",
            )
        self._offered, self._scopes_for = offered, scopes_for

    async def grant_scopes(self, claims: Mapping[str, Any], requested: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the requested scopes that a user with these claims may have now.

        A rule that fails, answers with something else than scopes, or takes too long gives nothing.
        """
        always = self._offered.scopes
        if all(scope in always for scope in requested):
            return requested
        allowed = await self._find_allowed(claims)
        granted = tuple(scope for scope in requested if scope in always or scope in allowed)
        if refused := [scope for scope in requested if scope not in granted]:
            log.info("%s asked for %s: OAuthProxy(scopes_for=…) does not give it", claims.get("sub"), " ".join(refused))
        return granted

    async def _find_allowed(self, claims: Mapping[str, Any]) -> frozenset[str]:
        if self._scopes_for is None:
            return frozenset()
        try:
            answer: Any = self._scopes_for(claims)
            if isawaitable(answer):
                async with asyncio.timeout(RULE_SECONDS):
                    answer = await answer
            scopes = answer.split() if isinstance(answer, str) else list(answer)
        except Exception:
            log.exception("OAuthProxy(scopes_for=…) failed for %s, who gets no optional scope", claims.get("sub"))
            return frozenset()
        allowed = frozenset(scope for scope in scopes if isinstance(scope, str))
        known = (*self._offered.optional, *self._offered.scopes)
        if unknown := [scope for scope in scopes if scope not in known]:
            log.warning("OAuthProxy(scopes_for=…) gives %s, which optional_scopes does not list", unknown[:5])
        return allowed & frozenset(self._offered.optional)
