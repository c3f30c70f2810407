"""Trace ids (W3C trace context in `_meta`, MGP §6.5 members): read where a client writes them, else made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.core.call import Call


class Trace:
    """One request's trace id, decided once."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = ""


def trace_id(call: Call) -> str:
    """The id this request is known by in logs, errors and audit."""
    trace = call.local(Trace)
    if not trace.id:
        trace.id = _given(call) or _made()
    return trace.id


def _given(call: Call) -> str | None:
    meta = call.params.get("_meta")
    if isinstance(meta, dict):
        parent: Any = meta.get("traceparent")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(parent, str) and parent.count("-") == 3:
            id = parent.split("-")[1]
            if len(id) == 32 and id.strip("0123456789abcdef") == "":
                return id
    given: Any = call.params.get("trace_id") or call.raw.get("trace_id")
    # A caller's text ends up in logs: only a UUID is taken over.
    return (
        given if isinstance(given, str) and len(given) == 36 and given.strip("0123456789abcdefABCDEF-") == "" else None
    )


def _made() -> str:
    import secrets

    return f"req-{secrets.token_hex(8)}"
