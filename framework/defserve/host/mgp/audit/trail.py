"""MGP §6: the audit events of one connection: what the server reports, and what this host did or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from defserve.errors import Refused, Rejected
from defserve.host.audit import HostAuditTrail
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.audit.sinks import AuditSink
from defserve.redaction import redact

AUDIT: Final = "notifications/mgp.audit"
RETRIED: Final = "dev.defserve.tool_retried"
FELL_BACK: Final = "dev.defserve.tool_fell_back"


class MgpAuditTrail(HostAuditTrail):
    """`actor` is the name of this host in its own events."""

    def __init__(self, sinks: Sequence[AuditSink], actor: str) -> None:
        super().__init__(sinks)
        self._actor = actor

    def report(
        self,
        event_type: str,
        *,
        trace_id: str | None = None,
        tool: str | None = None,
        result: str = "SUCCESS",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Record something that this host did or refused."""
        target = {"server_id": self.server_id} | ({"tool_name": tool} if tool is not None else {})
        self.keep(
            event_type,
            {
                "timestamp": instants.wire(instants.now()),
                "trace_id": trace_id or str(uuid4()),
                "event_type": event_type,
                "actor": {"type": "client", "id": self._actor},
                "target": target,
                "result": result,
                "details": redact(dict(details or {})),
            },
        )

    def blocked(self, tool: str, refusal: Refused, trace_id: str) -> None:
        """Record a call that was refused before it was sent."""
        if isinstance(refusal, Rejected):
            details = {
                "reason": refusal.reason,
                "violations": list(refusal.violations),
                "validator_applied": refusal.guard,
            }
            event = "CODE_REJECTED" if refusal.guard == "code_safety" else "VALIDATION_FAILED"
            self.report(event, trace_id=trace_id, tool=tool, result="BLOCKED", details=details)
        self.report(
            "TOOL_BLOCKED", trace_id=trace_id, tool=tool, result="BLOCKED", details={"reason": refusal.error_type}
        )

    def received(self, event: Mapping[str, Any]) -> None:
        """Keep an event that the server sent. `reported_by` marks it as that server's claim."""
        self.keep(event.get("event_type"), {**redact(dict(event)), "reported_by": self.server_id})
