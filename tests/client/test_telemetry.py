"""OpenTelemetry of a client: its spans and histograms, and one trace through a kernel to a server on stdio."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from defserve import Server, ToolError
from defserve.client.targets import RemoteServer
from defserve.client.telemetry import TelemetryOptions, describe_target
from defserve.core.extension import Extension
from defserve.errors import PeerError
from defserve.protocols.mcp.telemetry import MessageTransportInfo
from tests.collector import Collector, read_attributes, running_collector
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

SHOP = """
from defserve import Server

server = Server("shop")


@server.tool
def price(item: str) -> int:
    return len(item)


if __name__ == "__main__":
    server.main()
"""

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


class Sending:
    """The telemetry of this process, sent to a collector."""

    def __init__(self, collector: Collector) -> None:
        resource = Resource({"service.name": "agent"})
        self._spans = TracerProvider(resource=resource)
        self._spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.url}/v1/metrics"), 3_600_000)
        self._metrics = MeterProvider([reader], resource)
        self.options = TelemetryOptions(tracer_provider=self._spans, meter_provider=self._metrics)

    def close(self) -> None:
        """Send what is left."""
        self._metrics.shutdown()
        self._spans.shutdown()


@contextmanager
def serving_kernel(folder: Path, collector: Collector) -> Iterator[tuple[subprocess.Popen[str], str]]:
    (folder / "shop.py").write_text(SHOP)
    (folder / "mgp.toml").write_text(
        f'[[servers]]\nid = "shop"\nprefix = "shop"\ncommand = "{sys.executable}"\nargs = ["shop.py", "--telemetry"]\n'
        f'cwd = "{folder}"\n[servers.env]\nOTEL_EXPORTER_OTLP_ENDPOINT = "{collector.url}"\n'
    )
    command = [sys.executable, "-m", "defserve", "kernel", "--config", str(folder / "mgp.toml")]
    process = subprocess.Popen(
        [*command, "--on", "http://127.0.0.1:0/mcp", "--no-local-token", "--telemetry"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "front"},
    )
    try:
        assert process.stderr is not None
        url = next(word for line in process.stderr for word in line.split() if word.startswith("http://"))
        yield process, url
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
async def test_a_call_through_a_kernel_to_a_server_on_stdio_is_one_trace(tmp_path: Path, collector: Collector):
    sending = Sending(collector)
    with serving_kernel(tmp_path, collector) as (kernel, url):
        async with RemoteServer(url).connect(telemetry=sending.options, timeout=60) as client:
            assert await client.call("shop_price", item="tea") == 3
        sending.close()
        kernel.send_signal(signal.SIGTERM)
        kernel.wait()
    await until(lambda: sum("price" in span.name for _, span in collector.spans) == 4)
    chain = {(service, span.kind): span for service, span in collector.spans if "price" in span.name}
    agent = chain["agent", Span.SPAN_KIND_CLIENT]
    front = chain["front", Span.SPAN_KIND_SERVER]
    relayed = chain["front", Span.SPAN_KIND_CLIENT]
    shop = chain["shop", Span.SPAN_KIND_SERVER]
    assert {span.trace_id for span in chain.values()} == {agent.trace_id}
    assert not agent.parent_span_id
    assert [front.parent_span_id, relayed.parent_span_id, shop.parent_span_id] == [
        agent.span_id,
        front.span_id,
        relayed.span_id,
    ]
    assert [span.name for span in (agent, front, relayed, shop)] == [
        "tools/call shop_price",
        "tools/call shop_price",
        "tools/call price",
        "tools/call price",
    ]
    transports = [read_attributes(span.attributes)["network.transport"] for span in (agent, front, relayed, shop)]
    assert transports == ["tcp", "tcp", "pipe", "pipe"]
    for name in ("mcp.client.operation.duration", "mcp.server.operation.duration"):
        for point in collector.metrics[name].histogram.data_points:
            assert tuple(point.explicit_bounds) == BOUNDS


def make_shop() -> Server:
    server = Server("shop")

    @server.tool
    def fail() -> None:
        raise ToolError("no")

    return server


async def test_a_client_span_tells_how_its_request_ended(collector: Collector):
    sending = Sending(collector)
    async with make_shop().connect(telemetry=sending.options) as client:
        with pytest.raises(ToolError):
            await client.call("fail")
        with pytest.raises(PeerError) as missing:
            await client.read("note://missing")
    sending.close()
    spans = {span.name: span for _, span in collector.spans}
    assert all(span.kind == Span.SPAN_KIND_CLIENT for span in spans.values())
    failed = read_attributes(spans["tools/call fail"].attributes)
    assert failed["error.type"] == "tool_error" and failed["gen_ai.operation.name"] == "execute_tool"
    told = read_attributes(spans["resources/read"].attributes)
    assert told["error.type"] == told["rpc.response.status_code"] == str(missing.value.code)
    assert spans["resources/read"].status.code == Status.STATUS_CODE_ERROR
    assert spans["resources/read"].status.message == missing.value.message
    (session,) = collector.metrics["mcp.client.session.duration"].histogram.data_points
    assert tuple(session.explicit_bounds) == BOUNDS and session.count == 1


async def test_a_notification_has_a_span_and_carries_its_context(collector: Collector):
    sending = Sending(collector)
    heard = list[dict[str, Any]]()
    server = make_shop()
    server.extend(Hearing(heard))
    async with server.connect("2025-11-25", telemetry=sending.options):
        pass
    sending.close()
    (span,) = [span for _, span in collector.spans if span.name == "notifications/initialized"]
    assert heard[0]["_meta"]["traceparent"].split("-")[2] == span.span_id.hex()


class Hearing(Extension):
    """Hears what its peer sends when it is ready."""

    name = "hearing"

    def __init__(self, heard: list[dict[str, Any]]) -> None:
        self._heard = heard

    def negotiate(self, offer: Any) -> object:
        return self

    def notifications(self) -> Any:
        return {"notifications/initialized": lambda session, params: self._heard.append(params)}


TARGETS = [
    ("python server.py", MessageTransportInfo("pipe")),
    ("", MessageTransportInfo("pipe")),
    ("https://shop.example/mcp", MessageTransportInfo("tcp", "http", "", "shop.example", 443)),
    ("http://127.0.0.1:8000/mcp", MessageTransportInfo("tcp", "http", "", "127.0.0.1", 8000)),
    ("ws://127.0.0.1/mcp", MessageTransportInfo("tcp", "websocket", "", "127.0.0.1", 80)),
]


@for_each_row(("target", "network"), TARGETS)
def test_the_address_says_how_a_server_is_reached(target: str, network: MessageTransportInfo):
    assert describe_target(target) == network
