"""Finds the principal of a token. An invalid token has none; it is not an error. Unusable settings raise at once."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from defserve.auth.bearer import credential_of, is_token
from defserve.auth.principals import Principal, checked_scopes
from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_mapping

if TYPE_CHECKING:
    from defserve.stores.identity import ServerIdentity


@runtime_checkable
class TokenVerifier(Protocol):
    """Anything that finds the principal of a token."""

    async def verify(self, token: str) -> Principal | None:
        """The principal of the token, or None if the token is not valid here.

        Raises nothing but IssuerUnavailable: the issuer cannot be asked, so the caller should try again.
        """
        ...


async def check_ready(verifier: object) -> None:
    """Raises IssuerUnavailable if a verifier can say that it can check no token now; see `ApiKeys.check_ready`."""
    if (check := getattr(verifier, "check_ready", None)) is not None:
        await check()


def check_settings(verifier: object) -> None:
    """Raises UsageError if a verifier finds that it will never work; see `ApiKeys.check_settings`."""
    if (check := getattr(verifier, "check_settings", None)) is not None:
        check()


def bind_server(part: object, identity: ServerIdentity) -> None:
    """Say which server a verifier, or something else of `Auth`, belongs to, if it stores or seals anything.

    Raises UsageError if it belongs to another one.
    """
    if (bind := getattr(part, "bind_server", None)) is not None:
        bind(identity)


def revocations_of(verifier: object) -> Callable[[], AsyncGenerator[str]] | None:
    """Follows the names of credentials that are revoked, where a verifier can; see `ApiKeys.revocations`."""
    return getattr(verifier, "revocations", None)


class StaticTokens:
    """A fixed list of tokens, each with its principal: a name, a Principal, or `{"principal": …, "scopes": […]}`.

    It keeps digests only, so neither a dump nor a `repr` shows a token.
    """

    def __init__(self, tokens: Mapping[str, str | Principal | Mapping[str, Any]]) -> None:
        if not tokens:
            raise UsageError("StaticTokens({}) lets nobody in", fix='give tokens: {token: "alice"}')
        for place, token in enumerate(tokens, 1):
            if not is_token(token):
                raise UsageError(
                    f"token {place} of StaticTokens cannot be sent as a bearer token",
                    fix="use letters, digits and -._~+/ only, as python's secrets.token_urlsafe(32) does",
                )
        self._known = [(_digest(token), _named(_principal(value), token)) for token, value in tokens.items()]

    async def verify(self, token: str) -> Principal | None:
        """The principal of the token, or None. The time this takes does not show how close a guess came."""
        if not is_token(token):
            return None
        shown, found = _digest(token), None
        # All are compared, each in constant time, so the time does not show which one came close.
        for digest, principal in self._known:
            if hmac.compare_digest(digest, shown):
                found = principal
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _named(principal: Principal, token: str) -> Principal:
    return replace(principal, credential=credential_of(token))


def _principal(value: object) -> Principal:
    if isinstance(value, Principal) and value.kind == "token":
        return value
    if isinstance(value, str):
        return Principal(value)
    if is_mapping(value) and isinstance(value.get("principal"), str) and value.keys() <= {"principal", "scopes"}:
        return Principal(value["principal"], frozenset(checked_scopes(value.get("scopes", ()))))
    raise UsageError(
        f"a token of StaticTokens has a {type(value).__name__} that names no principal",
        fix='give a name, a Principal, or {"principal": "alice", "scopes": ["files:read"]}',
    )
