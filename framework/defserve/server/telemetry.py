"""OpenTelemetry: a span for every request, by the semantic conventions for MCP. Needs `opentelemetry-api`."""

from __future__ import annotations

from contextvars import Token
from typing import TYPE_CHECKING, Any, NamedTuple

from defserve.base.version import VERSION
from defserve.core.call import Call
from defserve.errors import UsageError
from defserve.protocols.mcp.errors import read_meta
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.server.metrics import ASKED, CANCELLED, ERROR, RequestOutcome, RequestWatcher

is_installed: bool = True
if TYPE_CHECKING:
    from opentelemetry import context, propagate, trace
else:
    try:
        from opentelemetry import context, propagate, trace
    except ImportError:  # `from defserve import *` imports this module too.
        is_installed = False

# How a caller says which trace its request belongs to (W3C trace context).
CARRIED = ("traceparent", "tracestate", "baggage")
TARGETS = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}


class OpenSpan(NamedTuple):
    """A span, and the token that makes it the current one."""

    span: trace.Span
    token: Token[Any]


class Telemetry(RequestWatcher[OpenSpan]):
    """`Server(…, extensions=[Telemetry()])`. The tracer is the configured provider's, unless one is given.

    A caller's `traceparent` in `_meta` becomes the span's parent; spans that a tool opens are its children.
    Neither arguments nor results are recorded. Raises UsageError if OpenTelemetry is not installed.
    """

    name = "telemetry"

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        if not is_installed:
            raise UsageError("Telemetry needs OpenTelemetry", fix="pip install opentelemetry-sdk")
        self._tracer = trace.get_tracer("defserve", VERSION, provider)

    def begin(self, call: Call) -> OpenSpan:
        """Start a span below the one that the request names, and make it the current one."""
        carried = {
            key: value for key, value in read_meta(call.params).items() if key in CARRIED and isinstance(value, str)
        }
        parent = propagate.extract(carried, context.Context())
        attributes = {
            "mcp.method.name": call.method,
            "jsonrpc.request.id": str(call.id),
            "mcp.protocol.version": get_dialect(call).version,
            "network.transport": "pipe" if call.session.is_local else "tcp",
        }
        if isinstance(uri := call.params.get("uri"), str):
            attributes["mcp.resource.uri"] = uri
        if call.method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        span = self._tracer.start_span(
            call.method, parent, kind=trace.SpanKind.SERVER, attributes=attributes, record_exception=False
        )
        return OpenSpan(span, context.attach(trace.set_span_in_context(span, parent)))

    def end(self, call: Call, begun: OpenSpan, seconds: float, outcome: RequestOutcome) -> None:
        """Record how the request ended, and end the span."""
        span = begun.span
        context.detach(begun.token)
        name = call.subject_name
        if name is not None and call.method in TARGETS:
            span.update_name(f"{call.method} {name}")
            span.set_attribute(TARGETS[call.method], name)
        if outcome.kind == ERROR:
            # The conventions have one type for every failed tool. The tool's own error type is a second attribute.
            span.set_attribute("error.type", str(outcome.code) if outcome.code is not None else "tool_error")
            span.set_attribute("dev.defserve.error_type", outcome.error_type)
            if outcome.code is not None:
                span.set_attribute("rpc.response.status_code", str(outcome.code))
            span.set_status(trace.StatusCode.ERROR, outcome.error_type)
        elif outcome.kind in (ASKED, CANCELLED):
            span.set_attribute("dev.defserve.outcome", outcome.kind)
        span.end()
