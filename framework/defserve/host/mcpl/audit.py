"""MCPL §13.2: what a host did for one server, and what it refused, into the host's own sinks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

from defserve.errors import DefserveError, PeerTimeout
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.audit.sinks import AuditSink
from defserve.redaction import redact

Outcome: TypeAlias = Literal["success", "failure", "timeout", "refused", "cancelled"]

TEXT: Final = 200

log = logging.getLogger("defserve.host")


class LiveAudit:
    """The trail of one connection. A record that a sink does not take is logged as lost."""

    def __init__(self, sinks: Sequence[AuditSink]) -> None:
        self._sinks = sinks
        self.server_id = ""

    def report(
        self,
        method: str,
        outcome: Outcome = "success",
        *,
        feature_set: object = None,
        inference_id: object = None,
        **details: Any,
    ) -> None:
        """Tell of one operation. What is None is left out."""
        record: dict[str, Any] = {
            "timestamp": instants.wire(instants.now()),
            "serverId": self.server_id,
            "method": method,
            "featureSet": _name(feature_set),
            "inferenceId": _name(inference_id),
            "outcome": outcome,
            "details": redact({name: value for name, value in details.items() if value is not None}),
        }
        self._keep({name: value for name, value in record.items() if value is not None})

    @contextmanager
    def watching(self, method: str, **about: Any) -> Generator[dict[str, Any]]:
        """Tell how the block ended. It may add to what is told."""
        told: dict[str, Any] = dict(about)
        try:
            yield told
        except BaseException as error:
            self.report(method, _outcome(error), **{**told, "reason": str(error)[:TEXT] or type(error).__name__})
            raise
        self.report(method, told.pop("outcome", "success"), **told)

    def _keep(self, record: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            try:
                sink.append(record)
            except Exception as error:
                log.error("the audit record of %s is lost: %s", record["method"], error)


def _name(given: object) -> str | None:
    """What a server wrote for a name, if it is one."""
    return given[:TEXT] if isinstance(given, str) else None


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, TimeoutError | PeerTimeout):
        return "timeout"
    # The server's own errors are failures; what this host raises by policy has a code of MCPL's.
    return "refused" if isinstance(error, DefserveError) and hasattr(error, "error_type") else "failure"
