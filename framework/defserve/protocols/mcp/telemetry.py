"""OpenTelemetry for both sides of MCP, by its semantic conventions: what a span and a histogram say of a message.

How it works: `MessageTracer` starts a span when a message comes or goes, and records how it ended. A server has one
for what it receives (`server.telemetry`). It has another for what it sends, and so has a client (`client.telemetry`).

    client span  →  params._meta: traceparent, …  →  server span  →  client span of a request to another server  →  …

The keys in `_meta` are those of the configured propagators. Names, attributes and bounds stand in the tables below.
Needs `opentelemetry-api`; nothing else here imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic_core import from_json, to_json

from defserve.base.redaction import redact
from defserve.base.version import VERSION
from defserve.core.json_values import is_object
from defserve.core.messages import EncodedJson, Params, Reply, RequestId
from defserve.core.peer import make_peer_error
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError
from defserve.protocols.mcp.errors import read_meta

IS_OPENTELEMETRY_INSTALLED: bool = True
if TYPE_CHECKING:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.util.types import AttributeValue
else:
    try:
        from opentelemetry import context, metrics, propagate, trace
    except ImportError:  # `from defserve.server import *` imports this module too.
        IS_OPENTELEMETRY_INSTALLED = False

HISTOGRAM_BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""In seconds."""

TOOL_ERROR: Final = "tool_error"
MAX_RECORDED_LENGTH: Final = 8_192
"""The longest text of arguments or of a result in a span. The rest is cut off."""
MAX_NAME_LENGTH: Final = 128

ITEM_ATTRIBUTE_BY_METHOD: Final[Mapping[str, str]] = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
}
"""Method → the attribute that says which item a request is about."""
RESOURCE_METHODS: Final = frozenset(
    ("resources/read", "resources/subscribe", "resources/unsubscribe", "notifications/resources/updated")
)
ONLY_IN_SPANS: Final = frozenset(
    (
        *("jsonrpc.request.id", "mcp.session.id", "client.address", "client.port"),
        *("mcp.resource.uri", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    )
)
"""Attributes that would make a time series of every call. `TelemetryOptions.uris` lets the URI through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """What is recorded, and by whom.

    tracer_provider, meter_provider   those of OpenTelemetry's global configuration, unless given
    arguments, results   record what tools are called with, and what they answer: known secrets are masked, other
                         personal data is not
    uris                 put the URI of a resource into the name of the span and into the histogram
    """

    tracer_provider: trace.TracerProvider | None = None
    meter_provider: metrics.MeterProvider | None = None
    arguments: bool = False
    results: bool = False
    uris: bool = False


class MessageTransportInfo(NamedTuple):
    """How a message came or went, as far as it is known. `address` is that of the peer."""

    transport: Literal["pipe", "tcp", "quic", "unix"] = "pipe"
    protocol: str = ""
    protocol_version: str = ""
    address: str = ""
    port: int = 0
    session_id: str = ""

    def make_attributes(self, peer: Literal["client", "server"]) -> dict[str, AttributeValue]:
        """Those of a span. Its peer is the "client" in a span of a server."""
        attributes = {
            "network.transport": self.transport,
            "network.protocol.name": self.protocol,
            "network.protocol.version": self.protocol_version,
            "mcp.session.id": self.session_id,
            f"{peer}.address": self.address,
            f"{peer}.port": self.port,
        }
        return {name: value for name, value in attributes.items() if value}


class TracedOutcome(NamedTuple):
    """How a message ended. Without an `error_type` it went well; `message` is that of a JSON-RPC error."""

    error_type: str = ""
    code: int | None = None
    message: str = ""
    details: Mapping[str, str] = {}
    """Further attributes of the span, in our own namespace."""


SUCCESS_OUTCOME: Final = TracedOutcome()


def read_result_outcome(result: Any, details: Mapping[str, str] | None = None) -> TracedOutcome:
    """A result is a failure only if it says `isError`."""
    is_error = is_object(result) and result.get("isError") is True
    return TracedOutcome(TOOL_ERROR if is_error else "", details=details or {})


def read_error_object_outcome(error: Params, details: Mapping[str, str] | None = None) -> TracedOutcome:
    """The outcome that a JSON-RPC error tells."""
    told = make_peer_error(error)
    return TracedOutcome(str(told.code), told.code, told.message, details or {})


def read_exception_outcome(error: BaseException) -> TracedOutcome:
    """How a request of ours ended that brought no result."""
    if isinstance(error, PeerTimeout):
        return TracedOutcome("timeout")
    if isinstance(error, PeerGone):
        return TracedOutcome("peer_gone")
    if isinstance(error, PeerError):
        return TracedOutcome(str(error.code), error.code, error.message)
    return TracedOutcome(type(error).__name__ if isinstance(error, Exception) else "cancelled")


class OpenSpan:
    """A span that has begun and is the current one, until `MessageTracer.finish`."""

    __slots__ = ("span", "attributes", "_token", "_began", "_seconds")

    def __init__(self, span: trace.Span, attributes: dict[str, AttributeValue], token: Token[context.Context]) -> None:
        self.span, self.attributes, self._token, self._began = span, attributes, token, perf_counter()
        self._seconds: float | None = None

    @property
    def trace_id(self) -> str:
        """In hexadecimal digits; empty if nothing is traced."""
        found = self.span.get_span_context()
        return trace.format_trace_id(found.trace_id) if found.is_valid else ""

    def set_attribute(self, name: str, value: AttributeValue) -> None:
        """Say something that was not known at the start."""
        self.attributes[name] = value
        self.span.set_attribute(name, value)

    def leave(self) -> float:
        """The span is no longer the current one. The seconds from its start until then."""
        if self._seconds is None:
            context.detach(self._token)
            self._seconds = perf_counter() - self._began
        return self._seconds


class MessageTracer:
    """Spans and histograms of the messages that one side receives ("server") or sends ("client")."""

    def __init__(self, options: TelemetryOptions, side: Literal["client", "server"]) -> None:
        if not IS_OPENTELEMETRY_INSTALLED:
            raise UsageError("telemetry needs OpenTelemetry", fix='pip install "defserve[telemetry]"')
        self.options, self._is_server = options, side == "server"
        self._tracer = trace.get_tracer("defserve", VERSION, options.tracer_provider)
        meter = metrics.get_meter("defserve", VERSION, options.meter_provider)
        self._operations, self._sessions = (
            meter.create_histogram(
                f"mcp.{side}.{what}.duration", "s", about, explicit_bucket_boundaries_advisory=HISTOGRAM_BOUNDS
            )
            for what, about in (
                ("operation", f"How long an MCP request or notification took, as its {side} sees it."),
                ("session", f"How long an MCP session took, as its {side} sees it."),
            )
        )

    def start_received_message_span(
        self,
        method: str,
        params: Params,
        id: RequestId | None,
        version: str,
        network: MessageTransportInfo,
        *,
        is_known: bool,
    ) -> OpenSpan:
        """A message has come. Its span is below the one that its `_meta` names, and is linked to the current one.

        `is_known`: the tool or prompt that it names exists. Callers can make up any number of others.
        """
        ambient = trace.get_current_span().get_span_context()
        carried = {key: value for key, value in read_meta(params).items() if isinstance(value, str)}
        parent = propagate.extract(carried, context.get_current())
        is_carried = trace.get_current_span(parent).get_span_context() != ambient
        links = [trace.Link(ambient)] if is_carried and ambient.is_valid else []
        attributes = self._make_attributes(method, params, id, version, network)
        name = self._make_name(method, attributes if is_known else {})
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, attributes, links, record_exception=False)
        if not is_known and method in ITEM_ATTRIBUTE_BY_METHOD:
            attributes.pop(ITEM_ATTRIBUTE_BY_METHOD[method], None)
        return OpenSpan(span, attributes, context.attach(trace.set_span_in_context(span, parent)))

    def start_sent_message_span(
        self, method: str, params: Params, id: RequestId | None, version: str, network: MessageTransportInfo
    ) -> tuple[OpenSpan, Params]:
        """A message is about to be sent. Gives its span, and the params that carry the context to the peer."""
        attributes = self._make_attributes(method, params, id, version, network)
        name = self._make_name(method, attributes)
        span = self._tracer.start_span(name, None, trace.SpanKind.CLIENT, attributes, record_exception=False)
        open_span = OpenSpan(span, attributes, context.attach(trace.set_span_in_context(span)))
        carried: dict[str, str] = {}
        propagate.inject(carried)
        return open_span, {**params, "_meta": {**read_meta(params), **carried}} if carried else params

    def set_item_attribute(self, open_span: OpenSpan, method: str, name: str | None) -> None:
        """Say which tool or prompt it was, if that was not known at the start: a server behind this one was late."""
        attribute = ITEM_ATTRIBUTE_BY_METHOD.get(method)
        if attribute is not None and name is not None and attribute not in open_span.attributes:
            open_span.set_attribute(attribute, name)
            open_span.span.update_name(f"{method} {name}")

    def finish(self, open_span: OpenSpan, outcome: TracedOutcome, result: Any = None) -> None:
        """The message was answered, or never will be."""
        seconds = open_span.leave()
        span = open_span.span
        if outcome.error_type:
            open_span.set_attribute("error.type", outcome.error_type)
            if outcome.code is not None:
                open_span.set_attribute("rpc.response.status_code", str(outcome.code))
            span.set_status(trace.StatusCode.ERROR, outcome.message or None)
        for name, value in outcome.details.items():
            span.set_attribute(name, value)
        if result is not None and self.options.results and "gen_ai.operation.name" in open_span.attributes:
            span.set_attribute("gen_ai.tool.call.result", _to_text(result))
        span.end()
        # In the context of the span: a histogram may keep it as an exemplar.
        self._operations.record(
            seconds, self._select_for_metrics(open_span.attributes), trace.set_span_in_context(span)
        )

    def record_session_duration(
        self, seconds: float, version: str, network: MessageTransportInfo, error_type: str = ""
    ) -> None:
        """A session has ended."""
        attributes = network.make_attributes("client" if self._is_server else "server")
        if version:
            attributes["mcp.protocol.version"] = version
        if error_type:
            attributes["error.type"] = error_type
        self._sessions.record(seconds, self._select_for_metrics(attributes))

    def _make_attributes(
        self, method: str, params: Params, id: RequestId | None, version: str, network: MessageTransportInfo
    ) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {"mcp.method.name": method}
        if id is not None:
            attributes["jsonrpc.request.id"] = str(id)
        if version:
            attributes["mcp.protocol.version"] = version
        if method in ITEM_ATTRIBUTE_BY_METHOD and isinstance(name := params.get("name"), str):
            attributes[ITEM_ATTRIBUTE_BY_METHOD[method]] = name[:MAX_NAME_LENGTH]
        if method in RESOURCE_METHODS and isinstance(uri := params.get("uri"), str):
            attributes["mcp.resource.uri"] = uri[:MAX_RECORDED_LENGTH]
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
            if self.options.arguments:
                attributes["gen_ai.tool.call.arguments"] = _to_text(params.get("arguments") or {})
        return attributes | network.make_attributes("client" if self._is_server else "server")

    def _make_name(self, method: str, attributes: Mapping[str, AttributeValue]) -> str:
        item = attributes.get(ITEM_ATTRIBUTE_BY_METHOD.get(method, ""))
        if item is None and self.options.uris:
            item = attributes.get("mcp.resource.uri")
        return method if item is None else f"{method} {item}"

    def _select_for_metrics(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        return {
            name: value
            for name, value in attributes.items()
            if name not in ONLY_IN_SPANS or (name == "mcp.resource.uri" and self.options.uris)
        }


def read_reply_outcome(reply: Reply) -> TracedOutcome:
    """What the peer has answered to a request of ours."""
    return read_result_outcome(reply.result) if reply.error is None else read_error_object_outcome(reply.error)


def _to_text(value: Any) -> str:
    """A value as JSON, without the secrets that can be told by their look, and bounded."""
    if isinstance(value, EncodedJson):
        value = from_json(value)
    return to_json(redact(value), fallback=str).decode()[:MAX_RECORDED_LENGTH]
