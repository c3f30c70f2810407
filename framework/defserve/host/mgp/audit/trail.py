"""MGP §6: the audit events of one connection: what this host did, saw or refused, and what the server reports.

The host's own events have `observed_by`, with the name of the host. They do not depend on what the server reports. The
server's have `reported_by`, with the name of the server: they are its claims.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from defserve.errors import PeerError, Refused, Rejected
from defserve.host.audit import HostAuditTrail
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.audit.sinks import AuditSink
from defserve.redaction import redact

AUDIT: Final = "notifications/mgp.audit"
RETRIED: Final = "dev.defserve.tool_retried"
FELL_BACK: Final = "dev.defserve.tool_fell_back"
REQUESTED: Final[Mapping[str, str]] = {
    "mgp/access/grant": "ACCESS_GRANTED",
    "mgp/access/revoke": "ACCESS_REVOKED",
    "mgp/lifecycle/shutdown": "dev.defserve.shutdown_requested",
}
"""Requests of MGP that change something → the event of each."""


class MgpAuditTrail(HostAuditTrail):
    """`actor` is the name of this host in its own events."""

    def __init__(self, sinks: Sequence[AuditSink], actor: str) -> None:
        super().__init__(sinks)
        self.actor = actor
        self.calls = self.reports = 0
        """How many calls this host saw end, and how many events the server reported."""

    def report(
        self,
        event_type: str,
        *,
        trace_id: str | None = None,
        tool: str | None = None,
        result: str = "SUCCESS",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Record something that this host did, saw or refused."""
        target = {"server_id": self.server_id} | ({"tool_name": tool} if tool is not None else {})
        self.keep(
            event_type,
            {
                "timestamp": instants.wire(instants.now()),
                "trace_id": trace_id or str(uuid4()),
                "event_type": event_type,
                "actor": {"type": "client", "id": self.actor},
                "target": target,
                "result": result,
                "details": redact(dict(details or {})),
                "observed_by": self.actor,
            },
        )

    def executed(self, tool: str, trace_id: str, outcome: Mapping[str, Any] | BaseException) -> None:
        """Record how a call that was sent ended, as this host saw it."""
        self.calls += 1
        result, details = "SUCCESS", dict[str, Any]()
        if isinstance(outcome, BaseException):
            result = "CANCELLED" if isinstance(outcome, CancelledError) else "FAILURE"
            details = {"error": type(outcome).__name__}
        elif outcome.get("isError"):
            result = "FAILURE"
        self.report("TOOL_EXECUTED", trace_id=trace_id, tool=tool, result=result, details=details)

    def requested(self, method: str, params: Mapping[str, Any], error: PeerError | None) -> None:
        """Record a request of MGP that changes something."""
        if (event := REQUESTED.get(method)) is not None:
            about = {name: params[name] for name in ("agent_id", "tool_name", "reason") if name in params}
            if error is not None:
                about["error"] = type(error).__name__
            self.report(event, result="SUCCESS" if error is None else "FAILURE", details=about)

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
        """Keep an event that the server sent. `reported_by` marks it as that server's claim, whatever it says."""
        self.reports += 1
        claim = {name: value for name, value in redact(dict(event)).items() if name != "observed_by"}
        self.keep(event.get("event_type"), {**claim, "reported_by": self.server_id})
