"""Errors by number: ten types, each a JSON-RPC error with its own code and what to try instead. Opt-in.

Sessions without a handshake never see these codes, because 2026-07-28 reserves them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from defserve.core.extension import Extension, Offer
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.core.peer import make_error_object, mask_unexpected_error
from defserve.errors import (
    BadArguments,
    Declined,
    Dismissed,
    PeerError,
    Problem,
    ProtocolError,
    Refused,
    Rejected,
    TimedOut,
    ToolError,
)
from defserve.protocols.mcp.errors import (
    ResourceNotFound,
    UnknownTool,
    get_trace_id,
    new_trace_id,
    unwrap_exception_group,
)

if TYPE_CHECKING:
    from defserve.core.call import Call


class ErrorNumber(NamedTuple):
    """One type of error. `message` None: the error's own words."""

    error_type: str
    code: int
    retryable: bool = False
    message: str | None = None
    suggestions: tuple[str, ...] = ()


INVALID_PARAMS = ErrorNumber("InvalidParams", -32602)
INTERNAL_ERROR = ErrorNumber("InternalError", -32603, True)
VALIDATION_ERROR = ErrorNumber("ValidationError", -32001, message="Validation failed")
TOOL_NOT_FOUND = ErrorNumber("ToolNotFound", -32002, suggestions=("Ask for the available tools with tools/list",))
TOOL_EXECUTION = ErrorNumber("ToolExecution", -32003, True)
AUTHENTICATION_ERROR = ErrorNumber("AuthenticationError", -32004, suggestions=("Send valid credentials",))
AUTHORIZATION_ERROR = ErrorNumber("AuthorizationError", -32005, suggestions=("Ask the operator for access",))

ERROR_NUMBERS = (
    ErrorNumber("ParseError", -32700, suggestions=("Send JSON, encoded as UTF-8",)),
    ErrorNumber("InvalidRequest", -32600),
    ErrorNumber("MethodNotFound", -32601, suggestions=("Use a method that the server's capabilities name",)),
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

JSON_RPC_ERROR_NUMBERS: Mapping[int, ErrorNumber] = {kind.code: kind for kind in ERROR_NUMBERS if kind.code <= -32600}

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
        error = unwrap_exception_group(error)
        if (kind := find_error_number(call, error)) is None:
            return None
        reason = _reason(call, error)
        data = {
            **_own_data(call, error),
            **self._data(kind, reason, get_trace_id(call)),
            "field": error.problems[0].field or None if isinstance(error, BadArguments) else None,
            "suggestions": _suggestions(kind, error),
        }
        data.setdefault("retryable", _is_retryable(kind, error))
        return {"error": make_error_object(kind.code, kind.message or reason, data)}

    def refusal(self, code: int, text: str) -> Params | None:
        """The data of an error that belongs to no call; None for a code that is not JSON-RPC's."""
        # These codes are JSON-RPC's own, so both eras may see them.
        kind = JSON_RPC_ERROR_NUMBERS.get(code)
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


def find_error_number(call: Call, error: BaseException) -> ErrorNumber | None:
    """Which of the ten kinds an error is; None if MCP itself gives its code a meaning."""
    if isinstance(error, UnknownTool):
        return TOOL_NOT_FOUND
    if isinstance(error, ProtocolError):
        return None if isinstance(error, ResourceNotFound) else JSON_RPC_ERROR_NUMBERS.get(error.code)
    symbol = error.error_type if isinstance(error, Refused | ToolError) else ""
    kind = SYMBOLS.get(symbol) or (INTERNAL_ERROR if isinstance(error, Refused) else TOOL_EXECUTION)
    return kind if call.method == "tools/call" else OUTSIDE_TOOL_CALLS.get(kind, kind)


class _Masked:
    """An unexpected exception and what its peer is told. It is logged once, even if asked for twice."""

    error: BaseException | None = None
    text: str = ""


def _reason(call: Call, error: BaseException) -> str:
    if isinstance(error, BadArguments):
        return error.problems[0].reason
    if isinstance(error, ToolError | Refused | PeerError | ProtocolError):
        return error.message
    masked = call.local(_Masked)
    if masked.error is not error:
        masked.error, masked.text = error, mask_unexpected_error(call, error)
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
        return suggest_for_problems(error.problems)
    if isinstance(error, Rejected) and error.advice:
        return [error.advice]
    if isinstance(error, ToolError | Refused) and "retry_after_ms" in error.data:
        return [f"Wait {error.data['retry_after_ms']} ms and try again"]
    return list(kind.suggestions)


def _is_retryable(kind: ErrorNumber, error: BaseException) -> bool:
    if isinstance(error, Declined | Dismissed):
        return False  # a person has decided
    return "retry_after_ms" in error.data if isinstance(error, Refused) else kind.retryable


# -- What to try instead, made from the constraint that was broken.


MAX_SUGGESTIONS = 10


# What a problem says of the constraint → what to do about it. The first match counts.
SUGGESTION_RULES: tuple[tuple[str, Callable[[str, re.Match[str]], Iterable[str]]], ...] = (
    (r"missing", lambda field, _: [f"Provide {field}"]),
    (r'unknown field; did you mean (?P<known>".*")\?', lambda _, m: [f"Use {m['known']}"]),
    (r"unknown field", lambda field, _: [f"Leave out {field}"]),
    (r'unknown argument (?P<name>".*"); did you mean (?P<known>".*")\?', lambda _, m: [f"Use {m['known']}"]),
    (r'unknown argument (?P<name>".*"); known: (?P<known>.+)', lambda _, m: [f"Use one of: {m['known']}"]),
    (r'unknown argument (?P<name>".*"); there are none', lambda _, m: [f"Leave out {m['name']}"]),
    (r"must match the pattern (?P<pattern>.+)", lambda _, m: _for_pattern(m["pattern"])),
    (r"must have (?P<bound>at (?:least|most) .+)", lambda _, m: [f"Use {m['bound']}"]),
    (r"must have no item twice", lambda _, m: ["Use every item once"]),
    (r"must be (?P<bound>(?:at least|at most|greater than|less than) .+)", lambda _, m: [f"Use a value {m['bound']}"]),
    (r"must be (?P<multiple>a multiple of .+)", lambda _, m: [f"Use {m['multiple']}"]),
    (r'expected (?P<choices>["\d-].*)', lambda _, m: [f"Use {m['choices']}"]),
    (r"expected (?P<type>.+)", lambda _, m: [f"Use a value of type {m['type']}"]),
)

# Inside the brackets of a simple pattern → what it lets through.
CHARACTERS: Mapping[str, str] = {
    "A-Z": "uppercase letters",
    "a-z": "lowercase letters",
    "0-9": "digits",
    r"\d": "digits",
    r"\w": "letters, digits and _",
}

# One class of characters from start to end: ^[A-Z]{1,5}$, ^\d+$.
SIMPLE = r"\^(?:\[(?P<several>(?:[A-Za-z0-9_.,:@/ -]|\\[dw.-])+)\]|(?P<one>\\[dw]))(?P<times>\{\d+(?:,\d*)?\}|[+*])?\$"


def suggest_for_problems(problems: Iterable[Problem]) -> list[str]:
    """One or two suggestions for each problem, without repeats."""
    return _distinct(suggestion for problem in problems for suggestion in _for_problem(problem))


def _for_problem(problem: Problem) -> Iterable[str]:
    # The given value comes last and may hold anything; it is not part of the constraint.
    constraint = problem.reason.partition(", got ")[0]
    for rule, suggest in SUGGESTION_RULES:
        if found := re.fullmatch(rule, constraint, re.DOTALL):
            return suggest(problem.field, found)
    return [f"Change {problem.field}: {constraint}"] if problem.field else []


def _for_pattern(pattern: str) -> Iterator[str]:
    if (found := re.fullmatch(SIMPLE, pattern)) is None:
        yield f"Match the pattern {pattern}"
        return
    yield f"Use {_spelt(found['several'] or found['one'])} only"
    if found["times"] not in (None, "+", "*"):
        least, comma, most = found["times"].strip("{}").partition(",")
        length = f"{least}-{most}" if most else f"at least {least}" if comma else least
        yield f"Length must be {length} characters"


def _spelt(characters: str) -> str:
    """`A-Z0-9_` → `uppercase letters, digits, _`."""
    parts: list[str] = re.findall(r"A-Z|a-z|0-9|.-.|\\.|.", characters)
    return ", ".join(dict.fromkeys(CHARACTERS.get(part, part.removeprefix("\\")) for part in parts))


def _distinct(suggestions: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(suggestions))[:MAX_SUGGESTIONS]
