"""The value of `Server(auth=…)`: who verifies tokens, which scopes every token needs, and where clients get one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace

from defserve.auth.bearer import MALFORMED, bearer, credential_of
from defserve.auth.challenges import BearerError, Denied, denial
from defserve.auth.jwt.verifier import JWT
from defserve.auth.metadata import ProtectedResource
from defserve.auth.principals import Principal, checked_scopes
from defserve.auth.urls import checked_url
from defserve.auth.verifiers import TokenVerifier
from defserve.errors import UsageError


class Auth:
    """How callers prove who they are.

    `resource` is the public URL of this server's endpoint, and `authorization_servers` are the issuers of its tokens.
    With a JWT verifier they default to the audience and the issuer that it checks, if these are URLs. If one of the two
    is missing, no metadata is published, and clients must get their token in another way. Every token needs the
    `scopes`. `implies` says which scopes include others: `{"files:write": ["files:read"]}`. Callers on stdio need no
    token, unless `in_messages` is set: then each request must carry one as `"auth": {"type": "bearer", "token": …}`.
    """

    admits_strangers = False
    """Whether a caller without a token is let in. It stays a stranger. A bad token is refused all the same."""

    def __init__(
        self,
        verifier: TokenVerifier,
        *,
        resource: str = "",
        authorization_servers: Iterable[str] = (),
        scopes: Iterable[str] = (),
        implies: Mapping[str, Iterable[str]] | None = None,
        in_messages: bool = False,
    ) -> None:
        self.verifier, self.in_messages = _checked_verifier(verifier), in_messages
        self.scopes = checked_scopes(scopes)
        self.resource = _resource(verifier, resource, tuple(authorization_servers), self.scopes)
        self._metadata_url = self.resource.metadata_url if self.resource else ""
        self._implied = _closure({name: checked_scopes(below) for name, below in (implies or {}).items()})

    async def authenticate(self, authorization: Iterable[bytes]) -> Principal | Denied | None:
        """The caller, proved by the values of a request's Authorization headers; or the refusal.

        None: a stranger, who is let in as such.
        """
        token = bearer(authorization)
        if token is None:
            return None if self.admits_strangers else self.denied()
        if token is MALFORMED:
            return self.denied("invalid_request")
        principal = await self.verifier.verify(token)
        if principal is None:
            return self.denied("invalid_token")
        if not principal.credential:
            principal = replace(principal, credential=credential_of(token))
        if more := [self._implied[scope] for scope in principal.scopes if scope in self._implied]:
            principal = replace(principal, scopes=principal.scopes.union(*more))
        return self.denied("insufficient_scope") if principal.missing(self.scopes) else principal

    def denied(self, error: BearerError | None = None, *, needs: Iterable[str] = ()) -> Denied:
        """The refusal for a caller whose token is missing or not sufficient. `needs` are the scopes of its request."""
        asked = dict.fromkeys((*self.scopes, *needs))
        return denial(error, asked, self._metadata_url)


def as_auth(value: Auth | TokenVerifier) -> Auth:
    """The options that the author gave, or options for the given verifier. Raises UsageError for anything else."""
    return value if isinstance(value, Auth) else Auth(value)


def _checked_verifier(value: object) -> TokenVerifier:
    if isinstance(value, TokenVerifier) and not isinstance(value, type) and inspect.iscoroutinefunction(value.verify):
        return value
    raise UsageError(
        f"auth: {(value if isinstance(value, type) else type(value)).__name__} cannot verify tokens",
        fix="give ApiKeys(…), StaticTokens(…), JWT(…), or an object with "
        "`async def verify(self, token: str) -> Principal | None`",
    )


def _resource(
    verifier: TokenVerifier, url: str, servers: tuple[str, ...], supported: tuple[str, ...]
) -> ProtectedResource | None:
    if servers and not url and not isinstance(verifier, JWT):
        raise UsageError(
            "auth: authorization_servers are given without a resource", fix='resource="https://example.com/mcp"'
        )
    if isinstance(verifier, JWT):
        url = url or next((text for text in verifier.audiences if _is_url(text) and not text.endswith("/")), "")
        servers = servers or tuple(filter(_is_url, [verifier.issuer]))
    if url and not servers:
        checked_url(url, "the resource")
    return ProtectedResource(url, servers, supported) if url and servers else None


def _is_url(text: str) -> bool:
    try:
        checked_url(text, "it")
    except UsageError:
        return False
    return True


def _closure(implies: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """Each scope → all scopes that it includes, directly or not."""
    found: dict[str, frozenset[str]] = {}
    for name in implies:
        reached, waiting = {name}, [name]
        while waiting:
            fresh = set(implies.get(waiting.pop(), ())) - reached
            reached |= fresh
            waiting.extend(fresh)
        found[name] = frozenset(reached)
    return found
