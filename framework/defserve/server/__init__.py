"""`Server` collects what an author declares, combines it once, and puts it on an address.

Decorators return the author's function unchanged. A mistake is a UsageError with file and line when it is declared.
A protocol's methods on `Server` only hand over to that protocol. Protocols that a server does not use are not imported,
and nothing is imported for an address that is not used. A server on the network does not start if a tool needs scopes
and no `auth` could grant them.

Logs, metrics and spans are extensions that watch requests from outside. None is active unless it is switched on.
Arguments and results are never kept, unless a trace is asked to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.protocols.mcp.events.draft import EventSettings
    from defserve.protocols.mgp.access import AccessPolicy, Entry
    from defserve.protocols.mgp.audit import AuditLogger
    from defserve.protocols.mgp.events import EventChannel
    from defserve.protocols.mgp.policy import (
        PolicyDecision,
        PolicyRequest,
        allow_call,
        refuse_call,
        require_confirmation,
    )
    from defserve.server.metrics import Metrics
    from defserve.server.server import Server
    from defserve.server.telemetry import Telemetry, TelemetryOptions
    from defserve.stores.audit.log_file import AuditLog
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.protocols.mcp.events.draft": "EventSettings",
            "defserve.protocols.mgp.access": "AccessPolicy Entry",
            "defserve.protocols.mgp.audit": "AuditLogger",
            "defserve.protocols.mgp.events": "EventChannel",
            "defserve.protocols.mgp.policy": (
                "PolicyDecision PolicyRequest allow_call refuse_call require_confirmation"
            ),
            "defserve.server.metrics": "Metrics",
            "defserve.server.server": "Server",
            "defserve.server.telemetry": "Telemetry TelemetryOptions",
            "defserve.stores.audit.log_file": "AuditLog",
        },
    )

__all__ = [
    "AccessPolicy",
    "AuditLog",
    "AuditLogger",
    "Entry",
    "EventChannel",
    "EventSettings",
    "Metrics",
    "PolicyDecision",
    "PolicyRequest",
    "Server",
    "Telemetry",
    "TelemetryOptions",
    "allow_call",
    "refuse_call",
    "require_confirmation",
]
