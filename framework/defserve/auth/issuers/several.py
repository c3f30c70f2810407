"""Several issuers of tokens for one server. The token says whose it is, and only that verifier looks at it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from defserve.auth.bearer import is_token
from defserve.auth.principals import Principal, is_token_id
from defserve.auth.verifiers import bind_server, check_ready, check_settings
from defserve.errors import UsageError
from defserve.wire import base64url
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.stores.identity import ServerIdentity


class Verifier(Protocol):
    """As `TokenVerifier`. It may have `issuers`, whose tokens it verifies, and `audiences`, which it accepts.

    `reads_opaque` says that tokens of its issuer may be such as name none.
    """

    async def verify(self, token: str) -> Principal | None: ...


class Issuers:
    """Verifiers of different issuers. A token is shown to the one whose issuer it names (`iss`), and to no other.

    At most one verifier may name no issuer: it gets the tokens that name none, such as API keys and opaque tokens. If
    there is none, the only `Introspection(…, issuer=…)` gets them. The principals of a named issuer are called
    `issuer|subject`, because two issuers may give two people one subject.
    """

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._by_issuer: dict[str, Verifier] = {}
        self._other: Verifier | None = None
        for verifier in verifiers:
            named: tuple[str, ...] = getattr(verifier, "issuers", ())
            for issuer in named:
                if issuer in self._by_issuer:
                    raise UsageError(f"auth: two verifiers are for the issuer {issuer!r}", fix="keep one of them")
                self._by_issuer[issuer] = verifier
            if not named and self._other is not None:
                raise UsageError(
                    "auth: two verifiers name no issuer, so nothing says which of them a token is for",
                    fix="keep one of them beside JWT(…), OIDC(…) and Introspection(…, issuer=…)",
                )
            if not named:
                self._other = verifier
        if not verifiers:
            raise UsageError("auth=[] lets nobody in", fix="give at least one verifier, or leave auth out")
        self.issuers = tuple(self._by_issuer)
        opaque = [name for name, verifier in self._by_issuer.items() if getattr(verifier, "reads_opaque", False)]
        self._opaque = opaque[0] if len(opaque) == 1 and self._other is None else None
        self.audiences = tuple(
            dict.fromkeys(text for verifier in verifiers for text in getattr(verifier, "audiences", ()))
        )

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        for verifier in {id(each): each for each in (*self._by_issuer.values(), self._other)}.values():
            bind_server(verifier, identity)

    @property
    def revocations(self) -> Callable[[], AsyncGenerator[str]] | None:
        """See `ApiKeys.revocations`."""
        return getattr(self._other, "revocations", None)

    async def check_ready(self) -> None:
        """See `ApiKeys.check_ready`."""
        await check_ready(self._other)

    def check_settings(self) -> None:
        """See `ApiKeys.check_settings`."""
        check_settings(self._other)

    async def verify(self, token: str) -> Principal | None:
        """What the verifier of the token's issuer says."""
        if not is_token(token):
            return None
        issuer = claimed_issuer(token) or self._opaque
        if issuer is None:
            return await self._unnamed(token)
        verifier = self._by_issuer.get(issuer)
        principal = await verifier.verify(token) if verifier is not None else None
        if principal is None:
            return None
        name = f"{issuer}|{principal.id}"
        return replace(principal, id=name) if is_token_id(name) else None

    async def _unnamed(self, token: str) -> Principal | None:
        """What the verifier says that names no issuer. It cannot speak for users of the others."""
        principal = await self._other.verify(token) if self._other is not None else None
        is_taken = principal is not None and any(principal.id.startswith(f"{issuer}|") for issuer in self.issuers)
        return None if is_taken else principal


def claimed_issuer(token: str) -> str | None:
    """The issuer that a signed token claims, not verified. None if it is not a signed token, or names none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = json.loads(base64url.decode(parts[1]))
    except (ValueError, RecursionError):
        return None
    issuer = claims.get("iss") if is_object(claims) else None
    return issuer if isinstance(issuer, str) else None
