"""The request log: one line a request, to the logger `defserve.requests`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from defserve.core.call import Call
from defserve.observing.watcher import RequestOutcome, RequestWatcher
from defserve.protocols.mcp.trace import trace_id


class RequestLog(RequestWatcher[None]):
    """Logs method, name, outcome, duration and trace id. Arguments and results may hold secrets, and are left out."""

    name = "request log"

    def __init__(self) -> None:
        self._log = logging.getLogger("defserve").getChild("requests")

    def begin(self, call: Call) -> None:
        pass

    def end(self, call: Call, begun: None, seconds: float, outcome: RequestOutcome) -> None:
        fields = {
            "method": call.method,
            # The name as it was registered: what a caller wrote does not go into a log.
            "name": getattr(call.subject, "name", None),
            "outcome": outcome.kind,
            "error_type": outcome.error_type or None,
            "duration_ms": round(seconds * 1000, 1),
            "trace_id": trace_id(call),
            "principal": call.principal,
        }
        told = {key: value for key, value in fields.items() if value is not None}
        self._log.info("%s", _line(told), extra={"fields": told})


def _line(told: Mapping[str, object]) -> str:
    subject = f"{told['method']} {told['name']}" if "name" in told else told["method"]
    outcome = f"{told['outcome']} ({told['error_type']})" if "error_type" in told else told["outcome"]
    return f"{subject} {outcome} {told['duration_ms']} ms trace={told['trace_id']}"
