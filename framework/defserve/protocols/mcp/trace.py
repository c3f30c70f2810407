"""Trace ids (MGP §6.5 members, W3C trace context in `_meta`): the client's, or a new one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from defserve.protocols.mcp.params import meta

if TYPE_CHECKING:
    from defserve.core.call import Call


# Not compiled: few requests need them, and compiling would slow down every start.
_TRACEPARENT = r"[^-]*-[0-9a-f]{32}-[^-]*-[^-]*"
# These texts end up in logs, and in whatever shows them: no spaces, quotes, brackets or control characters.
_TRACE_ID = r"[A-Za-z0-9._:/@+=~-]{1,128}"

RULE = "1 to 128 of the characters A-Z a-z 0-9 . _ : / @ + = ~ -"
"""What a client's own trace id may be. Such an id is kept as it is."""


class Trace:
    """One request's trace id, decided once."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = ""


def trace_id(call: Call) -> str:
    """The id this request is known by in logs, errors and audit."""
    trace = call.local(Trace)
    if not trace.id:
        trace.id = _given(call) or new_trace_id()
    return trace.id


def sent_trace_id(call: Call) -> Any:
    """The `trace_id` that the client sent, in params or beside them, whatever it is. None if it sent none."""
    found = call.params.get("trace_id")
    return call.raw.get("trace_id") if found is None else found


def is_trace_id(value: object) -> bool:
    """Whether it is a trace id by the `RULE`."""
    return isinstance(value, str) and re.fullmatch(_TRACE_ID, value) is not None


def _given(call: Call) -> str | None:
    given = sent_trace_id(call)
    if is_trace_id(given):
        return given
    parent = meta(call.params).get("traceparent")
    return parent.split("-")[1] if isinstance(parent, str) and re.fullmatch(_TRACEPARENT, parent) else None


def new_trace_id() -> str:
    """An id for a request without one."""
    import secrets

    return f"req-{secrets.token_hex(8)}"
