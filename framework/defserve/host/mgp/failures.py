"""MGP §14: an error of a server that speaks MGP, as the exception of its code. The peer's words, checked for kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from defserve.errors import (
    BadArguments,
    DefserveError,
    Draining,
    PeerError,
    Problem,
    Refused,
    Rejected,
    TimedOut,
    ToolError,
)
from defserve.host.conversation import object_of
from defserve.host.values import tool_error
from defserve.protocols.mcp.failures import ERROR_KEY
from defserve.protocols.mgp import errors
from defserve.protocols.mgp.errors import KINDS, Recovery
from defserve.wire.jsonvalue import is_array


class Failure(NamedTuple):
    """A reply that failed: `block` is its `_mgp` object, `body` what else came with it."""

    code: int
    message: str
    block: Mapping[str, Any]
    body: Mapping[str, Any]

    def exception(self) -> DefserveError | None:
        """The exception of its code, None for a code that has none."""
        make = _MAKERS.get(self.code)
        return make(self) if make is not None else None

    @property
    def data(self) -> dict[str, Any]:
        said = {name: self.block[name] for name in Recovery.__annotations__ if name in self.block}
        return {**object_of(self.block.get("details")), **said}


def of_error(error: PeerError) -> Failure | None:
    """The failure in a JSON-RPC error; None for an error that is not MGP's."""
    data = object_of(error.data)
    return _failure(error.code, error.message, data.get("_mgp"), data)


def of_result(result: Mapping[str, Any]) -> Failure | None:
    """The failure in an `isError` result; None where there is none, or not one of MGP's."""
    if result.get("isError") is not True:
        return None
    body = object_of(object_of(result.get("_meta")).get(ERROR_KEY))
    return _failure(0, tool_error(result).message, result.get("_mgp") or body.get("_mgp"), body)


def _failure(code: int, message: str, block: Any, body: Mapping[str, Any]) -> Failure | None:
    # §14.4 has no code in the block: ours has, for errors whose own number is JSON-RPC's.
    found = code if code in KINDS else object_of(block).get("code")
    if not isinstance(found, int) or found not in KINDS:
        return None
    return Failure(found, message, object_of(block), body)


def _coded(kind: type[Refused] | type[ToolError]) -> Callable[[Failure], DefserveError]:
    return lambda failure: kind(failure.message, data=failure.data)


def _rejected(failure: Failure) -> DefserveError:
    body, validator = failure.body, object_of(failure.block.get("details")).get("validator")
    code_safety = failure.code == errors.CODES["code_safety_violation"]
    return Rejected(
        str(body.get("reason") or failure.message),
        body["violations"] if is_array(body.get("violations")) else [],
        object_of(body.get("hints")),
        guard="code_safety" if code_safety else str(validator or "none"),
    )


def _bad_arguments(failure: Failure) -> DefserveError:
    found = object_of(failure.block.get("details")).get("problems")
    told = [object_of(each) for each in found] if is_array(found) else []
    problems = tuple(Problem(str(each.get("field", "")), str(each.get("reason", ""))) for each in told)
    return BadArguments(problems or (Problem("", failure.message),))


_CODED: Final = (
    errors.PermissionDenied,
    errors.AccessDenied,
    errors.AuthRequired,
    errors.AuthExpired,
    errors.ServerNotReady,
    errors.ServerRestarting,
    errors.RateLimited,
    errors.ResourceExhausted,
    errors.QuotaExceeded,
    errors.ToolDisabled,
    errors.UpstreamError,
    errors.UpstreamTimeout,
    errors.UpstreamUnavailable,
)
# 4001 is missing on purpose: no such tool stays the JSON-RPC error it is everywhere.
_MAKERS: Final[Mapping[int, Callable[[Failure], DefserveError]]] = {
    **{kind.code: _coded(kind) for kind in _CODED},
    errors.CODES["validation_blocked"]: _rejected,
    errors.CODES["code_safety_violation"]: _rejected,
    errors.CODES["draining"]: _coded(Draining),
    errors.CODES["timeout"]: _coded(TimedOut),
    errors.CODES["invalid_arguments"]: _bad_arguments,
}
