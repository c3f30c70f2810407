"""MGP §14: error handling. The 19 codes as data, their exceptions, and how an error looks where MGP is spoken.

1000 PermissionDenied   2000 ServerNotReady             3000 RateLimited, LimitExceeded("rate")
1001 AccessDenied       2001 errors.Draining            3001 ResourceExhausted, any other LimitExceeded
1002 AuthRequired       2002 ServerRestarting           3002 QuotaExceeded
1003 AuthExpired        4000 errors.BadArguments        3003 errors.TimedOut
1010 errors.Rejected    4001 an unknown tool            5000 UpstreamError
1011 errors.Rejected    4002 ToolDisabled               5001 UpstreamTimeout
                                                        5002 UpstreamUnavailable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from defserve.core.profile import error_object
from defserve.errors import BadArguments, InvalidParams, LimitExceeded, Refused, Rejected, ToolError
from defserve.protocols.mcp.failures import ERROR_KEY, UnknownTool, lone, rejection, tool_failure
from defserve.protocols.mcp.trace import trace_id
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.call import Call

Strategy: TypeAlias = Literal["immediate", "fixed_delay", "exponential_backoff"]

# §14.2: the range of a code is its category.
CATEGORIES = {1: "security", 2: "lifecycle", 3: "resource", 4: "validation", 5: "external"}


class Kind(NamedTuple):
    """One standard code, and what a client may do about it unless the error says otherwise."""

    code: int
    name: str
    retryable: bool = False
    retry_strategy: Strategy | None = None
    max_retries: int | None = None

    @property
    def category(self) -> str:
        return CATEGORIES[self.code // 1000]

    @property
    def error_type(self) -> str:
        return self.name.lower()


TOOL_NOT_FOUND = 4001

KINDS: Mapping[int, Kind] = {
    kind.code: kind
    for kind in (
        Kind(1000, "PERMISSION_DENIED"),
        Kind(1001, "ACCESS_DENIED"),
        Kind(1002, "AUTH_REQUIRED"),
        Kind(1003, "AUTH_EXPIRED"),
        Kind(1010, "VALIDATION_BLOCKED"),
        Kind(1011, "CODE_SAFETY_VIOLATION"),
        Kind(2000, "SERVER_NOT_READY", True, "fixed_delay", 5),
        Kind(2001, "SERVER_DRAINING", True, "exponential_backoff", 3),
        Kind(2002, "SERVER_RESTARTING", True, "exponential_backoff", 5),
        Kind(3000, "RATE_LIMITED", True, "exponential_backoff", 3),
        Kind(3001, "RESOURCE_EXHAUSTED", True, "exponential_backoff", 3),
        Kind(3002, "QUOTA_EXCEEDED", False, "fixed_delay", 1),
        Kind(3003, "TIMEOUT", True, "exponential_backoff", 2),
        Kind(4000, "INVALID_TOOL_ARGS"),
        Kind(TOOL_NOT_FOUND, "TOOL_NOT_FOUND"),
        Kind(4002, "TOOL_DISABLED"),
        Kind(5000, "UPSTREAM_ERROR", False, "exponential_backoff", 3),
        Kind(5001, "UPSTREAM_TIMEOUT", True, "exponential_backoff", 2),
        Kind(5002, "UPSTREAM_UNAVAILABLE", True, "exponential_backoff", 3),
    )
}

# The codes by the symbol that errors carry in every protocol; the last four are named by `defserve.errors`.
CODES: Mapping[str, int] = {kind.error_type: code for code, kind in KINDS.items()} | {
    "draining": 2001,
    "limit_exceeded": 3001,
    "timeout": 3003,
    "invalid_arguments": 4000,
}


class Recovery(TypedDict, total=False):
    """§14.5: what a client may do about an error. `retry_after_ms` alone says that it may try again."""

    retryable: bool
    retry_after_ms: int
    retry_strategy: Strategy
    max_retries: int
    fallback_tool: str


Details: TypeAlias = Mapping[str, Any] | None


class CodedRefusal(Refused):
    """A refusal with a code of MGP. `data` and `details` both become the details of the error."""

    code: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls.error_type = KINDS[cls.code].error_type

    def __init__(
        self, message: str, *, data: Details = None, details: Details = None, **recovery: Unpack[Recovery]
    ) -> None:
        super().__init__(message, data={**(data or {}), **(details or {}), **recovery})


class PermissionDenied(CodedRefusal):
    """The caller lacks a permission the tool needs."""

    code = 1000


class AccessDenied(CodedRefusal):
    """This caller has no access to the tool."""

    code = 1001


class AuthRequired(CodedRefusal):
    """The caller has to say who it is."""

    code = 1002


class AuthExpired(CodedRefusal):
    """The caller's credentials held once, and no longer do."""

    code = 1003


class ServerNotReady(CodedRefusal):
    """The server cannot take calls yet."""

    code = 2000


class ServerRestarting(CodedRefusal):
    """The server will be back in a moment."""

    code = 2002


class RateLimited(CodedRefusal):
    """Too many calls in too short a time."""

    code = 3000


class ResourceExhausted(CodedRefusal):
    """Memory, connections or another resource of the server has run out."""

    code = 3001


class QuotaExceeded(CodedRefusal):
    """What the caller may use in all (tokens, calls, money) is used up."""

    code = 3002


class ToolDisabled(CodedRefusal):
    """The tool exists and is switched off."""

    code = 4002


class UpstreamError(ToolError):
    """A service behind the tool answered with an error."""

    code: ClassVar[int] = 5000
    error_type = "upstream_error"

    def __init_subclass__(cls) -> None:
        cls.error_type = KINDS[cls.code].error_type

    def __init__(
        self, message: str, *, data: Details = None, details: Details = None, **recovery: Unpack[Recovery]
    ) -> None:
        super().__init__(message, data={**(data or {}), **(details or {}), **recovery})


class UpstreamTimeout(UpstreamError):
    """A service behind the tool did not answer in time."""

    code = 5001


class UpstreamUnavailable(UpstreamError):
    """A service behind the tool cannot be reached."""

    code = 5002


# -- on the wire -----------------------------------------------------------------------------------------


def code_of(error: BaseException) -> int | None:
    """The MGP code of an error; None for one that MGP has no word for."""
    if isinstance(error, LimitExceeded) and error.data.get("limit") == "rate":
        return RateLimited.code
    return CODES.get(error.error_type) if isinstance(error, Refused | ToolError) else None


def failure(call: Call, error: BaseException) -> Params | None:
    """The rest of the reply to a request that raised, for a peer that speaks MGP; None leaves it to MCP."""
    error = lone(error)
    if isinstance(error, UnknownTool):
        block = _block(KINDS[TOOL_NOT_FOUND], {}, {"tool": call.params["name"]})
        return _error(call, error.code, error.message, {"error_type": KINDS[TOOL_NOT_FOUND].error_type, "_mgp": block})
    if not isinstance(error, Refused | ToolError) or (code := code_of(error)) is None:
        return None
    block = recovery_block(call, KINDS[code], error)
    # What a model can put right stays a result, as it is for peers without MGP.
    if call.method == "tools/call" and isinstance(error, ToolError | Rejected):
        return {"result": call.terms.profile.result(call, _result(call, KINDS[code], error, block))}
    number = InvalidParams.code if isinstance(error, BadArguments) else code
    found = error.data if isinstance(error, Rejected) else {}
    return _error(call, number, error.message, {"error_type": error.error_type, **found, "_mgp": block})


def recovery_block(call: Call, kind: Kind, error: Refused | ToolError) -> Params:
    """§14.4: the `_mgp` object of an error."""
    said: Params = {key: error.data[key] for key in Recovery.__annotations__ if key in error.data}
    if isinstance(error, LimitExceeded):
        # A result that is too large stays too large: only a limit that says when it lifts is worth waiting for.
        said.setdefault("retryable", "retry_after_ms" in said)
    elif kind.error_type == "timeout" and not _is_repeatable(call):
        said.setdefault("retryable", False)
    if isinstance(error, Rejected):
        details: Params = {"validator": error.guard}
    elif isinstance(error, BadArguments):
        details = {"problems": [{"field": p.field, "reason": p.reason} for p in error.problems]}
    else:
        details = {key: value for key, value in error.data.items() if key not in said}
    return _block(kind, said, details)


def _block(kind: Kind, said: Params, details: Params) -> Params:
    retryable = bool(said.get("retryable", kind.retryable or "retry_after_ms" in said))
    block: Params = {"code": kind.code, "name": kind.name, "category": kind.category, "retryable": retryable}
    if retryable:
        defaults: Params = {"retry_strategy": kind.retry_strategy, "max_retries": kind.max_retries}
        block |= {key: value for key, value in (defaults | said).items() if value is not None}
    elif "fallback_tool" in said:
        block["fallback_tool"] = said["fallback_tool"]
    return block | {"retryable": retryable, "details": details}


def _is_repeatable(call: Call) -> bool:
    """Whether calling the tool again does no harm: one that timed out may have done half of its work."""
    hints: Mapping[str, Any] = getattr(getattr(call.subject, "options", None), "annotations", None) or {}
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


def _result(call: Call, kind: Kind, error: Refused | ToolError, block: Params) -> Params:
    if isinstance(error, Rejected):
        detail: Params = {"trace_id": trace_id(call), "error_type": error.error_type, "_mgp": block}
        result = rejection(error.data | {"code": kind.code, "name": kind.name}, detail)
    else:
        result = tool_failure(call, error)
        result["_meta"][ERROR_KEY]["_mgp"] = block
    return result | {"_mgp": block}


def _error(call: Call, code: int, message: str, data: Params) -> Params:
    return {"error": error_object(code, message, {"trace_id": trace_id(call), **data})}
