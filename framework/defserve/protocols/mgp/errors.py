"""MGP §14: error handling. The codes as data, their exceptions, and how an error looks to a peer that speaks MGP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from defserve.core.messages import Params
from defserve.core.peer import make_error_object
from defserve.errors import BadArguments, InvalidParams, LimitExceeded, Refused, Rejected, TimedOut, ToolError
from defserve.protocols.mcp.errors import UnknownTool, build_rejection_result, get_trace_id, unwrap_exception_group

if TYPE_CHECKING:
    from defserve.core.call import Call


RetryStrategy: TypeAlias = Literal["immediate", "fixed_delay", "exponential_backoff"]

# §14.2: the range of a code is its category.
CATEGORIES = {1: "security", 2: "lifecycle", 3: "resource", 4: "validation", 5: "external"}


class ErrorKind(NamedTuple):
    """One standard code, and what a client may do about it unless the error says otherwise."""

    code: int
    name: str
    retryable: bool = False
    retry_strategy: RetryStrategy | None = None
    max_retries: int | None = None

    @property
    def category(self) -> str:
        return CATEGORIES[self.code // 1000]

    @property
    def error_type(self) -> str:
        return self.name.lower()


TOOL_NOT_FOUND = 4001

ERROR_KINDS_BY_CODE: Mapping[int, ErrorKind] = {
    kind.code: kind
    for kind in (
        ErrorKind(1000, "PERMISSION_DENIED"),
        ErrorKind(1001, "ACCESS_DENIED"),
        ErrorKind(1002, "AUTH_REQUIRED"),
        ErrorKind(1003, "AUTH_EXPIRED"),
        ErrorKind(1010, "VALIDATION_BLOCKED"),
        ErrorKind(1011, "CODE_SAFETY_VIOLATION"),
        ErrorKind(2000, "SERVER_NOT_READY", True, "fixed_delay", 5),
        ErrorKind(2001, "SERVER_DRAINING", True, "exponential_backoff", 3),
        ErrorKind(2002, "SERVER_RESTARTING", True, "exponential_backoff", 5),
        ErrorKind(3000, "RATE_LIMITED", True, "exponential_backoff", 3),
        ErrorKind(3001, "RESOURCE_EXHAUSTED", True, "exponential_backoff", 3),
        ErrorKind(3002, "QUOTA_EXCEEDED", False, "fixed_delay", 1),
        ErrorKind(3003, "TIMEOUT", True, "exponential_backoff", 2),
        ErrorKind(4000, "INVALID_TOOL_ARGS"),
        ErrorKind(TOOL_NOT_FOUND, "TOOL_NOT_FOUND"),
        ErrorKind(4002, "TOOL_DISABLED"),
        ErrorKind(4004, "SERVER_NOT_FOUND"),
        ErrorKind(4101, "SERVER_ALREADY_REGISTERED"),
        ErrorKind(5000, "UPSTREAM_ERROR", False, "exponential_backoff", 3),
        ErrorKind(5001, "UPSTREAM_TIMEOUT", True, "exponential_backoff", 2),
        ErrorKind(5002, "UPSTREAM_UNAVAILABLE", True, "exponential_backoff", 3),
    )
}

# Codes by the symbol that errors carry in every protocol. The last four symbols come from `defserve.errors`.
ERROR_CODES_BY_TYPE: Mapping[str, int] = {kind.error_type: code for code, kind in ERROR_KINDS_BY_CODE.items()} | {
    "draining": 2001,
    "limit_exceeded": 3001,
    "timeout": 3003,
    "invalid_arguments": 4000,
}


class RecoveryAdvice(TypedDict, total=False):
    """§14.5: what a client may do about an error. `retry_after_ms` alone says that it may try again."""

    retryable: bool
    retry_after_ms: int
    retry_strategy: RetryStrategy
    max_retries: int
    fallback_tool: str


Details: TypeAlias = Mapping[str, Any] | None


class CodedError:
    """An error with a code of MGP. `data` and `details` both become the details of the error."""

    code: ClassVar[int]
    error_type: str

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        if code is not None:
            cls.code = code
        cls.error_type = ERROR_KINDS_BY_CODE[cls.code].error_type

    def __init__(
        self, message: str, *, data: Details = None, details: Details = None, **recovery: Unpack[RecoveryAdvice]
    ) -> None:
        merged = {**(data or {}), **(details or {}), **recovery}
        super().__init__(message, data=merged)  # pyright: ignore[reportCallIssue]  (of Refused, or of ToolError)


class PermissionDenied(CodedError, Refused, code=1000):
    """The caller lacks a permission the tool needs."""


class AccessDenied(CodedError, Refused, code=1001):
    """This caller has no access to the tool."""


class AuthRequired(CodedError, Refused, code=1002):
    """The caller has to authenticate."""


class AuthExpired(CodedError, Refused, code=1003):
    """The caller's credentials have expired."""


class ServerNotReady(CodedError, Refused, code=2000):
    """The server cannot take calls yet."""


class ServerRestarting(CodedError, Refused, code=2002):
    """The server will be back in a moment."""


class RateLimited(CodedError, Refused, code=3000):
    """Too many calls in too short a time."""


class ResourceExhausted(CodedError, Refused, code=3001):
    """Memory, connections or another resource of the server has run out."""


class QuotaExceeded(CodedError, Refused, code=3002):
    """The caller has used up its quota (tokens, calls, money)."""


class ToolDisabled(CodedError, Refused, code=4002):
    """The tool exists and is switched off."""


class ServerNotFound(CodedError, Refused, code=4004):
    """No server behind this one has this id, or none that the caller may know of."""


class ServerExists(CodedError, Refused, code=4101):
    """Another server has this id already."""


class UpstreamError(CodedError, ToolError, code=5000):
    """A service behind the tool answered with an error."""


class UpstreamTimeout(UpstreamError, TimedOut, code=5001):
    """A service behind the tool did not answer in time."""


class UpstreamUnavailable(UpstreamError, code=5002):
    """A service behind the tool cannot be reached."""


def code_of(error: BaseException) -> int | None:
    """The MGP code of an error. None if MGP has none for it."""
    if isinstance(error, LimitExceeded) and error.data.get("limit") == "rate":
        return RateLimited.code
    return ERROR_CODES_BY_TYPE.get(error.error_type) if isinstance(error, Refused | ToolError) else None


# -- MGP §14.4: how an error looks to a peer that speaks MGP: its code, its category, and what to do about it.


def build_mgp_error_reply(call: Call, error: BaseException) -> Params | None:
    """The result or error of a request that raised, for a peer that speaks MGP. None leaves it to MCP."""
    error = unwrap_exception_group(error)
    if isinstance(error, UnknownTool):
        kind = ERROR_KINDS_BY_CODE[TOOL_NOT_FOUND]
        block = _block(kind, {}, {"tool": call.params["name"]})
        return _error(call, TOOL_NOT_FOUND, error.message, {"error_type": kind.error_type, "_mgp": block})
    if not isinstance(error, Refused | ToolError) or (code := code_of(error)) is None:
        return None
    block = recovery_block(call, ERROR_KINDS_BY_CODE[code], error)
    is_tool = call.method == "tools/call"
    # §7.4: refused code is a result, so that the model which wrote it can correct it.
    if is_tool and code == ERROR_CODES_BY_TYPE["code_safety_violation"] and isinstance(error, Rejected):
        names: Params = {"code": code, "name": ERROR_KINDS_BY_CODE[code].name}
        told = build_rejection_result(error, names, {"trace_id": get_trace_id(call), "_mgp": block})
        return {"result": call.terms.profile.result(call, told | {"_mgp": block})}
    # 4000 speaks of the arguments of tools only.
    number = InvalidParams.code if isinstance(error, BadArguments) and not is_tool else code
    found = error.data if isinstance(error, Rejected) else {}
    return _error(call, number, error.message, {"error_type": error.error_type, **found, "_mgp": block})


def recovery_block(call: Call, kind: ErrorKind, error: Refused | ToolError) -> Params:
    """§14.4: the `_mgp` object of an error."""
    said: Params = {key: error.data[key] for key in RecoveryAdvice.__annotations__ if key in error.data}
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


def _error(call: Call, code: int, message: str, data: Params) -> Params:
    return {"error": make_error_object(code, message, {"trace_id": get_trace_id(call), **data})}
