"""MCPL §13.2: the audit records of one connection: what this host did for the server, and what it refused."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

from defserve.errors import DefserveError, PeerTimeout
from defserve.host.audit import HostAuditTrail
from defserve.protocols.mgp import instants
from defserve.redaction import redact

Outcome: TypeAlias = Literal["success", "failure", "timeout", "refused", "cancelled"]

LONGEST_TEXT: Final = 200


class McplAuditTrail(HostAuditTrail):
    def report(
        self,
        method: str,
        outcome: Outcome = "success",
        *,
        feature_set: object = None,
        inference_id: object = None,
        **details: Any,
    ) -> None:
        """Record one operation. Fields that are None are left out."""
        record: dict[str, Any] = {
            "timestamp": instants.wire(instants.now()),
            "serverId": self.server_id,
            "method": method,
            "featureSet": _name(feature_set),
            "inferenceId": _name(inference_id),
            "outcome": outcome,
            "details": redact({name: value for name, value in details.items() if value is not None}),
        }
        self.keep(method, {name: value for name, value in record.items() if value is not None})

    @contextmanager
    def watching(self, method: str, **about: Any) -> Generator[dict[str, Any]]:
        """Record how the block ended. The block may add to the record."""
        try:
            yield about
        except BaseException as error:
            reason = str(error)[:LONGEST_TEXT] or type(error).__name__
            self.report(method, _outcome(error), **{**about, "reason": reason})
            raise
        self.report(method, about.pop("outcome", "success"), **about)


def _name(given: object) -> str | None:
    """A name as the server wrote it; None if it is not a string."""
    return given[:LONGEST_TEXT] if isinstance(given, str) else None


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, TimeoutError | PeerTimeout):
        return "timeout"
    # Errors of the server are failures; what this host refuses by policy has an error type of MCPL.
    return "refused" if isinstance(error, DefserveError) and hasattr(error, "error_type") else "failure"
