"""An OpenTelemetry collector on loopback, made of the official protobufs: it keeps what it is sent, for tests."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Refusal(NamedTuple):
    """What the collector answers instead of taking a request."""

    status: int
    headers: dict[str, str] = {}


class Collector:
    """`url` is its address. `refusals` are answered first, one a request; `is_away` cuts every connection."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.refusals: list[Refusal] = []
        self.tries = self.rejected = 0
        self.is_away = False
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.tries += 1
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.is_away:
                    self.close_connection = True
                    return
                refusal = collector.refusals.pop(0) if collector.refusals else None
                if refusal is not None:
                    self.send_response(refusal.status)
                    for name, value in refusal.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                data = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
                collector.taken.append(REQUESTS[self.path].FromString(data))
                answer = ExportLogsServiceResponse()
                if collector.rejected:
                    answer.partial_success.rejected_log_records = collector.rejected
                    answer.partial_success.error_message = "too old"
                reply = answer.SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: a test reads what was taken."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def spans(self) -> list[tuple[str, Any]]:
        """Every span, with the name of its service."""
        return [
            (read_attributes(resource.resource.attributes)["service.name"], span)
            for request in list(self.taken)
            if isinstance(request, ExportTraceServiceRequest)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """The newest state of every metric, by its name."""
        return {
            metric.name: metric
            for request in list(self.taken)
            if isinstance(request, ExportMetricsServiceRequest)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def logs(self) -> list[Any]:
        """Every log record, in the order of arrival."""
        return [
            record
            for request in list(self.taken)
            if isinstance(request, ExportLogsServiceRequest)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()
    server = collector._server
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def read_attributes(attributes: Any) -> dict[str, Any]:
    """Attributes of a protobuf as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
