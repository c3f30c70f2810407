"""MGP §14.4: how an error looks to a peer that speaks MGP: its code, its category, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from defserve.core.profile import error_object
from defserve.errors import BadArguments, InvalidParams, LimitExceeded, Refused, Rejected, ToolError
from defserve.protocols.mcp.failures import UnknownTool, rejection, ungrouped
from defserve.protocols.mcp.trace import trace_id
from defserve.protocols.mgp.errors import CODES, KINDS, TOOL_NOT_FOUND, ErrorKind, Recovery, code_of
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.call import Call


def failure(call: Call, error: BaseException) -> Params | None:
    """The result or error of a request that raised, for a peer that speaks MGP. None leaves it to MCP."""
    error = ungrouped(error)
    if isinstance(error, UnknownTool):
        kind = KINDS[TOOL_NOT_FOUND]
        block = _block(kind, {}, {"tool": call.params["name"]})
        return _error(call, TOOL_NOT_FOUND, error.message, {"error_type": kind.error_type, "_mgp": block})
    if not isinstance(error, Refused | ToolError) or (code := code_of(error)) is None:
        return None
    block = recovery_block(call, KINDS[code], error)
    is_tool = call.method == "tools/call"
    # §7.4: refused code is a result, so that the model which wrote it can correct it.
    if is_tool and code == CODES["code_safety_violation"] and isinstance(error, Rejected):
        return {"result": call.terms.profile.result(call, _rejected_code(call, KINDS[code], error, block))}
    # 4000 speaks of the arguments of tools only.
    number = InvalidParams.code if isinstance(error, BadArguments) and not is_tool else code
    found = error.data if isinstance(error, Rejected) else {}
    return _error(call, number, error.message, {"error_type": error.error_type, **found, "_mgp": block})


def recovery_block(call: Call, kind: ErrorKind, error: Refused | ToolError) -> Params:
    """§14.4: the `_mgp` object of an error."""
    said: Params = {key: error.data[key] for key in Recovery.__annotations__ if key in error.data}
    if isinstance(error, LimitExceeded):
        # A result that is too large stays too large. Trying again helps only if the error says after how long.
        said.setdefault("retryable", "retry_after_ms" in said)
    elif (kind.error_type == "timeout" or "may_have_had_effects" in error.data) and not _is_repeatable(call):
        said.setdefault("retryable", False)
    if isinstance(error, Rejected):
        details: Params = {"validator": error.guard}
    elif isinstance(error, BadArguments):
        details = {"problems": [{"field": p.field, "reason": p.reason} for p in error.problems]}
    else:
        details = {key: value for key, value in error.data.items() if key not in said}
    return _block(kind, said, details)


def _block(kind: ErrorKind, said: Params, details: Params) -> Params:
    retryable = bool(said.get("retryable", kind.retryable or "retry_after_ms" in said))
    block: Params = {"code": kind.code, "name": kind.name, "category": kind.category, "retryable": retryable}
    if retryable:
        defaults: Params = {"retry_strategy": kind.retry_strategy, "max_retries": kind.max_retries}
        block |= {key: value for key, value in (defaults | said).items() if value is not None}
    elif "fallback_tool" in said:
        block["fallback_tool"] = said["fallback_tool"]
    return block | {"retryable": retryable, "details": details}


def _is_repeatable(call: Call) -> bool:
    """Whether calling the tool again is harmless. A call that timed out may have done half of its work."""
    hints: Mapping[str, Any] = getattr(getattr(call.subject, "options", None), "annotations", None) or {}
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


def _rejected_code(call: Call, kind: ErrorKind, error: Rejected, block: Params) -> Params:
    detail: Params = {"trace_id": trace_id(call), "error_type": error.error_type, "_mgp": block}
    return rejection(error.data | {"code": kind.code, "name": kind.name}, detail) | {"_mgp": block}


def _error(call: Call, code: int, message: str, data: Params) -> Params:
    return {"error": error_object(code, message, {"trace_id": trace_id(call), **data})}
