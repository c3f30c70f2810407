"""The audit trail of one connection, into the host's own sinks: the events of MGP (§6), the records of MCPL (§13.2).

Also a server that keeps the trail for others. A sink that fails is logged. It never stops a call.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import uuid4

from defserve.base.peer_bounds import MAX_UNREAD_BYTES, estimate_value_bytes, truncate_text
from defserve.base.redaction import get_logger, redact
from defserve.errors import DefserveError, PeerError, PeerTimeout, Refused, Rejected
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.audit import AuditLogger, AuditSink

if TYPE_CHECKING:
    from defserve.client.client import Client

log = get_logger("client")


class HostAuditTrail:
    """A record that a sink does not take is logged as lost: auditing never stops a call."""

    def __init__(self, sinks: Sequence[AuditSink]) -> None:
        self._sinks = sinks
        self.server_id = ""

    def append_record(self, about: object, record: Mapping[str, Any]) -> None:
        """Hand a record to every sink. `about` names it in the log if one fails."""
        for sink in self._sinks:
            try:
                sink.append(record)
            except Exception as error:
                log.error("the audit record of %s is lost: %s", about, error)


# -- MGP §6: the audit events of one connection: what this host did, saw or refused, and what the server reports.
#
# The host's own events have `observed_by`, with the name of the host. They do not depend on what the server reports.
# The server's have `reported_by`, with the name of the server: they are its claims.


AUDIT_NOTIFICATION: Final = "notifications/mgp.audit"
TOOL_RETRIED_EVENT: Final = "dev.defserve.tool_retried"
TOOL_FELL_BACK_EVENT: Final = "dev.defserve.tool_fell_back"
EVENT_BY_METHOD: Final[Mapping[str, str]] = {
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
        self.append_record(
            event_type,
            {
                "timestamp": vocabulary.format_instant(vocabulary.utc_now()),
                "trace_id": trace_id or str(uuid4()),
                "event_type": event_type,
                "actor": {"type": "client", "id": self.actor},
                "target": target,
                "result": result,
                "details": redact(dict(details or {})),
                "observed_by": self.actor,
            },
        )

    def record_sent_call(self, tool: str, trace_id: str, outcome: Mapping[str, Any] | BaseException) -> None:
        """Record how a call that was sent ended, as this host saw it."""
        self.calls += 1
        result, details = "SUCCESS", dict[str, Any]()
        if isinstance(outcome, BaseException):
            result = "CANCELLED" if isinstance(outcome, CancelledError) else "FAILURE"
            details = {"error": type(outcome).__name__}
        elif outcome.get("isError"):
            result = "FAILURE"
        self.report("TOOL_EXECUTED", trace_id=trace_id, tool=tool, result=result, details=details)

    def record_request(self, method: str, params: Mapping[str, Any], error: PeerError | None) -> None:
        """Record a request of MGP that changes something."""
        if (event := EVENT_BY_METHOD.get(method)) is not None:
            about = {name: params[name] for name in ("agent_id", "tool_name", "reason") if name in params}
            if error is not None:
                about["error"] = type(error).__name__
            self.report(event, result="SUCCESS" if error is None else "FAILURE", details=about)

    def record_blocked_call(self, tool: str, refusal: Refused, trace_id: str) -> None:
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

    def record_server_event(self, event: Mapping[str, Any]) -> None:
        """Keep an event that the server sent. `reported_by` marks it as that server's claim, whatever it says."""
        self.reports += 1
        claim = {name: value for name, value in redact(dict(event)).items() if name != "observed_by"}
        self.append_record(event.get("event_type"), {**claim, "reported_by": self.server_id})


# -- MGP §6.3: a server that keeps the audit trail of others. Events that cannot be sent to it are logged by this host.


class AuditServer:
    """A sink for `Mgp(audit=…)`: each event goes to the server that `client` is connected to.

    Make it on the client's event loop. Events may come from any thread; they are sent in order, one at a time.
    """

    def __init__(self, client: Client) -> None:
        self._client, self._loop = client, asyncio.get_running_loop()
        self._waiting: asyncio.Queue[tuple[Mapping[str, Any], int]] = asyncio.Queue()
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        """Send an event soon. Raises PeerError for a `durable` event: this sink cannot tell when it is stored."""
        if durable:
            raise PeerError("an audit server cannot confirm that an event is stored: use an AuditLog")
        self._loop.call_soon_threadsafe(self._enqueue_event, event)

    async def flush(self) -> None:
        """Wait until every event so far is sent, or logged."""
        await asyncio.sleep(0)  # an event appended just now is still on its way to the queue
        await self._waiting.join()

    def _enqueue_event(self, event: Mapping[str, Any]) -> None:
        size = estimate_value_bytes(event)
        if self._bytes + size > MAX_UNREAD_BYTES:
            log.warning("the audit server does not read: an event is logged here instead")
            AuditLogger().append(event)
            return
        self._bytes += size
        self._waiting.put_nowait((event, size))
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while not self._waiting.empty():
            event, size = self._waiting.get_nowait()
            try:
                await self._client.notify(AUDIT_NOTIFICATION, event)
            except PeerError as error:
                log.warning("the audit server cannot be reached: %s", error)
                AuditLogger().append(event)
            finally:
                self._bytes -= size
                self._waiting.task_done()


# -- MCPL §13.2: the audit records of one connection: what this host did for the server, and what it refused.


Outcome: TypeAlias = Literal["success", "failure", "timeout", "refused", "cancelled"]

MAX_TEXT_LENGTH: Final = 200
MAX_REFUSED_ITEMS: Final = 10
"""Items of one list that have a record of their own if they are refused. How long a list is, the server decides."""


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
            "timestamp": vocabulary.format_instant(vocabulary.utc_now()),
            "serverId": self.server_id,
            "method": method,
            "featureSet": _truncate_name(feature_set),
            "inferenceId": _truncate_name(inference_id),
            "outcome": outcome,
            "details": redact({name: value for name, value in details.items() if value is not None}),
        }
        self.append_record(method, {name: value for name, value in record.items() if value is not None})

    def report_refused_items(self, method: str, refused: Sequence[Mapping[str, Any]], **about: Any) -> None:
        """Record which items of a list were refused, each with its `reason`: the first of them, and how many more."""
        for one in refused[:MAX_REFUSED_ITEMS]:
            self.report(method, "refused", **about, **{**one, "reason": truncate_text(str(one.get("reason")))})
        if (more := len(refused) - MAX_REFUSED_ITEMS) > 0:
            self.report(method, "refused", **about, reason=f"{more} more were refused")

    @contextmanager
    def record_outcome(self, method: str, **about: Any) -> Generator[dict[str, Any]]:
        """Record how the block ended. The block may add to the record."""
        try:
            yield about
        except BaseException as error:
            reason = str(error)[:MAX_TEXT_LENGTH] or type(error).__name__
            self.report(method, _outcome(error), **{**about, "reason": reason})
            raise
        self.report(method, about.pop("outcome", "success"), **about)


def _truncate_name(given: object) -> str | None:
    """A name as the server wrote it; None if it is not a string."""
    return given[:MAX_TEXT_LENGTH] if isinstance(given, str) else None


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, TimeoutError | PeerTimeout):
        return "timeout"
    # Errors of the server are failures; what this host refuses by policy has an error type of MCPL.
    return "refused" if isinstance(error, DefserveError) and hasattr(error, "error_type") else "failure"
