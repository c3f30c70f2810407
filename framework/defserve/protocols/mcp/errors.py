"""MCP errors (basic: error codes; tools: error handling): one exception hierarchy, shaped for the peer.

Below it is what every request needs and every error shows: params that are checked as they are read, and the trace id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from defserve.core.json_values import is_array, is_object
from defserve.core.messages import INTERNAL_ERROR, Params
from defserve.core.peer import make_error_object, mask_unexpected_error
from defserve.errors import (
    BadArguments,
    InvalidParams,
    LimitExceeded,
    NoBackChannel,
    PeerError,
    ProtocolError,
    Refused,
    Rejected,
    ToolError,
    TooManyCalls,
)

if TYPE_CHECKING:
    from defserve.core.call import Call


DEFSERVE_NAMESPACE = "dev.defserve/"
ERROR_META_KEY = DEFSERVE_NAMESPACE + "error"
ITEM_SOURCE_META_KEY = DEFSERVE_NAMESPACE + "source"
SERVER_ID_META_KEY = DEFSERVE_NAMESPACE + "server"
"""In `_meta`: the id of the server behind this one that an item, a content or a question belongs to."""

NO_BACK_CHANNEL = "no_back_channel"
MISSING_CAPABILITY_CODE = -32021
RESOURCE_NOT_FOUND_CODE = -32002
SPECIFIED_CODES: Final = frozenset((-32020, MISSING_CAPABILITY_CODE, -32022))
"""The codes that MCP defines between -32020 and -32099. Nobody may send another one of this range."""
_RESERVED: Final = range(-32099, -32019)

# What servers of ours said before 2026-07-28 reserved it.
_FORMER_TOO_MANY_CALLS: Final = -32029


class UnknownTool(InvalidParams):
    """No tool has this name, or none that this caller may see."""

    error_type = "invalid_params"


class ResourceNotFound(InvalidParams):
    """No resource has this URI: -32002 with a handshake, -32602 without."""

    def __init__(self, uri: str) -> None:
        super().__init__(f"Resource not found: {uri}", data={"uri": uri})


def choose_relayed_error_code(code: int) -> int:
    """The code under which an error of another server may be sent on."""
    return INTERNAL_ERROR if code in _RESERVED and code not in SPECIFIED_CODES else code


def is_server_full_error(code: int, data: object) -> bool:
    """Whether a server has no room for a call, which did not begin: it is safe to send it again."""
    if code == _FORMER_TOO_MANY_CALLS:
        return True
    if code != INTERNAL_ERROR or not is_object(data) or data.get("error_type") != LimitExceeded.error_type:
        return False
    return isinstance(data.get("retry_after_ms"), int)


def build_failure_reply(call: Call, error: BaseException, stateless: bool) -> Params:
    """The rest of the reply to a call that raised."""
    error = unwrap_exception_group(error)
    if is_missing_capability_error(error, stateless):
        needs = {"requiredCapabilities": error.needs}
        return _error(call, MISSING_CAPABILITY_CODE, error.message, "missing_capability", needs)
    if isinstance(error, ResourceNotFound):
        code = error.code if stateless else RESOURCE_NOT_FOUND_CODE
        return _error(call, code, error.message, "resource_not_found", error.data)
    if isinstance(error, ProtocolError):
        # An author's own number. A subclass belongs to an extension, which knows its range.
        is_plain = stateless and type(error) is ProtocolError
        code = choose_relayed_error_code(error.code) if is_plain else error.code
        return _error(call, code, error.message, _symbol(error), error.data)
    if isinstance(error, TooManyCalls):
        return _error(call, INTERNAL_ERROR, error.message, error.error_type, error.data)
    if call.method == "tools/call":
        return {"result": build_tool_failure(call, error)}
    if isinstance(error, BadArguments):
        return _error(call, InvalidParams.code, error.message, error.error_type, None)
    if isinstance(error, ToolError) and error.error_type == ToolError.error_type:
        # An author's own word on what was asked for. It is the request that cannot be met; nothing is broken here.
        return _error(call, InvalidParams.code, error.message, error.error_type, error.data)
    if isinstance(error, ToolError | Refused):
        return _error(call, INTERNAL_ERROR, error.message, error.error_type, error.data)
    if isinstance(error, PeerError):
        return _error(call, INTERNAL_ERROR, error.message, _symbol(error), None)
    return _error(call, INTERNAL_ERROR, mask_unexpected_error(call, error), "internal_error", None)


def is_missing_capability_error(error: BaseException, stateless: bool) -> TypeGuard[NoBackChannel]:
    """Whether the client must offer a capability before it repeats the request. The reply is an error, not a result."""
    return isinstance(error, NoBackChannel) and stateless and bool(error.needs)


def unwrap_exception_group(error: BaseException) -> BaseException:
    """The first error in a group, if all of them are meant for the model; any other error as it is."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    _, unexpected = group.split((ToolError, PeerError, Refused))
    return group if unexpected else unwrap_exception_group(group.exceptions[0])


def build_tool_failure(call: Call, error: BaseException) -> Params:
    """What the model reads when a tool fails: the author's words, never the text of an unexpected exception."""
    detail: Params = {"trace_id": get_trace_id(call)}
    if isinstance(error, Rejected):
        return build_rejection_result(error, {"code": error.error_type.upper()}, detail)
    if isinstance(error, ToolError | Refused):
        text = error.message
        detail |= {"error_type": error.error_type, **error.data}
    elif isinstance(error, PeerError):
        text, detail["error_type"] = error.message, _symbol(error)
        if isinstance(error, NoBackChannel) and error.needs:
            detail |= build_no_back_channel_detail(error.needs)
    else:
        text, detail["error_type"] = mask_unexpected_error(call, error), "internal_error"
    if isinstance(error, BadArguments):
        detail["problems"] = [{"field": p.field, "reason": p.reason} for p in error.problems]
    return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": {ERROR_META_KEY: detail}}


def build_no_back_channel_detail(needs: Params) -> Params:
    """What a failed tool says of a capability that its client did not offer, where that is no error of the protocol."""
    return {"error_type": NO_BACK_CHANNEL, "requiredCapabilities": dict(needs)}


def find_no_back_channel_error(result: Params) -> NoBackChannel | None:
    """The error behind a result of another server that says so."""
    meta = result.get("_meta")
    detail = meta.get(ERROR_META_KEY) if is_object(meta) else None
    if not is_object(detail) or detail.get("error_type") != NO_BACK_CHANNEL or result.get("isError") is not True:
        return None
    needs, content = detail.get("requiredCapabilities"), result.get("content")
    if not is_object(needs) or not needs:
        return None
    blocks = content if is_array(content) else []
    texts = (block["text"] for block in blocks if is_object(block) and isinstance(block.get("text"), str))
    return NoBackChannel(next(texts, "the client did not offer what this tool needs"), needs=needs)


def build_rejection_result(error: Rejected, names: Params, detail: Params) -> Params:
    """A refused call: its sentence for the model, and the body of MGP §7.4 for programs."""
    detail |= {"error_type": error.error_type, **error.data, **names}
    return {"content": [{"type": "text", "text": error.message}], "isError": True, "_meta": {ERROR_META_KEY: detail}}


def _error(call: Call, code: int, message: str, symbol: str, data: Any) -> Params:
    fields: Params = {"error_type": symbol, "trace_id": get_trace_id(call)}
    if isinstance(data, dict):
        fields |= data
    elif data is not None:
        fields["detail"] = data
    return {"error": make_error_object(code, message, fields)}


def _symbol(error: BaseException) -> str:
    """`InvalidParams` → `invalid_params`, unless its class says otherwise."""
    spelled = (f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(type(error).__name__))
    return getattr(error, "error_type", None) or "".join(spelled)


# -- MCP request params (schema: RequestParams), each member checked as it is read: InvalidParams says what is wrong.


def read_text_param(params: Params, name: str) -> str:
    """A member that must be a string."""
    found = params.get(name)
    if not isinstance(found, str):
        raise InvalidParams(f"Invalid params: {name} must be a string")
    return found


def read_object_param(params: Params, name: str) -> Params:
    """A member that must be an object."""
    if (found := read_optional_object_param(params, name)) is None:
        raise InvalidParams(f"Invalid params: {name} must be an object")
    return found


def read_optional_object_param(params: Params, name: str) -> Params | None:
    """A member that may be missing. If it is given, it must be an object."""
    found: Any = params.get(name)
    if found.__class__ is not dict and found is not None and not is_object(found):
        raise InvalidParams(f"Invalid params: {name} must be an object")
    return found


def read_meta(params: Params) -> Params:
    """`_meta`; empty if the client sent none, or something that is not an object."""
    found = params.get("_meta")
    return found if is_object(found) else {}


# -- Trace ids (MGP §6.5 members, W3C trace context in `_meta`): the client's, or a new one.


# Not compiled: few requests need them, and compiling would slow down every start.
_TRACEPARENT = r"[^-]*-[0-9a-f]{32}-[^-]*-[^-]*"

# These texts end up in logs, and in whatever shows them: no spaces, quotes, brackets or control characters.
_TRACE_ID = r"[A-Za-z0-9._:/@+=~-]{1,128}"

TRACE_ID_RULE = "1 to 128 of the characters A-Z a-z 0-9 . _ : / @ + = ~ -"
"""What a client's own trace id may be. Such an id is kept as it is."""


class RequestTrace:
    """One request's trace id, decided once."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = ""


def get_trace_id(call: Call) -> str:
    """The id this request is known by in logs, errors and audit."""
    trace = call.local(RequestTrace)
    if not trace.id:
        trace.id = _client_trace_id(call) or new_trace_id()
    return trace.id


def read_client_trace_id(call: Call) -> Any:
    """The `get_trace_id` that the client sent, in params or beside them, whatever it is. None if it sent none."""
    found = call.params.get("trace_id")
    return call.raw.get("trace_id") if found is None else found


def is_trace_id(value: object) -> bool:
    """Whether it is a trace id by the TRACE_ID_RULE."""
    return isinstance(value, str) and re.fullmatch(_TRACE_ID, value) is not None


def _client_trace_id(call: Call) -> str | None:
    given = read_client_trace_id(call)
    if is_trace_id(given):
        return given
    parent = read_meta(call.params).get("traceparent")
    return parent.split("-")[1] if isinstance(parent, str) and re.fullmatch(_TRACEPARENT, parent) else None


def new_trace_id() -> str:
    """An id for a request without one."""
    import secrets

    return f"req-{secrets.token_hex(8)}"
