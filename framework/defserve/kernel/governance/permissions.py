"""MGP §3 at a kernel: what operators have decided about the permissions that each server needs.

| an operator | a caller that is vouched for | a stranger |
|---|---|---|
| has approved it | may use it | may use it |
| has denied it | is refused | is refused |
| has not decided, `permissions = "auto_approve"` | may use it | is refused |
| has not decided, `permissions = "interactive"` | is refused until one decides | is refused until one decides |

A client may still give up a permission of its own, as at any server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.permissions import PermissionSection
from defserve.protocols.mgp.vocabulary import (
    GRANTED_STATUS,
    OPERATOR_APPROVER,
    OPERATOR_DENIED_STATUS,
    PermissionStatus,
)

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.messages import Params
    from defserve.kernel.kernel import Kernel, StateFile
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mgp.audit import AuditTrail
    from defserve.protocols.mgp.terms import SecurityOptions

PermissionDecision: TypeAlias = Literal["approved", "denied"]
INTERACTIVE_POLICY: Final = "interactive"
ASKED: Final = PermissionStatus("deferred", why="no operator has approved it yet")
MAX_ASKED_PERMISSIONS: Final = 4_096


@dataclass(slots=True)
class AskedPermission:
    """A permission that a call was refused for, because no operator has decided: how often, and for whom last."""

    calls: int
    agent_id: str
    at: datetime


class KernelPermissions(PermissionSection):
    """The permissions of the servers behind a kernel; those of its own tools are as at any server."""

    def __init__(
        self, options: SecurityOptions, audit: Callable[[], AuditTrail], state: StateFile, kernel: Kernel
    ) -> None:
        super().__init__(options, audit)
        self._state, self._kernel = state, kernel
        # Decisions about registered servers. They end with them: another server may have that id next.
        self._passing: dict[str, dict[str, dict[str, Any]]] = {}
        self.asked: dict[tuple[str, str], AskedPermission] = {}

    def list_statuses(
        self, call: Call, names: Iterable[str], server_id: str | None = None
    ) -> dict[str, PermissionStatus]:
        found = super().list_statuses(call, names)
        if server_id is None or (server_id not in self._kernel.members and not self._decisions(server_id)):
            return found
        decided = {name: self._apply_operator_decision(server_id, name, status) for name, status in found.items()}
        for name in (name for name, status in decided.items() if status is ASKED):
            self._ask(call, server_id, name)
        return decided

    def decide_for_server(self, id: str, call: Call | None, names: Iterable[str]) -> dict[str, PermissionStatus]:
        """What a server is told of its permissions: for a call, or, without one, for callers that are vouched for."""
        found = dict.fromkeys(names, GRANTED_STATUS) if call is None else super().list_statuses(call, names)
        return {name: self._apply_operator_decision(id, name, status) for name, status in found.items()}

    def grant(self, call: Call, params: Params) -> Params:
        result = super().grant(call, params)
        if call.session.engine.ready:
            call.session.engine.spawn(self.notify_servers())
        return result

    async def notify_servers(self, id: str | None = None) -> None:
        """Somebody has decided: servers that speak MGP are told, one of them or all."""
        backends = (one.backend for one in self._kernel.members.values() if id in (None, one.id))
        await asyncio.gather(*(backend.tell_decisions() for backend in backends if backend is not None))

    def _apply_operator_decision(self, id: str, name: str, status: PermissionStatus) -> PermissionStatus:
        kept = self._decisions(id).get(name)
        # One that is neither was not written by a kernel of this version, and allows nothing.
        if kept is not None and kept.get("decision") != "approved":
            return OPERATOR_DENIED_STATUS
        if status.decision != "approved" and status.by not in (None, OPERATOR_APPROVER):
            return status  # the caller itself has given it up
        if kept is not None:
            return GRANTED_STATUS
        return ASKED if self._kernel.config.settings.permissions == INTERACTIVE_POLICY else status

    def _ask(self, call: Call, id: str, name: str) -> None:
        agent, now = identify_caller(call).id, self.clock()
        if (asked := self.asked.get((id, name))) is not None:
            asked.calls, asked.agent_id, asked.at = asked.calls + 1, agent, now
        elif len(self.asked) < MAX_ASKED_PERMISSIONS:
            self.asked[id, name] = AskedPermission(1, agent, now)

    def get_decision(self, id: str, name: str) -> dict[str, Any]:
        """What an operator has decided about a permission of a server: `decision`, `by`, `at`, `reason`; or nothing."""
        return self._decisions(id).get(name, {})

    def _decisions(self, id: str) -> dict[str, dict[str, Any]]:
        return self._passing.get(id, {}) if self._is_registered(id) else self._state.known.permissions.get(id, {})

    def _is_registered(self, id: str) -> bool:
        member = self._kernel.members.get(id)
        return member is not None and member.creator is not None

    def store_decision(self, id: str, names: Iterable[str], decision: PermissionDecision, by: str, reason: str) -> None:
        """Keep an operator's decision. Raises OSError if that fails."""
        kept = {"decision": decision, "by": by, "at": vocabulary.format_instant(self.clock()), "reason": reason}
        decided = dict.fromkeys(names, kept)
        if self._is_registered(id):
            self._passing.setdefault(id, {}).update(decided)
        else:
            self._state.update(lambda state: state.permissions.setdefault(id, {}).update(decided))
        for name in decided:
            self.asked.pop((id, name), None)

    def drop_server(self, id: str) -> None:
        """A server is gone. What was decided about one of the file stays."""
        self._passing.pop(id, None)
        for key in [key for key in self.asked if key[0] == id]:
            del self.asked[key]

    def _remedy(self, call: Call, tool: Tool, names: list[str]) -> str:
        if tool.server_id is None:
            return super()._remedy(call, tool, names)
        return f"An operator approves it: defserve kernel permissions approve {tool.server_id} {names[0]}."
