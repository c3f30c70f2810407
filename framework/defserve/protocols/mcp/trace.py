"""Trace ids (W3C trace context in `_meta`, MGP §6.5 members): read where a client writes them, else made up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from defserve.protocols.mcp.params import meta

if TYPE_CHECKING:
    from defserve.core.call import Call


# Strings, not compiled: few requests fail, and each would cost every start.
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
    # A caller's text ends up in logs: only a UUID is taken over.
    return given if isinstance(given, str) and re.fullmatch(_UUID, given) else None


def new_trace_id() -> str:
    """For what brings none."""
    import secrets

    return f"req-{secrets.token_hex(8)}"
