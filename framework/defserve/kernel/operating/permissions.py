"""`defserve kernel permissions`: what servers need, and what operators have decided about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from defserve.auth.principals import LOCAL
from defserve.base.hidden_characters import has_hidden
from defserve.errors import UsageError
from defserve.kernel.config.entries import KernelConfig
from defserve.kernel.governance.governance import Governance
from defserve.kernel.governance.permissions import INTERACTIVE, Decision
from defserve.kernel.members import Member
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.agreed import tool_security
from defserve.protocols.mgp.security.vocabulary import PERMISSIONS
from defserve.server.server import Server

EVENTS: Final[Mapping[Decision, tuple[str, str]]] = {
    "approved": ("PERMISSION_GRANTED", "SUCCESS"),
    "denied": ("PERMISSION_DENIED", "DENIED"),
}
LONGEST_REASON: Final = 2_000


class PermissionKernel(Protocol):
    """The part of a kernel that these verbs use."""

    config: KernelConfig
    server: Server
    members: dict[str, Member]
    governance: Governance

    def member(self, id: str) -> Member: ...


class PermissionVerbs:
    """Each method is a verb of the control socket."""

    def __init__(self, kernel: PermissionKernel) -> None:
        self._kernel = kernel

    async def list(self, id: str | None = None) -> list[dict[str, Any]]:
        """Every permission that a tool of a server needs: the decision about it, and who has asked for it."""
        if id is not None:
            self._kernel.member(id)
        await self._kernel.governance.refresh()
        needed = self._needed()
        return [self._row(one, name, needed[one][name]) for one in needed for name in needed[one] if id in (None, one)]

    async def approve(self, id: str, permission: str | None = None, reason: str = "") -> list[dict[str, Any]]:
        """Let the tools of a server use a permission, whoever calls them; all that nobody has decided about if none
        is named."""
        return await self._decide("approved", id, permission, reason)

    async def deny(self, id: str, permission: str | None = None, reason: str = "") -> list[dict[str, Any]]:
        """Keep the tools of a server from a permission, whoever calls them."""
        return await self._decide("denied", id, permission, reason)

    async def _decide(self, decision: Decision, id: str, permission: str | None, reason: str) -> list[dict[str, Any]]:
        kernel, section = self._kernel, self._kernel.governance.permissions
        kernel.member(id)
        if len(reason) > LONGEST_REASON or has_hidden(reason):
            raise UsageError(
                f"a reason is a line of at most {LONGEST_REASON} printable characters", fix="write a shorter reason"
            )
        await kernel.governance.refresh()
        needed = self._needed().get(id, {})
        names = [permission] if permission else [name for name in needed if not section.decision(id, name)]
        if permission is not None and permission not in needed and not section.decision(id, permission):
            known = ", ".join(needed) or "none"
            raise UsageError(f"{id} needs no permission {permission[:128]!r}", fix=f"it needs: {known}")
        if not names:
            raise UsageError(f"nobody asks for a permission of {id}", fix="see `defserve kernel permissions`")
        event, result = EVENTS[decision]
        details = {"permissions": names, "reason": reason}
        by = {"type": "user", "id": LOCAL.id}
        # A decision that cannot be recorded is not made.
        await asyncio.to_thread(lambda: kernel.server.mgp.audit.record(event, id, result, details, by=by))
        try:
            await asyncio.to_thread(section.decide, id, names, decision, LOCAL.id, reason)
        except OSError as error:
            raise UsageError(
                f"the decision cannot be kept: {error}", fix="make the folder of the file writable"
            ) from None
        await section.tell(id)
        return [self._row(id, name, needed.get(name, [])) for name in names]

    def _needed(self) -> dict[str, dict[str, list[str]]]:
        """Server → permission → the tools that need it, by their names here."""
        found: dict[str, dict[str, list[str]]] = {id: {} for id in self._kernel.members}
        for tool in self._kernel.server.mcp.tools.registry:
            id, security = tool.server_id, tool_security(tool)
            if id in found and security is not None:
                for name in security.security.permissions:
                    found[id].setdefault(name, []).append(tool.name)
        return found

    def _row(self, id: str, name: str, tools: list[str]) -> dict[str, Any]:
        section = self._kernel.governance.permissions
        undecided = "asked" if self._kernel.config.settings.permissions == INTERACTIVE else "auto"
        row: dict[str, Any] = {
            "id": id,
            "permission": name,
            "risk_level": PERMISSIONS.get(name, "moderate"),
            "decision": undecided,
            **section.decision(id, name),
            "tools": tools,
        }
        if (asked := section.asked.get((id, name))) is not None:
            row |= {"refused_calls": asked.calls, "asked_by": asked.agent_id, "asked_at": instants.wire(asked.at)}
        return row
