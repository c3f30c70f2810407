"""MGP §6: the audit trail. What happened, to whom, at whose wish: to every sink, and to a peer that negotiated it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hmac import digest
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pydantic_core import to_json

from defserve.core.call import Call
from defserve.errors import BadArguments, Refused, Rejected, UsageError
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.trace import trace_id
from defserve.protocols.mgp import instants
from defserve.redaction import redact
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.events.events import Events
    from defserve.protocols.mgp.extension import MGP

EVENT_TYPES = frozenset(
    {
        "TOOL_EXECUTED",
        "TOOL_BLOCKED",
        "PERMISSION_GRANTED",
        "PERMISSION_DENIED",
        "PERMISSION_REVOKED",
        "ACCESS_GRANTED",
        "ACCESS_REVOKED",
        "SERVER_CONNECTED",
        "SERVER_DISCONNECTED",
        "VALIDATION_FAILED",
        "CODE_REJECTED",
    }
)
STARTED = "dev.defserve.tool_started"
_CUSTOM = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9][a-z0-9_-]*){2,}")
# Arguments are told by size and fingerprint; a key of this process keeps short secrets from being guessed.
_FINGERPRINT_KEY = secrets.token_bytes(32)


class Sink(Protocol):
    """Where events go. `append` raises when an event cannot be kept; `durable` ones are on disk when it returns."""

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None: ...


Sinks: TypeAlias = "Sink | str | Path | Sequence[Sink | str | Path]"


class AuditLogger:
    """A sink that writes every event as one line to the logger `defserve.audit`."""

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        """Write one event. `durable` changes nothing: what becomes of a line is up to the logger's handlers."""
        import logging

        logging.getLogger("defserve").getChild("audit").info("%s", to_json(event).decode())


class Audit:
    """Makes events and hands them out. `report` is for what any section has to tell."""

    def __init__(self, mgp: MGP) -> None:
        self._mgp = mgp
        self.sinks = sinks_of(mgp.options.audit)

    def around(self, call: Call, tool: Tool) -> AbstractAsyncContextManager[Any] | None:
        """Watches one call of a tool; nothing where nobody would hear of it."""
        return Watched(self, call, tool) if self.sinks or self._is_heard(call) or self.listeners else None

    def report(
        self,
        call: Call,
        event_type: str,
        *,
        tool: str | None = None,
        result: str = "SUCCESS",
        details: Mapping[str, Any] | None = None,
        durable: bool = False,
    ) -> None:
        """Tell of something. Raises AuditUnavailable if a `durable` event cannot be kept, ValueError for a bad type."""
        event = self._event(call, event_type, tool, result, details or {})
        self._keep(event, durable)
        if self._is_heard(call):
            call.notify("notifications/mgp.audit", event)
        if (listeners := self.listeners) is not None:
            listeners.audited(call, event_type, tool, event["details"])

    @property
    def listeners(self) -> Events | None:
        """The event channels (§13.5), while somebody listens to what they tell of calls."""
        events = self._mgp.__dict__.get("events")
        return events if events is not None and events.watches_calls else None

    def close(self) -> None:
        for sink in self.sinks:
            close = getattr(sink, "close", None)
            if close is not None:
                close()

    def _is_heard(self, call: Call) -> bool:
        from defserve.protocols.mgp.extension import sections

        return "audit" in sections(call)

    def _event(self, call: Call, event_type: str, tool: str | None, result: str, details: Mapping[str, Any]) -> Params:
        if event_type not in EVENT_TYPES and not _CUSTOM.fullmatch(event_type):
            raise ValueError(f"{event_type!r} is not an event type: use {sorted(EVENT_TYPES)} or com.example.yours")
        caller = identity(call.session)
        target: Params = {"server_id": self._mgp.server_id}
        if tool is not None:
            target["tool_name"] = tool
        return {
            "timestamp": instants.wire(instants.now()),
            "trace_id": trace_id(call),
            "event_type": event_type,
            "actor": {"type": "user" if caller.kind == "local" else "agent", "id": caller.id},
            "target": target,
            "result": result,
            "details": redact(dict(details)),
        }

    def _keep(self, event: Params, durable: bool) -> None:
        for sink in self.sinks:
            try:
                sink.append(event, durable=durable)
            except Exception as error:
                if durable:
                    raise _unavailable() from error
                import logging

                logging.getLogger("defserve").error("audit event %s is lost: %s", event["event_type"], error)


class Watched:
    """One call under audit. A dangerous one is written down before it runs, and does not run if it cannot be."""

    __slots__ = ("_audit", "_call", "_tool", "_begun")

    def __init__(self, audit: Audit, call: Call, tool: Tool) -> None:
        self._audit, self._call, self._tool, self._begun = audit, call, tool, perf_counter()

    async def __aenter__(self) -> None:
        if (listeners := self._audit.listeners) is not None:
            listeners.tool(self._call, "tool.started", self._tool.name)
        if self._is_dangerous and self._audit.sinks:
            await self._report(STARTED, "STARTED", self._about(), durable=True)

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        call = self._call
        if call.suspension is not None and not call.cut_short:
            return  # it waits for an answer; the round that ends it is the one to tell of
        duration = {"duration_ms": round((perf_counter() - self._begun) * 1000, 3)}
        if (listeners := self._audit.listeners) is not None:
            name, why = ("tool.completed", {}) if error is None else ("tool.failed", {"reason": _reason(error)})
            listeners.tool(call, name, self._tool.name, **duration, **why)
        for event_type, result, details in _told(error):
            await self._report(event_type, result, self._about() | details | duration, durable=self._is_dangerous)

    @property
    def _is_dangerous(self) -> bool:
        security = self._security
        return security is not None and security.risk_level == "dangerous"

    @property
    def _security(self) -> Any:
        from defserve.protocols.mgp.extension import guarded

        found = guarded(self._tool)
        return found.security if found is not None else None

    def _about(self) -> Params:
        arguments = to_json(self._call.params.get("arguments"), fallback=str)
        about: Params = {
            "arguments_bytes": len(arguments),
            "arguments_fingerprint": digest(_FINGERPRINT_KEY, arguments, "sha256").hex()[:16],
        }
        security = self._security
        if security is not None:
            block = security.wire()
            about |= {"risk_level": block["risk_level"], "validator_applied": block["validator"]}
        return about

    async def _report(self, event_type: str, result: str, details: Params, *, durable: bool) -> None:
        def write() -> None:
            self._audit.report(
                self._call, event_type, tool=self._tool.name, result=result, details=details, durable=durable
            )

        if durable and self._audit.sinks:
            await self._call.engine.in_thread(write)  # it waits for the disk
        else:
            write()


def _told(error: BaseException | None) -> list[tuple[str, str, Params]]:
    """How a call that ended like this is told: event types, results, details."""
    if error is None:
        return [("TOOL_EXECUTED", "SUCCESS", {})]
    if isinstance(error, Rejected):
        details: Params = {"reason": error.reason, "violations": list(error.violations), "validator": error.guard}
        what = "CODE_REJECTED" if error.guard == "code_safety" else "VALIDATION_FAILED"
        return [(what, "BLOCKED", details), ("TOOL_BLOCKED", "BLOCKED", {"reason": error.reason})]
    if isinstance(error, BadArguments):
        fields = [problem.field for problem in error.problems]
        return [("VALIDATION_FAILED", "BLOCKED", {"reason": error.error_type, "fields": fields})]
    if isinstance(error, Refused):
        return [("TOOL_BLOCKED", "BLOCKED", {"reason": error.error_type})]
    cancelled = type(error).__name__ == "CancelledError"
    return [("TOOL_EXECUTED", "CANCELLED" if cancelled else "FAILURE", {"error": type(error).__name__})]


def _reason(error: BaseException) -> str:
    """Why a call failed, as its own caller may know it: what an exception says is for the log."""
    if type(error).__name__ == "CancelledError":
        return "cancelled"
    return str(getattr(error, "error_type", "internal_error"))


def _unavailable() -> Refused:
    from defserve.stores.audit.log import AuditUnavailable

    return AuditUnavailable("the audit log cannot be written, and without it this must not be done")


def sinks_of(given: Sinks) -> tuple[Sink, ...]:
    """One sink or several, files by their names. Raises UsageError for what is none."""
    return tuple(_sink(one) for one in (given if is_array(given) else [given]))


def _sink(given: Any) -> Sink:
    if isinstance(given, str | Path):
        from defserve.stores.audit.log import AuditLog

        return AuditLog(given)
    if not callable(getattr(given, "append", None)):
        raise UsageError(
            f"audit={given!r} is no sink", fix="give a file name, an AuditLog, AuditLogger() or an object with append()"
        )
    return given
