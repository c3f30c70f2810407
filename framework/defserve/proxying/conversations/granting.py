"""MGP §3 with a server behind this one. This side is its host: it decides what the server's tools may use.

In a session, the server is told before a call for which something has changed, and when somebody decides. Without
sessions, each call carries what its caller may use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from defserve.errors import InvalidParams, MethodNotFound, PeerError, PeerTimeout
from defserve.host.eras import merged
from defserve.host.fields import Json
from defserve.host.mgp.permissions.approval import Grant
from defserve.host.mgp.permissions.telling import ASK, tell_grants
from defserve.host.mgp.said import SaidMgp, mgp_offer
from defserve.protocols.mgp.permissions.grants import (
    GRANT_KEYS,
    PermissionStatus,
    answer,
    check_request,
    meant_by,
    request_id,
)
from defserve.protocols.mgp.security.vocabulary import is_permission

if TYPE_CHECKING:
    from defserve.core.call import Call

Decide: TypeAlias = "Callable[[Call | None, Iterable[str]], Mapping[str, PermissionStatus]]"
"""What may be used in a call of the permissions that are named. Without a call: by whoever is known."""

EXTENSIONS: Final = ("permissions", "security")
"""Those that have permissions. The first promises nothing else."""
TELL_SECONDS: Final = 5.0
BY: Final = "kernel"


def permission_offer(said: SaidMgp | None) -> dict[str, dict[str, Any]]:
    """What the conversation of a front offers a server that has said this of itself."""
    if said is None or not permissions_of(said):
        return {}
    return mgp_offer((next(name for name in EXTENSIONS if name in said.extensions),))


def permissions_of(said: SaidMgp) -> tuple[str, ...]:
    """The permissions that a server wants to be told of."""
    wants = said.version is not None and "permissions" in said.sections
    return tuple(name for name in said.permissions if is_permission(name)) if wants else ()


class ChannelGrants:
    """What one conversation was told. `request` sends a request of ours in it; it is None without a session."""

    def __init__(self, names: Sequence[str], decide: Decide, request: Callable[[str, Json, float], Any] | None) -> None:
        self._names, self._decide, self._request = names, decide, request
        self._told: dict[str, Grant] = {}
        self._last: Call | None = None
        self._telling = asyncio.Lock()
        self._offers: tuple[Json, Json] | None = None

    async def settle(self, call: Call | None) -> None:
        """Tell what has changed since it was told last. `call` is the one that comes next."""
        self._last = call
        if self._request is None:
            return
        async with self._telling:
            decided = self._grants(call)
            if changed := {name: grant for name, grant in decided.items() if self._told.get(name) != grant}:
                # A server that does not answer is not asked twice: what it may not do is refused here in any case.
                with suppress(PeerTimeout):
                    await tell_grants(self._send, str(uuid4()), changed, BY)
                self._told.update(changed)

    async def refresh(self) -> None:
        """Somebody has decided. A server that cannot be told now is told before the next call."""
        with suppress(PeerError):
            await self.settle(self._last)

    def meta(self, call: Call) -> Json:
        """What a call without a session carries in `_meta`."""
        return {GRANT_KEYS[0]: {name: grant.wire() for name, grant in self._grants(call).items()}}

    def offering(self, offers: Json) -> Json:
        """What a front offers, and what belongs to the grants of a call."""
        if self._offers is None or self._offers[0] is not offers:
            self._offers = offers, merged(offers, mgp_offer(EXTENSIONS[:1])["stateless"])
        return self._offers[1]

    def reply(self, method: str, params: Json, call: Call | None) -> Json:
        """The answer to a server that asks for permissions itself (§3.5). Raises MethodNotFound for other methods."""
        if method not in ASK:
            raise MethodNotFound(f"Method not found: {method} (this client did not offer it)")
        repeated, names = request_id(params), check_request(params)
        if not names:
            raise InvalidParams("Invalid params: permissions must not be empty")
        meant = [permission for name in names for permission in meant_by(name)]
        return repeated | answer(self._decide(call or self._last, meant), names)

    def _grants(self, call: Call | None) -> dict[str, Grant]:
        return {
            name: Grant(status.decision, status.expires_at) for name, status in self._decide(call, self._names).items()
        }

    async def _send(self, method: str, params: Mapping[str, Any]) -> Any:
        assert self._request is not None
        return await self._request(method, dict(params), TELL_SECONDS)
