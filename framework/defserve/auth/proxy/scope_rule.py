"""Which scopes a sign-in grants: those of every token, and of the optional ones those that the author's rule gives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, Final, TypeAlias

from defserve.auth.proxy.requests import Offered
from defserve.errors import UsageError

log = logging.getLogger("defserve.auth")

ScopesFor: TypeAlias = Callable[[Mapping[str, Any]], Iterable[str] | Awaitable[Iterable[str]]]
"""The scopes that a user with these claims may have. `sub` is the id that never changes for a user of this vendor."""

RULE_SECONDS: Final = 10.0


class ScopeRule:
    """Grants scopes. Raises UsageError for optional scopes that everybody could take, and for a rule about nothing."""

    def __init__(self, offered: Offered, scopes_for: ScopesFor | None) -> None:
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
