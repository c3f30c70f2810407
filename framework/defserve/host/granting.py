"""MGP §3.4–3.6 from the client's side: the gate between the server's answer and the first call, and what was granted.

With a handshake the server is asked, then told, before `initialized`. Without sessions grants travel with each call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from defserve.errors import MethodNotFound, PeerError
from defserve.host.answers import Answers
from defserve.host.approval import Approval, Grant
from defserve.host.auditing import Auditing
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.permissions import FAMILIES, GRANT_KEYS, Decision

Send = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

# The same request by its older and its newer name, in the order they are tried.
ASK: Final = ("mgp/permission/request", "mgp/permission/await")
TELL: Final = ("mgp/permission/grant", "mgp/permission/response")

log = logging.getLogger("defserve.host")


class Granting:
    """What one server may use. `send` is how it is told; None where it has no ear for it."""

    def __init__(self, approval: Approval, answers: Answers, audit: Auditing) -> None:
        self._approval, self._answers, self._audit = approval, answers, audit
        self._grants: dict[str, Grant] = {}
        self._deciding = asyncio.Lock()
        self.send: Send | None = None

    @property
    def grants(self) -> dict[str, Decision]:
        """How it stands now with each permission that was decided; one whose time is over is `deferred`."""
        now = instants.now()
        return {name: grant.decision if grant.holds(now) else "deferred" for name, grant in self._grants.items()}

    async def settle(self, names: Iterable[str], server: str) -> None:
        """Decide what is not decided, or no longer, and tell the server."""
        async with self._deciding:  # two calls at once must not ask a person twice
            now = instants.now()
            open_ = [n for n in dict.fromkeys(names) if n not in self._grants or not self._grants[n].holds(now)]
            if not open_:
                return
            request_id = str(uuid4())
            if self.send is not None:
                await self._wire(ASK, {"request_id": request_id, "permissions": open_, "policy": self._approval.policy})
            decided = {name: await self._approval.decide(name, server, self._answers) for name in open_}
            self._grants.update(decided)
            self._report(decided)
            if self.send is not None:
                told = {name: grant.wire() for name, grant in decided.items()}
                await self._wire(TELL, {"request_id": request_id, "grants": told})

    def require(self, tool: str, names: Sequence[str]) -> None:
        """Raises PermissionDenied unless each of these is approved."""
        standing = self.grants
        missing: dict[str, Any] = {
            name: decision for name in names if (decision := self._decision(standing, name)) != "approved"
        }
        if missing:
            told = "; ".join(f"{name}: {decision}" for name, decision in missing.items())
            raise PermissionDenied(
                f"{tool} needs what this client does not grant ({told}): approve it, or list it in Mgp(granted=[…])",
                details={"tool": tool, "missing": missing},
            )

    def meta(self) -> dict[str, Any]:
        """What a call carries in `_meta` where nothing is remembered between requests."""
        now = instants.now()
        held = {name: grant.wire() for name, grant in self._grants.items() if grant.holds(now)}
        return {GRANT_KEYS[0]: held} if held else {}

    def _decision(self, standing: Mapping[str, Decision], name: str) -> Decision:
        """A permission by itself, or as one of a family that was decided as a whole."""
        for each in (name, *(family for family, members in FAMILIES.items() if name in members)):
            if each in standing:
                return standing[each]
        return "deferred"

    def _report(self, decided: Mapping[str, Grant]) -> None:
        for decision, event, result in (
            ("approved", "PERMISSION_GRANTED", "SUCCESS"),
            ("denied", "PERMISSION_DENIED", "DENIED"),
        ):
            names = [name for name, grant in decided.items() if grant.decision == decision]
            if names:
                details = {"permissions": names, "policy": self._approval.policy}
                self._audit.report(event, result=result, details=details)

    async def _wire(self, methods: Sequence[str], params: Mapping[str, Any]) -> None:
        """Say it under the first of its names that the server knows. What we refuse ourselves holds either way."""
        assert self.send is not None
        for method in methods:
            try:
                await self.send(method, params)
                return
            except PeerError as error:
                if type(error) is not PeerError:
                    raise
                if error.code != MethodNotFound.code:
                    log.warning("the server did not take %s: %s", method, error)
                    return
        log.warning("the server knows neither %s", " nor ".join(methods))
