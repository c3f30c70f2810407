"""The request log: one line per request, to the logger `defserve.requests`."""

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
            # The registered name: text of a caller does not go into the log.
            "name": call.subject_name,
            "outcome": outcome.kind,
            "error_type": outcome.error_type or None,
            "duration_ms": round(seconds * 1000, 1),
            "trace_id": trace_id(call),
            "principal": call.principal,
        }
        known = {key: value for key, value in fields.items() if value is not None}
        self._log.info("%s", _line(known), extra={"fields": known})


def _line(known: Mapping[str, object]) -> str:
    subject = f"{known['method']} {known['name']}" if "name" in known else known["method"]
    outcome = f"{known['outcome']} ({known['error_type']})" if "error_type" in known else known["outcome"]
    return f"{subject} {outcome} {known['duration_ms']} ms trace={known['trace_id']}"
