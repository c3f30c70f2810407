"""MGP §3.4–3.6: decides about the permissions of a server before its first call, and keeps the grants.

In a session the server is told before `initialized`. Without a session each call carries the grants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from defserve.host.answers import Answers
from defserve.host.mgp.audit.trail import MgpAuditTrail
from defserve.host.mgp.permissions.approval import Approval, Grant
from defserve.host.mgp.permissions.telling import ASK, Send, send_known, tell_grants
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.permissions.grants import GRANT_KEYS, PermissionDecision
from defserve.protocols.mgp.security.vocabulary import FAMILIES

DEFERRED: Final = Grant("deferred")


class ServerGrants:
    """What one server may use. `send` tells the server; it is None if the server is not told."""

    def __init__(self, approval: Approval, answers: Answers, audit: MgpAuditTrail) -> None:
        self._approval, self._answers, self._audit = approval, answers, audit
        self._grants: dict[str, Grant] = {}
        self._deciding = asyncio.Lock()
        self.send: Send | None = None

    @property
    def grants(self) -> dict[str, PermissionDecision]:
        """The current decision about each permission. An expired one is `deferred`."""
        return {name: self._held(name).decision for name in self._grants}

    async def settle(self, names: Iterable[str], server: str) -> None:
        """Decide about permissions that are open or expired, and tell the server."""
        async with self._deciding:  # two calls at once must not ask the person twice
            wanting = [name for name in dict.fromkeys(names) if not self._is_settled(name)]
            if not wanting:
                return
            id, policy, message = str(uuid4()), self._approval.policy, self._approval.message
            if self.send is not None:
                asked = {"request_id": id, "permissions": wanting, "policy": policy, "message": message}
                await send_known(self.send, ASK, asked)
            decided = {name: await self._approval.decide(name, server, self._answers) for name in wanting}
            await self._keep(id, decided)

    async def change(self, decided: Mapping[str, Grant]) -> None:
        """Decide about permissions anew, and tell the server. What is deferred is asked for again when it is needed."""
        await self._keep(str(uuid4()), decided)

    async def _keep(self, id: str, decided: Mapping[str, Grant]) -> None:
        self._grants.update(decided)
        self._report(decided)
        if self.send is not None:
            await tell_grants(self.send, id, decided, self._audit.actor)

    def require(self, tool: str, names: Sequence[str]) -> None:
        """Raises PermissionDenied unless all of these are approved."""
        missing = {name: held.decision for name in names if (held := self._held(name)).decision != "approved"}
        if not missing:
            return
        listed = "; ".join(f"{name}: {decision}" for name, decision in missing.items())
        if "denied" in missing.values():
            why = f"needs what this client does not grant ({listed}): approve it"
        else:
            why = f"waits for a decision of this client ({listed}): decide and call again"
        raise PermissionDenied(
            f"{tool} {why}, or list it in Mgp(granted=[…])",
            details={"tool": tool, "missing": missing},
            retryable="denied" not in missing.values(),
        )

    def admit(self, server: str, names: Sequence[str]) -> None:
        """Raises PermissionDenied for a server that needs what a policy denies it: it is not connected (§3.4)."""
        denied = {name: "denied" for name in names if self._held(name).decision == "denied"}
        if denied and self._approval.rejects:
            raise PermissionDenied(
                f"{server} needs {', '.join(denied)}, which the policy {self._approval.policy} denies:"
                " list it in Mgp(granted=[…]), or use another policy",
                details={"server": server, "missing": denied},
            )

    def meta(self) -> dict[str, Any]:
        """What a call carries in `_meta` if there is no session."""
        grants = {name: grant.wire() for name, grant in self._grants.items()}
        return {GRANT_KEYS[0]: grants} if grants else {}

    def _held(self, name: str) -> Grant:
        """The decision about a permission: its own, or the one about its whole family."""
        families = (family for family, members in FAMILIES.items() if name in members)
        found = next((self._grants[each] for each in (name, *families) if each in self._grants), DEFERRED)
        return found if found.holds(instants.now()) else DEFERRED

    def _is_settled(self, name: str) -> bool:
        held = self._held(name)
        if held.decision != "deferred":
            return True
        return name in self._grants and self._grants[name] == held and not self._approval.can_ask(self._answers)

    def _report(self, decided: Mapping[str, Grant]) -> None:
        for decision, event, result in (
            ("approved", "PERMISSION_GRANTED", "SUCCESS"),
            ("denied", "PERMISSION_DENIED", "DENIED"),
        ):
            if names := [name for name, grant in decided.items() if grant.decision == decision]:
                details = {"permissions": names, "policy": self._approval.policy}
                self._audit.report(event, result=result, details=details)
