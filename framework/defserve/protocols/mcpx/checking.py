"""§4.3: whether a kind matches its payload. The gateway does not check this, so every receiver must."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from defserve.protocols.mcpx.kinds import CHAT, PROPOSAL, REJECT, REQUEST, RESPONSE, WITHDRAW, MessageKind, context_of
from defserve.wire.jsonvalue import is_object

FORMATS: Final = ("plain", "markdown")

Payload = Mapping[str, Any]


def mismatch(kind: MessageKind, payload: Payload) -> str | None:
    """Why a message must not be acted on; None if its METHOD and CONTEXT are those of its payload."""
    check = _CHECKS.get(kind.base)
    return check(kind, payload) if check is not None else None


def _operation(kind: MessageKind, payload: Payload) -> str | None:
    method, params = payload.get("method"), payload.get("params", {})
    if not kind.method or method != kind.method:
        return f"the kind says {kind.method!r}, the payload {_brief(method)}"
    if not is_object(params):
        return "params are not an object"
    if kind.context and kind.context != context_of(kind.method, params):
        return f"the kind is about {kind.context[:64]!r}, the payload about {_brief(context_of(kind.method, params))}"
    return None


def _response(kind: MessageKind, payload: Payload) -> str | None:
    if not kind.method or "method" in payload:
        return "a response names its METHOD in the kind and holds none"
    if ("result" in payload) == ("error" in payload):
        return "a response holds either a result or an error"
    return _not_jsonrpc(payload)


def _chat(kind: MessageKind, payload: Payload) -> str | None:
    if not isinstance(payload.get("text"), str):
        return "chat needs a text"
    form = payload.get("format", "plain")
    return None if form in FORMATS else f"format is one of {', '.join(FORMATS)}"


def _decision(kind: MessageKind, payload: Payload) -> str | None:
    return None if isinstance(payload.get("reason", ""), str) else "a reason is a text"


def _not_jsonrpc(payload: Payload) -> str | None:
    return None if payload.get("jsonrpc") == "2.0" else 'jsonrpc is not "2.0"'


def _brief(value: Any) -> str:
    return repr(value)[:64]


_CHECKS: Final[Mapping[str, Callable[[MessageKind, Payload], str | None]]] = {
    REQUEST: lambda kind, payload: _not_jsonrpc(payload) or _operation(kind, payload),
    RESPONSE: _response,
    PROPOSAL: _operation,
    REJECT: _decision,
    WITHDRAW: _decision,
    CHAT: _chat,
}
