"""MGP §6: the audit trail. What happened, to which target, and who caused it.

Every event goes to all sinks, and to a peer that negotiated it. It holds the size and a fingerprint of the arguments,
never the arguments. A dangerous call is recorded before it runs. If it cannot be recorded, it does not run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from hmac import digest
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard

from pydantic_core import to_json

from defserve.auth.authority import is_local_user
from defserve.base.redaction import redact
from defserve.core.call import Call
from defserve.core.json_values import is_array
from defserve.core.messages import Params
from defserve.core.shapes import MemberKind, make_checked_kind, read_member
from defserve.errors import BadArguments, InvalidParams, Refused, Rejected, UsageError
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import get_trace_id
from defserve.protocols.mcp.items import ORIGINAL_NAME_FACET
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import ServerNotReady, ServerRestarting
from defserve.protocols.mgp.terms import RecordedPolicyDecision, get_call_sections, get_tool_security
from defserve.protocols.mgp.vocabulary import CUSTOM_NAME_PATTERN

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mgp.events import EventSection
    from defserve.stores.audit.chain import AuditReport
    from defserve.stores.audit.log_file import AuditPage


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

# Events hold the size and a fingerprint of the arguments. The key is this process's own, so that nobody can find a
# short secret by trying fingerprints.
_FINGERPRINT_KEY = secrets.token_bytes(32)


class AuditTrail:
    """Makes events and sends them. `listeners()` gives the event channels if anybody listens to calls now, or None."""

    def __init__(
        self,
        sinks: AuditSinks,
        server_id: str,
        listeners: Callable[[], EventSection | None],
        log_name: str | None = None,
    ) -> None:
        self.sinks, self._server_id, self.listeners = open_audit_sinks(sinks, log_name), server_id, listeners

    def make_call_audit(self, call: Call, tool: Tool) -> AbstractAsyncContextManager[Any] | None:
        """Watch one call of a tool. None if nobody would get its events."""
        return (
            AuditedCall(self, call, tool)
            if self.sinks or "audit" in get_call_sections(call) or self.listeners()
            else None
        )

    def report_call_event(
        self,
        call: Call,
        event_type: str,
        *,
        tool: str | None = None,
        result: str = "SUCCESS",
        details: Mapping[str, Any] | None = None,
        durable: bool = False,
        server_id: str | None = None,
    ) -> None:
        """Report an event. Raises AuditUnavailable if a `durable` event cannot be kept, ValueError for a bad type.

        `server_id` is the server that it is about, if that is another one behind this server.
        """
        event = self._event(call, event_type, tool, result, details or {})
        if server_id is not None:
            event["target"]["server_id"] = server_id
        self._append_to_sinks(event, durable)
        if "audit" in get_call_sections(call):
            call.notify("notifications/mgp.audit", event)
        if (listeners := self.listeners()) is not None:
            listeners.on_call_audited(call, event_type, tool, event["details"])

    def report_server_event(
        self, event_type: str, server_id: str, result: str, details: Mapping[str, Any], *, by: Params | None = None
    ) -> None:
        """Report an event that no call has brought about: what happened to a server behind this one.

        `by` is the actor, if it was not the kernel itself. What somebody does is kept before this returns; it raises
        AuditUnavailable if it cannot be.
        """
        if self.sinks:
            actor = by or {"type": "kernel", "id": self._server_id}
            event = _event(secrets.token_hex(16), event_type, actor, {"server_id": server_id}, result, details)
            self._append_to_sinks(event, by is not None)

    def flush_sinks(self) -> None:
        """Have every sink finish what it has. A sink that fails is logged."""
        for sink in self.sinks:
            if (settle := getattr(sink, "settle", None)) is not None:
                try:
                    settle()
                except Exception as error:
                    from defserve.base.redaction import get_logger

                    get_logger().error("the audit trail could not be finished: %s", error)

    def close(self) -> None:
        for sink in self.sinks:
            if (close := getattr(sink, "close", None)) is not None:
                close()

    def _event(self, call: Call, event_type: str, tool: str | None, result: str, details: Mapping[str, Any]) -> Params:
        if event_type not in EVENT_TYPES and not CUSTOM_NAME_PATTERN.fullmatch(event_type):
            raise ValueError(f"{event_type!r} is not an event type: use {sorted(EVENT_TYPES)} or com.example.yours")
        caller = identify_caller(call)
        actor: Params = {"type": "user" if is_local_user(caller) else "agent", "id": caller.id}
        if caller.kind == "token" and caller.credential:
            actor["credential"] = caller.credential  # which of its keys, by name
        target: Params = {"server_id": self._server_id}
        if tool is not None:
            target["tool_name"] = tool
        return _event(get_trace_id(call), event_type, actor, target, result, details)

    def _append_to_sinks(self, event: Params, durable: bool) -> None:
        for sink in self.sinks:
            try:
                sink.append(event, durable=durable)
            except Exception as error:
                if durable:
                    from defserve.stores.audit.log_file import AuditUnavailable

                    raise AuditUnavailable("the audit log cannot be written, so this is not done") from error
                from defserve.base.redaction import get_logger

                get_logger().error("audit event %s is lost: %s", event["event_type"], error)


def _event(
    trace: str, event_type: str, actor: Params, target: Params, result: str, details: Mapping[str, Any]
) -> Params:
    return {
        "timestamp": vocabulary.format_instant(vocabulary.utc_now()),
        "trace_id": trace,
        "event_type": event_type,
        "actor": actor,
        "target": target,
        "result": result,
        "details": redact(dict(details)),
    }


class AuditedCall:
    """One call under audit. A dangerous call is recorded before it runs. If it cannot be recorded, it does not run."""

    __slots__ = ("_trail", "_call", "_tool", "_security", "_is_dangerous", "_began")

    def __init__(self, trail: AuditTrail, call: Call, tool: Tool) -> None:
        self._trail, self._call, self._tool, self._began = trail, call, tool, perf_counter()
        found = get_tool_security(tool)
        self._security = found.security if found is not None else None
        self._is_dangerous = self._security is not None and self._security.risk_level == "dangerous"

    async def __aenter__(self) -> None:
        if (listeners := self._trail.listeners()) is not None:
            listeners.publish_tool_event(self._call, "tool.started", self._tool.name)
        if self._is_dangerous and self._trail.sinks:
            await self._report(STARTED, "STARTED", self._about(), durable=True)

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        call = self._call
        if call.suspension is not None and not call.cut_short:
            return  # it waits for an answer; its last round is reported
        duration = {"duration_ms": round((perf_counter() - self._began) * 1000, 3)}
        if (listeners := self._trail.listeners()) is not None:
            name, why = ("tool.completed", {}) if error is None else ("tool.failed", {"reason": failure_reason(error)})
            listeners.publish_tool_event(call, name, self._tool.name, **duration, **why)
        for event_type, result, details in outcome_events(error):
            await self._report(event_type, result, self._about() | details | duration, durable=self._is_dangerous)

    def _about(self) -> Params:
        arguments = to_json(self._call.params.get("arguments"), fallback=str)
        about: Params = {
            "arguments_bytes": len(arguments),
            "arguments_fingerprint": digest(_FINGERPRINT_KEY, arguments, "sha256").hex()[:16],
        }
        if (original := self._tool.facets.get(ORIGINAL_NAME_FACET)) is not None:
            about["original_name"] = original
        if (outer := self._call.outer) is not None:
            about["called_by"] = outer.subject_name
        if (policy := self._call.peek(RecordedPolicyDecision)) is not None:
            about["policy"] = {"decision": policy.outcome, "reason": policy.reason}
        if self._security is not None:
            block = self._security.to_wire()
            about |= {"risk_level": block["risk_level"], "validator_applied": block["validator"]}
        return about

    async def _report(self, event_type: str, result: str, details: Params, *, durable: bool) -> None:
        def write() -> None:
            self._trail.report_call_event(
                self._call,
                event_type,
                tool=self._tool.name,
                result=result,
                details=details,
                durable=durable,
                server_id=self._tool.server_id,
            )

        if durable and self._trail.sinks:
            await self._call.engine.in_thread(write)  # it waits for the disk
        else:
            write()


# -- MGP §6.2: how the end of a call is reported: event types, results and details for each way a call can end.


def outcome_events(error: BaseException | None) -> list[tuple[str, str, Params]]:
    """The events of a call that ended with this error, or with none: type, result, details."""
    if error is None:
        return [("TOOL_EXECUTED", "SUCCESS", {})]
    if isinstance(error, Rejected):
        details: Params = {"reason": error.reason, "violations": list(error.violations), "validator": error.guard}
        what = "CODE_REJECTED" if error.guard == "code_safety" else "VALIDATION_FAILED"
        return [(what, "BLOCKED", details), ("TOOL_BLOCKED", "BLOCKED", {"reason": error.reason})]
    if isinstance(error, BadArguments):
        details = {"reason": error.error_type, "fields": [problem.field for problem in error.problems]}
        return [("VALIDATION_FAILED", "BLOCKED", details)]
    if isinstance(error, Refused) and not isinstance(error, (ServerNotReady, ServerRestarting)):
        return [("TOOL_BLOCKED", "BLOCKED", {"reason": error.error_type})]
    result = "CANCELLED" if _is_cancelled(error) else "FAILURE"
    return [("TOOL_EXECUTED", result, {"error": type(error).__name__})]


def failure_reason(error: BaseException) -> str:
    """Why a call failed, in words that its caller may read. The exception's own text goes to the log only."""
    return "cancelled" if _is_cancelled(error) else str(getattr(error, "error_type", "internal_error"))


def _is_cancelled(error: BaseException) -> bool:
    # By name: which class it is depends on the engine that runs the call.
    return type(error).__name__ == "CancelledError"


# -- MGP §6: where audit events go: files, stores, loggers, or the author's own objects.


class AuditSink(Protocol):
    """Where events go. `append` raises when an event cannot be kept. A `durable` event is on disk when it returns."""

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None: ...


AuditSinks: TypeAlias = "AuditSink | str | Path | Sequence[AuditSink | str | Path]"


class AuditLogger:
    """A sink that writes every event as one line to the logger `defserve.audit`."""

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        """Write one event. `durable` changes nothing: the logger's handlers decide what becomes of a line."""
        from defserve.base.redaction import get_logger

        get_logger("audit").info("%s", to_json(event).decode())


def open_audit_sinks(given: AuditSinks, log_name: str | None = None) -> tuple[AuditSink, ...]:
    """One sink or several; a text or path names a file, or a text a store. Raises UsageError for anything else.

    `log_name` is the name of a log in a store whose address says none.
    """
    return tuple(_sink(one, log_name) for one in (given if is_array(given) else [given]))


def _sink(given: Any, log_name: str | None) -> AuditSink:
    if isinstance(given, str) and ":" in given:
        from defserve.stores.audit.stored_log import StoredAuditLog, is_audit_store_address

        if is_audit_store_address(given):
            return StoredAuditLog(given, server_log=log_name)
    if isinstance(given, str | Path):
        from defserve.stores.audit.log_file import AuditLog

        return AuditLog(given)
    if not callable(getattr(given, "append", None)):
        raise UsageError(
            f"audit={given!r} is not an audit sink",
            fix="give a file name, the address of a store, an AuditLog, AuditLogger() or an object with append()",
        )
    return given


# -- `mgp/audit/replay`: the events that were kept, for a peer that was away or cannot be told of them.
#
# Params: `since_seq`, the number of the first record that is wanted, or `since_timestamp`; `limit`. The answer has
# `events`, each with its `seq`, and `next_seq`, from which the next page goes on.


LIMIT: Final = 100
MAX_REPLAYED_EVENTS: Final = 1_000
MAX_SEQ: Final = 10**17


class ReadableAuditLog(Protocol):
    """A sink that can be read again. All of it may wait for a disk or network, and raise AuditUnavailable."""

    @property
    def last_seq(self) -> int: ...
    def replay(self, since_seq: int = 0, since: datetime | None = None, limit: int = LIMIT) -> AuditPage: ...
    def verify(self) -> AuditReport: ...


def find_readable_log(sinks: Iterable[object]) -> ReadableAuditLog | None:
    """The first sink that can be read again."""
    return next(filter(_is_readable, sinks), None)


def _is_readable(sink: object) -> TypeGuard[ReadableAuditLog]:
    return callable(getattr(sink, "replay", None)) and callable(getattr(sink, "verify", None))


async def replay_audit_log(call: Call, log: ReadableAuditLog, params: Params) -> Params:
    """A page of the log. Who may read it is up to the caller. Raises InvalidParams."""
    since_seq = read_member(params, "since_seq", _whole_number(0, MAX_SEQ), 0, nullable=False)
    limit = read_member(params, "limit", _whole_number(1, MAX_REPLAYED_EVENTS), LIMIT, nullable=False)
    since = read_member(params, "since_timestamp", vocabulary.INSTANT_KIND, None)
    if since is not None and "since_seq" in params:
        raise InvalidParams("Invalid params: give since_seq or since_timestamp, and not both")
    page = await call.in_thread(log.replay, since_seq, since, limit)
    return page._asdict()


def _whole_number(least: int, most: int) -> MemberKind[int]:
    return make_checked_kind(
        f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most
    )
