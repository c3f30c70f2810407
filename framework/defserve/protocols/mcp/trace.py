"""Trace ids (W3C trace context in `_meta`, MGP §6.5 members): the client's, or a new one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from defserve.protocols.mcp.params import meta

if TYPE_CHECKING:
    from defserve.core.call import Call


# Not compiled: few requests need them, and compiling would slow down every start.
_TRACEPARENT, _UUID = r"[^-]*-[0-9a-f]{32}-[^-]*-[^-]*", r"[0-9a-fA-F-]{36}"


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


def _given(call: Call) -> str | None:
    parent = meta(call.params).get("traceparent")
    if isinstance(parent, str) and re.fullmatch(_TRACEPARENT, parent):
        return parent.split("-")[1]
    given: Any = call.params.get("trace_id") or call.raw.get("trace_id")
    # This text ends up in logs, so only a UUID is accepted.
    return given if isinstance(given, str) and re.fullmatch(_UUID, given) else None


def new_trace_id() -> str:
    """An id for a request without one."""
    import secrets

    return f"req-{secrets.token_hex(8)}"
