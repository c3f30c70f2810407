"""OpenTelemetry: what a collector is sent of the messages of a server, compared with the conventions as a table."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from defserve import Context as CallContext
from defserve import Limits, Server, ToolError
from defserve.client.client import Client
from defserve.client.targets import RemoteServer, connect_url
from defserve.errors import UsageError
from defserve.serve.address import Address
from defserve.serve.network import serve_sockets
from defserve.serve.sockets import bind_sockets
from defserve.server.logs import JsonLogFormatter, SpanIds
from defserve.server.telemetry import Telemetry, TelemetryOptions
from tests.at_address import at_address
from tests.raw import ERAS, HANDSHAKE, PREFIX, STATELESS, Raw, raw, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
AMBIENT = SpanContext(0x1234, 0x5678, is_remote=False, trace_flags=TraceFlags(1))

# -- The conventions, typed from their text.

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
HISTOGRAMS = {
    "mcp.server.operation.duration",
    "mcp.server.session.duration",
    "mcp.client.operation.duration",
    "mcp.client.session.duration",
}
SPAN_ONLY = {"jsonrpc.request.id", "mcp.session.id", "client.address", "client.port", "mcp.resource.uri"}


class SoldOut(ToolError):
    error_type = "sold_out"


class SeenByASampler(Sampler):
    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *more: Any, **rest: Any) -> SamplingResult:
        attributes = rest.get("attributes") or (more[1] if len(more) > 1 else None)
        self.seen.append((name, dict(attributes or {})))
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        return "seen"


class Watched:
    """A server whose spans and metrics end up in lists."""

    def __init__(self, sampler: Sampler | None = None, limits: Limits | None = None, **options: Any) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider(sampler)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.options = TelemetryOptions(
            tracer_provider=provider, meter_provider=MeterProvider([self.reader]), **options
        )
        self.tracer = provider.get_tracer("author")
        self.server = Server("watched", limits=limits, extensions=[Telemetry(self.options)])
        for tool in (self.think, self.work, self.fail, self.crash, self.ask, self.never):
            self.server.tool(tool)
        self.server.prompt(self.greeting)
        self.server.resource("note://a")(self.note)
        self.server.resource("note://broken")(self.broken)

    async def think(self, about: str = "") -> str:
        with self.tracer.start_as_current_span("thought"):
            return "done"

    def work(self) -> str:
        with self.tracer.start_as_current_span("work in a thread"):
            return "done"

    def fail(self) -> None:
        raise SoldOut("no")

    def crash(self) -> None:
        raise ValueError("a secret")

    async def ask(self, ctx: CallContext) -> str:
        return str(await ctx.ask("Really?", bool))

    async def never(self) -> None:
        await asyncio.Event().wait()

    def greeting(self) -> str:
        return "Greet."

    def note(self) -> str:
        return "a"

    def broken(self) -> str:
        raise ValueError("a secret")

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    @property
    def metrics(self) -> dict[str, Any]:
        found = self.reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (found.resource_metrics if found is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# method, params, name of the span, attributes beside those of every message
MESSAGES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "tools/call",
        {"name": "think", "arguments": {}},
        "tools/call think",
        {"gen_ai.tool.name": "think", "gen_ai.operation.name": "execute_tool"},
    ),
    ("tools/list", {}, "tools/list", {}),
    ("prompts/get", {"name": "greeting"}, "prompts/get greeting", {"gen_ai.prompt.name": "greeting"}),
    ("resources/read", {"uri": "note://a"}, "resources/read", {"mcp.resource.uri": "note://a"}),
    ("completion/complete", {"uri": "note://a"}, "completion/complete", {}),
]


@for_each_row("version", ERAS)
@for_each_row(("method", "params", "name", "own"), MESSAGES)
async def test_a_request_is_a_span_with_the_attributes_of_the_conventions(
    version: str, method: str, params: dict[str, Any], name: str, own: dict[str, Any]
):
    watched = Watched()
    async with raw(watched.server, version) as peer:
        id = await peer.begin(method, params)
        reply = await peer.reply_to(id)
    span = watched.spans[name]
    assert span.kind == SpanKind.SERVER
    every = {
        "mcp.method.name": method,
        "jsonrpc.request.id": str(id),
        "mcp.protocol.version": version,
        "network.transport": "pipe",
    }
    failed = (
        {}
        if "error" not in reply
        else {
            "error.type": str(reply["error"]["code"]),
            "rpc.response.status_code": str(reply["error"]["code"]),
            "dev.defserve.error_type": attributes(span)["dev.defserve.error_type"],
        }
    )
    assert attributes(span) == every | own | failed
    (point,) = [
        each
        for each in watched.metrics["mcp.server.operation.duration"].data.data_points
        if each.attributes["mcp.method.name"] == method
    ]
    told = {name: value for name, value in (every | own | failed).items() if name not in SPAN_ONLY}
    told.pop("dev.defserve.error_type", None)
    assert dict(point.attributes) == told and tuple(point.explicit_bounds) == BOUNDS
    assert watched.metrics["mcp.server.operation.duration"].unit == "s"


FAILURES: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "fail"}),
    ("tools/call", {"name": "crash"}),
    ("tools/call", {"name": "think", "arguments": {"about": 1, "more": 2}}),
    ("tools/call", {"name": "missing"}),
    ("tools/call", {"name": "never"}),
    ("tools/call", {}),
    ("resources/read", {"uri": "note://b"}),
    ("resources/read", {"uri": "note://broken"}),
    ("prompts/get", {"name": "missing"}),
]


@for_each_row("version", ERAS)
@for_each_row(("method", "params"), FAILURES)
async def test_a_failure_is_told_as_the_reply_tells_it(version: str, method: str, params: dict[str, Any]):
    watched = Watched(limits=Limits(tool=0.2))
    async with raw(watched.server, version) as peer:
        reply = await peer.ask(method, params)
    (span,) = [each for each in watched.exporter.get_finished_spans() if each.name.startswith(method)]
    assert span.status.status_code == StatusCode.ERROR
    told = attributes(span)
    if "result" in reply:
        assert reply["result"]["isError"] is True
        assert told["error.type"] == "tool_error" and "rpc.response.status_code" not in told
        assert not span.status.description
    else:
        code = str(reply["error"]["code"])
        assert told["error.type"] == told["rpc.response.status_code"] == code
        # The reply also has the id under which an unexpected error was logged.
        assert span.status.description and reply["error"]["message"].startswith(span.status.description)
    assert "a secret" not in str(told) + str(span.status.description)


@for_each_row("version", ERAS)
@for_each_row("tool", ["long", "long_error", "long_after_progress"])
async def test_what_is_too_large_for_its_reply_failed_in_the_span_too(version: str, tool: str):
    watched = Watched(limits=Limits(response=10_000))

    @watched.server.tool
    def long() -> str:
        return "x" * 20_000

    @watched.server.tool
    def long_error() -> str:
        raise ToolError("x" * 20_000)

    @watched.server.tool
    async def long_after_progress(ctx: CallContext) -> str:
        ctx.progress(1, 2)
        return "x" * 20_000

    async with raw(watched.server, version) as peer:
        reply = await peer.ask("tools/call", {"name": tool, "_meta": {"progressToken": 1}})
    (span,) = [each for each in watched.exporter.get_finished_spans() if each.name == f"tools/call {tool}"]
    told = attributes(span)
    assert span.status.status_code == StatusCode.ERROR
    assert told["dev.defserve.error_type"] == "limit_exceeded"
    assert "larger than 10000 bytes" in str(reply)
    if "error" in reply:
        assert told["rpc.response.status_code"] == told["error.type"] == str(reply["error"]["code"])
        assert span.status.description == reply["error"]["message"]
    else:
        assert told["error.type"] == "tool_error"
    (point,) = [
        point
        for point in watched.metrics["mcp.server.operation.duration"].data.data_points
        if point.attributes.get("gen_ai.tool.name") == tool
    ]
    assert point.attributes["error.type"] == told["error.type"]


async def test_a_name_that_nobody_has_registered_is_in_no_name_and_no_metric():
    watched = Watched()
    async with raw(watched.server) as peer:
        await peer.ask("tools/call", {"name": "made up"})
    assert attributes(watched.spans["tools/call"])["gen_ai.tool.name"] == "made up"
    points = watched.metrics["mcp.server.operation.duration"].data.data_points
    assert not any("made up" in str(point.attributes) for point in points)


async def test_a_handshake_and_a_notification_have_spans():
    watched = Watched()
    async with raw(watched.server, HANDSHAKE[-1]) as peer:
        await peer.ask("ping")
    opening, ready = watched.spans["initialize"], watched.spans["notifications/initialized"]
    assert opening.kind == ready.kind == SpanKind.SERVER
    assert attributes(opening)["mcp.protocol.version"] == HANDSHAKE[-1] == attributes(ready)["mcp.protocol.version"]
    assert attributes(opening)["jsonrpc.request.id"] == "1" and "jsonrpc.request.id" not in attributes(ready)


async def test_a_refused_handshake_is_a_failed_span():
    watched = Watched()
    async with raw(watched.server, HANDSHAKE[-1], opened=False) as peer:
        reply = await peer.ask("initialize", {"protocolVersion": 1})
    span = watched.spans["initialize"]
    assert span.status.description == reply["error"]["message"]
    assert attributes(span)["error.type"] == str(reply["error"]["code"])


async def test_a_sampler_sees_name_and_tool_when_the_span_starts():
    sampler = SeenByASampler()
    async with raw(Watched(sampler).server) as peer:
        await peer.call("think")
    seen = dict(sampler.seen)
    assert seen["tools/call think"]["gen_ai.tool.name"] == "think"


@for_each_row(("tool", "inner"), [("think", "thought"), ("work", "work in a thread")])
async def test_the_callers_trace_is_the_parent_and_the_tools_spans_are_children(tool: str, inner: str):
    watched = Watched()
    async with raw(watched.server) as peer:
        await peer.call(tool, _meta={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    outer, child = watched.spans[f"tools/call {tool}"], watched.spans[inner]
    assert outer.parent is not None and f"{outer.parent.span_id:016x}" == PARENT
    assert outer.context is not None and f"{outer.context.trace_id:032x}" == TRACE
    assert child.parent is not None and child.parent.span_id == outer.context.span_id


async def test_the_ambient_span_is_linked_if_the_message_names_a_parent_and_is_the_parent_if_not():
    watched = Watched()
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(AMBIENT)))
    try:
        async with raw(watched.server) as peer:
            await peer.call("think", _meta={"traceparent": f"00-{TRACE}-{PARENT}-01"})
            await peer.call("work")
    finally:
        context.detach(token)
    linked, alone = watched.spans["tools/call think"], watched.spans["tools/call work"]
    assert [link.context.span_id for link in linked.links] == [AMBIENT.span_id]
    assert linked.parent is not None and f"{linked.parent.span_id:016x}" == PARENT
    assert not alone.links and alone.parent is not None and alone.parent.span_id == AMBIENT.span_id


class OneLetterPropagator(TextMapPropagator):
    """A propagator of nobody's: the context is in the key `x`."""

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        if "x" not in carrier:
            return context or Context()
        found = SpanContext(int(carrier["x"]), 7, is_remote=True, trace_flags=TraceFlags(1))
        return trace.set_span_in_context(NonRecordingSpan(found), context)

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        carrier["x"] = str(trace.get_current_span(context).get_span_context().trace_id)

    @property
    def fields(self) -> set[str]:
        return {"x"}


async def test_any_propagator_finds_its_own_keys(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(propagate, "propagator", OneLetterPropagator())
    watched = Watched()
    async with watched.server.connect(telemetry=watched.options) as client:
        await client.call("think")
    spans = [span for span in watched.exporter.get_finished_spans() if span.name == "tools/call think"]
    assert {span.kind for span in spans} == {SpanKind.CLIENT, SpanKind.SERVER}
    assert len({span.context.trace_id for span in spans if span.context}) == 1


async def test_what_a_server_asks_its_client_is_a_client_span_below_the_call():
    watched = Watched()
    async with raw(watched.server, HANDSHAKE[-1], {"elicitation": {}}) as peer:
        id = await peer.begin("tools/call", {"name": "ask"})
        question = await peer.hear()
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
        await peer.reply_to(id)
    asking, call = watched.spans["elicitation/create"], watched.spans["tools/call ask"]
    assert asking.kind == SpanKind.CLIENT and asking.context is not None and call.context is not None
    assert asking.parent is not None and asking.parent.span_id == call.context.span_id
    assert attributes(asking)["jsonrpc.request.id"] == str(question["id"])
    assert question["params"]["_meta"]["traceparent"].split("-")[2] == f"{asking.context.span_id:016x}"


async def test_arguments_results_and_uris_are_recorded_only_if_asked_for():
    plain, told = Watched(), Watched(arguments=True, results=True, uris=True)
    for watched in (plain, told):
        async with raw(watched.server) as peer:
            await peer.call("think", {"about": "password=hunter2"})
            await peer.ask("resources/read", {"uri": "note://a"})
    assert not any(name.startswith("gen_ai.tool.call") for name in attributes(plain.spans["tools/call think"]))
    span = attributes(told.spans["tools/call think"])
    assert "about" in span["gen_ai.tool.call.arguments"] and "hunter2" not in span["gen_ai.tool.call.arguments"]
    assert "done" in span["gen_ai.tool.call.result"]
    assert "resources/read note://a" in told.spans and "resources/read" in plain.spans
    points = told.metrics["mcp.server.operation.duration"].data.data_points
    assert any(point.attributes.get("mcp.resource.uri") == "note://a" for point in points)


async def test_over_http_a_span_tells_the_session_and_the_client(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    async with at_address(watched.server) as url:
        async with RemoteServer(url).connect(HANDSHAKE[-1], timeout=10) as client:
            assert await client.call("think") == await client.call("work") == "done"
        async with RemoteServer(url).connect(STATELESS, timeout=10) as client:
            await client.call("think")
    for span in watched.exporter.get_finished_spans():
        if span.kind == SpanKind.SERVER:
            assert attributes(span)["network.transport"] == "tcp", span.name
    told = attributes(watched.spans["tools/call work"])
    assert told["network.protocol.name"] == "http" and told["network.protocol.version"] == "1.1"
    assert told["client.address"] == "127.0.0.1" and told["client.port"] > 0
    assert told["mcp.session.id"] == attributes(watched.spans["initialize"])["mcp.session.id"]
    assert "mcp.session.id" not in attributes(watched.spans["tools/call think"])
    assert [record.getMessage() for record in caplog.records if "detach" in record.getMessage()] == []


async def test_a_websocket_and_a_unix_socket_are_told_apart(tmp_path: Any):
    watched = Watched()
    async with at_address(watched.server, "ws") as url, Client(await connect_url(url)) as client:
        await client.call("think")
    told = attributes(watched.spans["tools/call think"])
    assert (told["network.transport"], told["network.protocol.name"]) == ("tcp", "websocket")

    watched = Watched()
    app, path = watched.server.asgi(), str(tmp_path / "s")
    with bind_sockets(Address("unix", path, 0, "/")) as sockets:
        async with serve_sockets(app, watched.server.limits, sockets):
            reader, writer = await asyncio.open_unix_connection(path)
            meta = {f"{PREFIX}protocolVersion": STATELESS, f"{PREFIX}clientCapabilities": {}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
            body = json.dumps(message).encode()
            head = (
                "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-method: tools/list\r\n"
                f"accept: application/json, text/event-stream\r\nmcp-protocol-version: {STATELESS}\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            assert b" 200 " in await reader.readline()
            writer.close()
            await app.provider.stop()
    told = attributes(watched.spans["tools/list"])
    assert (told["network.transport"], told["network.protocol.name"]) == ("unix", "http")
    assert "client.address" not in told


def test_a_scope_without_addresses_is_a_unix_socket():
    from types import SimpleNamespace

    from defserve.server.telemetry import find_network

    def network(client: Any, server: Any) -> str:
        scope = {"type": "http", "client": client, "server": server, "http_version": "1.1"}
        call: Any = SimpleNamespace(envelope=SimpleNamespace(scope=scope, exchange=None))
        session: Any = SimpleNamespace(holder=None)
        return find_network(session, call).transport

    assert network(None, None) == network(None, ("/run/s", None)) == "unix"
    assert network(("127.0.0.1", 5), ("127.0.0.1", 80)) == network(None, ("127.0.0.1", 80)) == "tcp"


async def test_the_four_histograms_have_the_bounds_of_the_conventions():
    watched = Watched()
    async with watched.server.connect(HANDSHAKE[-1], telemetry=watched.options) as client:
        await client.call("think")
    await turns()
    assert watched.metrics.keys() == HISTOGRAMS
    for metric in watched.metrics.values():
        assert metric.unit == "s"
        assert all(tuple(point.explicit_bounds) == BOUNDS for point in metric.data.data_points)
    (session,) = watched.metrics["mcp.server.session.duration"].data.data_points
    assert dict(session.attributes) == {"mcp.protocol.version": HANDSHAKE[-1], "network.transport": "pipe"}


async def test_calls_at_once_do_not_share_a_span():
    watched = Watched()
    async with raw(watched.server) as peer:
        begun = [await peer.begin("tools/call", {"name": "work"}) for _ in range(8)]
        for id in begun:
            await peer.reply_to(id)
    spans = watched.exporter.get_finished_spans()
    outer = {span.context.span_id for span in spans if span.name == "tools/call work" and span.context}
    assert {span.parent.span_id for span in spans if span.name == "work in a thread" and span.parent} == outer
    assert len(outer) == 8


async def test_nothing_is_left_behind_in_the_context():
    watched = Watched()
    async with raw(watched.server, HANDSHAKE[-1]) as peer:
        await peer.call("think")
        assert isinstance(peer, Raw)
    assert not trace.get_current_span().get_span_context().is_valid


# -- Logs.


def log_line(*, as_json: bool, fields: dict[str, Any] | None = None) -> str:
    from defserve.server.logs import LOG_FORMAT

    handler = logging.Handler()
    handler.setFormatter(JsonLogFormatter() if as_json else logging.Formatter(LOG_FORMAT, defaults={"span": ""}))
    handler.addFilter(SpanIds(is_field=as_json))
    record = logging.LogRecord("shop", logging.INFO, "", 0, "sold", None, None)
    if fields is not None:
        record.fields = fields
    assert handler.filter(record)
    return handler.format(record)


def test_a_log_line_names_the_active_span():
    trace_id, span_id = trace.format_trace_id(AMBIENT.trace_id), trace.format_span_id(AMBIENT.span_id)
    assert "trace" not in log_line(as_json=False) and "trace_id" not in json.loads(log_line(as_json=True))
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(AMBIENT)))
    try:
        assert log_line(as_json=False).endswith(f"sold trace_id={trace_id} span_id={span_id}")
        told = json.loads(log_line(as_json=True))
        assert (told["trace_id"], told["span_id"]) == (trace_id, span_id)
        own = json.loads(log_line(as_json=True, fields={"trace_id": "order-7"}))
        assert (own["trace_id"], own["otel_trace_id"]) == ("order-7", trace_id)
    finally:
        context.detach(token)


async def test_the_request_log_and_the_errors_of_a_call_have_the_id_of_its_trace(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    watched.server.observe(log_level="info")
    caplog.set_level("INFO")
    logging.getLogger().addHandler(caplog.handler)
    async with raw(watched.server) as peer:
        result = await peer.call("fail")
    span = watched.spans["tools/call fail"].context
    assert span is not None
    trace_id = trace.format_trace_id(span.trace_id)
    assert result["_meta"]["dev.defserve/error"]["trace_id"] == trace_id
    logged: list[Any] = [getattr(record, "fields", {}) for record in caplog.records]
    assert [fields["trace_id"] for fields in logged if fields.get("name") == "fail"] == [trace_id]


# -- Off.


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for module in ("defserve.server.telemetry", "defserve.protocols.mcp.telemetry"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    names: dict[str, Any] = {}
    exec("from defserve.server import *", names)
    with pytest.raises(UsageError, match="needs OpenTelemetry"):
        names["Telemetry"]()


OFF = """
import asyncio, sys
from defserve import Server

server = Server("plain")

@server.tool
async def depth() -> int:
    frame, names = sys._getframe(), []
    while frame is not None:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back
    return sum(name.endswith(("telemetry.py", "composition.py", "metrics.py")) for name in names)

async def main() -> None:
    async with server.connect() as client:
        assert await client.call("depth") == 0
    assert not any(name.partition(".")[0] == "opentelemetry" for name in sys.modules), "imported"
    assert not any(name.startswith("defserve") and "telemetry" in name for name in sys.modules), "imported"

asyncio.run(main())
"""


def test_off_it_imports_nothing_and_adds_no_frame_to_a_call():
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
