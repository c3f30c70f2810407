"""MGP §6.2: how the end of a call is reported: event types, results and details for each way a call can end."""

from __future__ import annotations

from defserve.errors import BadArguments, Refused, Rejected
from defserve.wire.messages import Params


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
    if isinstance(error, Refused):
        return [("TOOL_BLOCKED", "BLOCKED", {"reason": error.error_type})]
    result = "CANCELLED" if _is_cancelled(error) else "FAILURE"
    return [("TOOL_EXECUTED", result, {"error": type(error).__name__})]


def failure_reason(error: BaseException) -> str:
    """Why a call failed, in words that its caller may read. The exception's own text goes to the log only."""
    return "cancelled" if _is_cancelled(error) else str(getattr(error, "error_type", "internal_error"))


def _is_cancelled(error: BaseException) -> bool:
    # By name: which class it is depends on the engine that runs the call.
    return type(error).__name__ == "CancelledError"
