"""MGP §6 from the client's side: what servers report and what the host itself did, into the host's own sinks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from defserve.errors import Refused, Rejected
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.audit.sinks import AuditSink
from defserve.redaction import redact

AUDIT: Final = "notifications/mgp.audit"
RETRIED: Final = "dev.defserve.tool_retried"
FELL_BACK: Final = "dev.defserve.tool_fell_back"

log = logging.getLogger("defserve.host")


class Auditing:
    """The trail of one connection. An event that a sink does not take is logged as lost."""

    def __init__(self, sinks: Sequence[AuditSink], actor: str) -> None:
        self._sinks, self._actor = sinks, actor
        self.server_id = ""

    def report(
        self,
        event_type: str,
        *,
        trace_id: str | None = None,
        tool: str | None = None,
        result: str = "SUCCESS",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell of something this host did or refused."""
        target = {"server_id": self.server_id} | ({"tool_name": tool} if tool is not None else {})
        self._keep(
            {
                "timestamp": instants.wire(instants.now()),
                "trace_id": trace_id or str(uuid4()),
                "event_type": event_type,
                "actor": {"type": "client", "id": self._actor},
                "target": target,
                "result": result,
                "details": redact(dict(details or {})),
            }
        )

    def blocked(self, tool: str, refusal: Refused, trace_id: str) -> None:
        """Tell of a call that never left."""
        if isinstance(refusal, Rejected):
            details = {
                "reason": refusal.reason,
                "violations": list(refusal.violations),
                "validator_applied": refusal.guard,
            }
            event = "CODE_REJECTED" if refusal.guard == "code_safety" else "VALIDATION_FAILED"
            self.report(event, trace_id=trace_id, tool=tool, result="BLOCKED", details=details)
        reason = {"reason": refusal.error_type}
        self.report("TOOL_BLOCKED", trace_id=trace_id, tool=tool, result="BLOCKED", details=reason)

    def received(self, event: Mapping[str, Any]) -> None:
        """Keep a server's event. It is that server's word, and says so."""
        self._keep({**redact(dict(event)), "reported_by": self.server_id})

    def _keep(self, event: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            try:
                sink.append(event)
            except Exception as error:
                log.error("audit event %s is lost: %s", event.get("event_type"), error)
