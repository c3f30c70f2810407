"""Errors by number: ten types, each a JSON-RPC error with its own code and what to try instead. Opt-in.

Only sessions that began with a handshake see them, because 2026-07-28 forbids own codes below -32000. An unreadable
message belongs to no session. Its code is one of JSON-RPC's own, so every peer is told its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from defserve.core.extension import Extension, Offer
from defserve.core.profile import error_object, mask
from defserve.errors import (
    BadArguments,
    Declined,
    Dismissed,
    PeerError,
    ProtocolError,
    Refused,
    Rejected,
    TimedOut,
    ToolError,
)
from defserve.protocols.mcp.failures import ResourceNotFound, UnknownTool, ungrouped
from defserve.protocols.mcp.numbered_errors import suggestions
from defserve.protocols.mcp.trace import new_trace_id, trace_id
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.call import Call


class ErrorNumber(NamedTuple):
    """One type of error. `message` None: the error's own words."""

    error_type: str
    code: int
    retryable: bool = False
    message: str | None = None
    suggestions: tuple[str, ...] = ()


PARSE_ERROR = ErrorNumber("ParseError", -32700, suggestions=("Send JSON, encoded as UTF-8",))
INVALID_REQUEST = ErrorNumber("InvalidRequest", -32600)
METHOD_NOT_FOUND = ErrorNumber(
    "MethodNotFound", -32601, suggestions=("Use a method that the server's capabilities name",)
)
INVALID_PARAMS = ErrorNumber("InvalidParams", -32602)
INTERNAL_ERROR = ErrorNumber("InternalError", -32603, True)
VALIDATION_ERROR = ErrorNumber("ValidationError", -32001, message="Validation failed")
TOOL_NOT_FOUND = ErrorNumber("ToolNotFound", -32002, suggestions=("Ask for the available tools with tools/list",))
TOOL_EXECUTION = ErrorNumber("ToolExecution", -32003, True)
AUTHENTICATION_ERROR = ErrorNumber("AuthenticationError", -32004, suggestions=("Send valid credentials",))
AUTHORIZATION_ERROR = ErrorNumber("AuthorizationError", -32005, suggestions=("Ask the operator for access",))

KINDS = (
    PARSE_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    INVALID_PARAMS,
    INTERNAL_ERROR,
    VALIDATION_ERROR,
    TOOL_NOT_FOUND,
    TOOL_EXECUTION,
    AUTHENTICATION_ERROR,
    AUTHORIZATION_ERROR,
)

# A timeout has code and flag of TOOL_EXECUTION, and a type of its own.
TOOL_TIMEOUT = TOOL_EXECUTION._replace(
    error_type="ToolTimeout",
    message="Tool execution timeout",
    suggestions=(
        "Increase timeout for long-running analysis",
        "Check tool server health",
        "Break request into smaller chunks",
    ),
)

STANDARD: Mapping[int, ErrorNumber] = {kind.code: kind for kind in KINDS if kind.code <= -32600}

# By the symbol an error carries in every protocol.
SYMBOLS: Mapping[str, ErrorNumber] = {
    "invalid_arguments": VALIDATION_ERROR,
    "validation_blocked": VALIDATION_ERROR,
    "code_safety_violation": VALIDATION_ERROR,
    "timeout": TOOL_TIMEOUT,
    "upstream_timeout": TOOL_TIMEOUT,
    "auth_required": AUTHENTICATION_ERROR,
    "auth_expired": AUTHENTICATION_ERROR,
    "permission_denied": AUTHORIZATION_ERROR,
    "access_denied": AUTHORIZATION_ERROR,
}

# Prompts and resources have no tool that could fail.
OUTSIDE_TOOL_CALLS: Mapping[ErrorNumber, ErrorNumber] = {
    VALIDATION_ERROR: INVALID_PARAMS,
    TOOL_EXECUTION: INTERNAL_ERROR,
    TOOL_TIMEOUT: INTERNAL_ERROR,
}


class NumberedErrors(Extension):
    """Every failure of a handshake session as a JSON-RPC error, even one that is otherwise a tool result.

    `documentation_url` is in the data of each error.
    """

    name = "errors"

    def __init__(self, *, documentation_url: str | None = None) -> None:
        self.documentation_url = documentation_url

    def negotiate(self, offer: Offer) -> object | None:
        """Active in every session. 2026-07-28 has codes of its own, which stay."""
        return None if offer.stateless else self

    def failure(self, call: Call, error: BaseException) -> Params | None:
        """The error object with the code of its kind; None if the table has no code for the error."""
        error = ungrouped(error)
        if (kind := kind_of(call, error)) is None:
            return None
        reason = _reason(call, error)
        data = {
            **_own_data(call, error),
            **self._data(kind, reason, trace_id(call)),
            "field": error.problems[0].field or None if isinstance(error, BadArguments) else None,
            "suggestions": _suggestions(kind, error),
        }
        data.setdefault("retryable", _is_retryable(kind, error))
        return {"error": error_object(kind.code, kind.message or reason, data)}

    def refusal(self, code: int, text: str) -> Params | None:
        """The data of an error that belongs to no call; None for a code that is not JSON-RPC's."""
        # These codes are JSON-RPC's own, so both eras may see them.
        kind = STANDARD.get(code)
        return None if kind is None else {**self._data(kind, text, new_trace_id()), "retryable": kind.retryable}

    def _data(self, kind: ErrorNumber, reason: str, trace: str) -> Params:
        return {
            "error_type": kind.error_type,
            "field": None,
            "reason": reason,
            "trace_id": trace if trace.startswith("req-") else f"req-{trace}",
            "suggestions": list(kind.suggestions),
            "documentation_url": self.documentation_url,
        }


def kind_of(call: Call, error: BaseException) -> ErrorNumber | None:
    """Which of the ten kinds an error is; None if MCP itself gives its code a meaning."""
    if isinstance(error, UnknownTool):
        return TOOL_NOT_FOUND
    if isinstance(error, ProtocolError):
        return None if isinstance(error, ResourceNotFound) else STANDARD.get(error.code)
    symbol = error.error_type if isinstance(error, Refused | ToolError) else ""
    kind = SYMBOLS.get(symbol) or (INTERNAL_ERROR if isinstance(error, Refused) else TOOL_EXECUTION)
    return kind if call.method == "tools/call" else OUTSIDE_TOOL_CALLS.get(kind, kind)


class _Masked:
    """An unexpected exception and what its peer is told. It is logged once, even if asked for twice."""

    __slots__ = ("error", "text")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.text = ""


def _reason(call: Call, error: BaseException) -> str:
    if isinstance(error, BadArguments):
        return error.problems[0].reason
    if isinstance(error, ToolError | Refused | PeerError | ProtocolError):
        return error.message
    masked = call.local(_Masked)
    if masked.error is not error:
        masked.error, masked.text = error, mask(call, error)
    return masked.text


def _own_data(call: Call, error: BaseException) -> Params:
    """The data that the error itself carries."""
    if isinstance(error, BadArguments):
        return {"problems": [{"field": p.field, "reason": p.reason} for p in error.problems]}
    if isinstance(error, TimedOut):
        return {"tool_name": call.subject_name, **error.data}
    if isinstance(error, ToolError | Refused | ProtocolError) and is_object(error.data):
        return dict(error.data)
    return {}


def _suggestions(kind: ErrorNumber, error: BaseException) -> list[str]:
    if isinstance(error, BadArguments):
        return suggestions.for_problems(error.problems)
    if isinstance(error, Rejected):
        return suggestions.for_hints(error.data["hints"])
    if isinstance(error, ToolError | Refused) and "retry_after_ms" in error.data:
        return [f"Wait {error.data['retry_after_ms']} ms and try again"]
    return list(kind.suggestions)


def _is_retryable(kind: ErrorNumber, error: BaseException) -> bool:
    if isinstance(error, Declined | Dismissed):
        return False  # a person has decided
    return "retry_after_ms" in error.data if isinstance(error, Refused) else kind.retryable
