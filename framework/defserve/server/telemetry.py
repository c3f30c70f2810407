"""OpenTelemetry of a server: a span and a histogram for each message that comes in, and for each that it sends.

`protocols.mcp.telemetry` has the names and attributes. Here is how a server knows them: from the call, from the
transport that brought it, and from the reply that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import ALL_METHODS, Extension, Next, Offer, RequestWrapper, SendRequest, Wrapper
from defserve.core.json_values import is_mapping
from defserve.core.messages import INTERNAL_ERROR, Params, RequestId
from defserve.core.session import Session, make_reply_body_for_error
from defserve.errors import PeerError, ProtocolError, Refused, ToolError, UsageError
from defserve.protocols.mcp.errors import RequestTrace, get_trace_id, unwrap_exception_group
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.telemetry import (
    IS_OPENTELEMETRY_INSTALLED,
    ITEM_ATTRIBUTE_BY_METHOD,
    SUCCESS_OUTCOME,
    TOOL_ERROR,
    MessageTracer,
    MessageTransportInfo,
    OpenSpan,
    TelemetryOptions,
    TracedOutcome,
    read_error_object_outcome,
    read_exception_outcome,
    read_result_outcome,
)
from defserve.server.metrics import ASKED, CANCELLED, classify_error, classify_result

if TYPE_CHECKING:
    from defserve.proxying.mounts import Mounts

__all__ = ["Telemetry", "TelemetryOptions", "IS_OPENTELEMETRY_INSTALLED"]

UNNAMED_SERVICE = "unknown_service"
"""How the name begins that OpenTelemetry gives to a service without one."""
ERROR_TYPE_ATTRIBUTE, OUTCOME_ATTRIBUTE = "dev.defserve.error_type", "dev.defserve.outcome"


class Telemetry(Extension):
    """`Server(…, extensions=[Telemetry()])`. The providers are OpenTelemetry's global ones, unless options say others.

    The trace context in a caller's `_meta` becomes the parent of its span. Spans that a tool opens are children of it,
    and so are those of requests that the server sends meanwhile: to its client, or to servers behind it. Arguments
    and results are recorded only if `options` say so. Raises UsageError if OpenTelemetry is not installed.
    """

    name = "telemetry"

    def __init__(self, options: TelemetryOptions | None = None) -> None:
        self.options = options or TelemetryOptions()
        self._received = MessageTracer(self.options, "server")
        self._sent = MessageTracer(self.options, "client")

    def negotiate(self, offer: Offer) -> object | None:
        """Active with every peer."""
        return self

    def around(self) -> Mapping[str, Wrapper]:
        return {ALL_METHODS: self._trace_call}

    def watch_message(
        self, session: Session, method: str, params: Params, call: Call | None
    ) -> AbstractContextManager[Any]:
        return WatchedMessage(self, session, method, params, call)

    def around_requests(self) -> RequestWrapper:
        return self._trace_request

    def session_closed(self, session: Session) -> None:
        if (clock := session.peek(SessionClock)) is not None:
            self._received.record_session_duration(perf_counter() - clock.began, session.version, clock.network)

    # -- what comes in -----------------------------------------------------------------------------------

    async def _trace_call(self, call: Call, params: Params, next: Next) -> Any:
        span = self.start(call.session, call.method, params, call)
        try:
            result = await next(call, params)
        except BaseException as error:
            self._finish_call(call, span, make_error_outcome(call, error))
            raise
        self._finish_call(call, span, make_result_outcome(result), result)
        return result

    def _finish_call(self, call: Call, span: OpenSpan, outcome: TracedOutcome, result: Any = None) -> None:
        """End the span as soon as it is known what the reply says: a result may be too large for it."""
        self._received.set_item_attribute(span, call.method, call.subject_name)
        if call.outer is not None or call.settled:
            self.finish(span, outcome, result)
            return

        def finish() -> None:
            if call.unsendable is None:
                self.finish(span, outcome, result)
            else:
                self.finish(span, make_error_outcome(call, call.unsendable))

        span.leave()
        call.on_end = finish

    def start(self, session: Session, method: str, params: Params, call: Call | None) -> OpenSpan:
        """Begin the span of a request, or of a notification."""
        network = find_network(session, call)
        if not session.is_short:
            session.local(SessionClock).network = network
        version = find_version(session, call)
        is_known = method not in ITEM_ATTRIBUTE_BY_METHOD or has_item(session.composition, method, params.get("name"))
        id = call.id if call is not None else None
        span = self._received.start_received_message_span(method, params, id, version, network, is_known=is_known)
        if call is not None and span.trace_id:
            name_after_trace(call, span.trace_id)
        return span

    def finish(self, span: OpenSpan, outcome: TracedOutcome, result: Any = None) -> None:
        self._received.finish(span, outcome, result)

    # -- what goes out -----------------------------------------------------------------------------------

    async def _trace_request(
        self,
        session: Session,
        method: str,
        send: SendRequest,
        params: Params,
        numbered: Callable[[RequestId], None] | None,
    ) -> Any:
        span, params = self._sent.start_sent_message_span(
            method, params, None, session.version, find_network(session, None)
        )

        def on_numbered(id: RequestId) -> None:
            span.set_attribute("jsonrpc.request.id", str(id))
            if numbered is not None:
                numbered(id)

        try:
            result = await send(params, on_numbered)
        except BaseException as error:
            self._sent.finish(span, read_exception_outcome(error))
            raise
        self._sent.finish(span, SUCCESS_OUTCOME)
        return result


def trace_backends(extensions: Iterable[Extension], mounts: Mounts) -> None:
    """Trace what a server sends to those behind it as what it sends to its clients."""
    for extension in extensions:
        if isinstance(extension, Telemetry):
            mounts.trace_messages(extension.options)


def set_up_telemetry_export(service: str) -> None:
    """Send traces and metrics to a collector, as the `OTEL_…` variables say, unless this process has providers already.

    What is left is sent when the process ends. Raises UsageError if the packages for it are not installed.
    """
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise UsageError(
            "telemetry needs OpenTelemetry and its exporter", fix='pip install "defserve[telemetry]"'
        ) from None
    resource = Resource.create()  # with a name, if OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has one
    if str(resource.attributes["service.name"]).startswith(UNNAMED_SERVICE):
        resource = resource.merge(Resource({"service.name": service}))
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider([reader], resource))


class SessionClock:
    """When a session began, and how its peer is connected."""

    __slots__ = ("began", "network")

    def __init__(self) -> None:
        self.began, self.network = perf_counter(), MessageTransportInfo()


class WatchedMessage:
    """The span of a message that no wrapper sees, as a context manager."""

    __slots__ = ("_telemetry", "_message", "_span")

    def __init__(self, telemetry: Telemetry, session: Session, method: str, params: Params, call: Call | None) -> None:
        self._telemetry, self._message = telemetry, (session, method, params, call)

    def __enter__(self) -> None:
        self._span = self._telemetry.start(*self._message)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        session, _, _, call = self._message
        if session.version:  # what opens a conversation agrees on it
            self._span.set_attribute("mcp.protocol.version", session.version)
        self._telemetry.finish(self._span, SUCCESS_OUTCOME if error is None else make_error_outcome(call, error))


def name_after_trace(call: Call, trace_id: str) -> None:
    """Logs, errors and audit know a request by its trace, unless its client has given it an id of its own."""
    if get_trace_id(call).startswith("req-"):
        call.local(RequestTrace).id = trace_id


def has_item(composition: Composition, method: str, name: object) -> bool:
    """Whether there is such a tool or prompt, for whomever."""
    mcp = next((each for each in composition.extensions if isinstance(each, MCP)), None)
    if mcp is None or not isinstance(name, str):
        return False
    return name in (mcp.tools.registry if method == "tools/call" else mcp.prompts.registry)


def find_version(session: Session, call: Call | None) -> str:
    """The version of the protocol that is spoken; empty while none was agreed on."""
    offer = call.terms.offer if call is not None else None
    return session.version if offer is None else offer.version


# -- How a call ended, as its peer is told.


def make_error_outcome(call: Call | None, error: BaseException) -> TracedOutcome:
    """What the reply to a call that raised says."""
    if call is None:
        return TracedOutcome(type(error).__name__)
    seen = classify_error(call, error)
    if seen.kind in (ASKED, CANCELLED):
        return TracedOutcome(details={OUTCOME_ATTRIBUTE: seen.kind})
    details = {ERROR_TYPE_ATTRIBUTE: seen.error_type}
    if not isinstance(unwrap_exception_group(error), (ToolError, Refused, ProtocolError, PeerError)):
        # Its text is for the log of the server alone. It is written there with the reply, and not here as well.
        if call.method == "tools/call":
            return TracedOutcome(TOOL_ERROR, details=details)
        return TracedOutcome(str(INTERNAL_ERROR), INTERNAL_ERROR, "internal error", details)
    body = make_reply_body_for_error(call, error)
    if "error" in body:
        return read_error_object_outcome(body["error"], details)
    return read_result_outcome(body.get("result"), details)


def make_result_outcome(result: Any) -> TracedOutcome:
    """What a result says: most are no failure."""
    if not is_mapping(result):
        return SUCCESS_OUTCOME
    seen = classify_result(result)
    if seen.kind == ASKED:
        return TracedOutcome(details={OUTCOME_ATTRIBUTE: ASKED})
    return read_result_outcome(result, {ERROR_TYPE_ATTRIBUTE: seen.error_type} if seen.error_type else None)


# -- How a message came.


def find_network(session: Session, call: Call | None) -> MessageTransportInfo:
    """The transport of a call, or else of its session as far as an earlier call has shown it."""
    envelope = call.envelope if call is not None else None
    carrier = getattr(envelope, "exchange", None) or envelope or session.holder
    scope = getattr(carrier, "scope", None)
    if scope is None:
        clock = session.peek(SessionClock)
        known = clock.network if clock is not None else MessageTransportInfo()
        return known if session.is_local or known.transport != "pipe" else MessageTransportInfo("tcp")
    client = scope.get("client")
    address, port = client or ("", 0)
    is_socket = scope["type"] == "websocket"
    owner = getattr(envelope, "session", None) or session.holder
    session_id = getattr(owner, "id", "") or ""
    # A unix socket has no address: neither ours nor that of our client.
    is_unix = client is None and (scope.get("server") or (None, None))[1] is None
    return MessageTransportInfo(
        "unix" if is_unix else "tcp",
        "websocket" if is_socket else "http",
        "" if is_socket else scope.get("http_version", ""),
        address,
        port,
        session_id if isinstance(session_id, str) else "",
    )
