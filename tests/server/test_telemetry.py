"""OpenTelemetry: what a collector is sent of a request."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from defserve import Server, ToolError
from defserve.client.targets import RemoteServer
from defserve.errors import UsageError
from defserve.server.telemetry import Telemetry
from tests.at_address import at_address
from tests.raw import ERAS, HANDSHAKE, Raw, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class SoldOut(ToolError):
    error_type = "sold_out"


class Watched:
    """A server whose spans end up in a list."""

    def __init__(self) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("author")
        self.server = Server("watched", extensions=[Telemetry(provider)])
        self.server.tool(self.think)
        self.server.tool(self.work)
        self.server.tool(self.fail)
        self.server.resource("note://a")(self.note)

    async def think(self) -> str:
        with self.tracer.start_as_current_span("thought"):
            return "done"

    def work(self) -> str:
        with self.tracer.start_as_current_span("work in a thread"):
            return "done"

    def fail(self) -> None:
        raise SoldOut("no")

    def note(self) -> str:
        return "a"

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@for_each_row("version", ERAS)
async def test_a_call_is_a_span_by_the_conventions(version: str):
    watched = Watched()
    async with raw(watched.server, version) as peer:
        await peer.call("think")
    span = watched.spans["tools/call think"]
    assert span.kind == trace.SpanKind.SERVER and span.status.status_code == trace.StatusCode.UNSET
    told = attributes(span)
    assert told.pop("jsonrpc.request.id").isdecimal()
    assert told == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": version,
        "gen_ai.tool.name": "think",
        "gen_ai.operation.name": "execute_tool",
        "network.transport": "pipe",
    }


@for_each_row(("tool", "inner"), [("think", "thought"), ("work", "work in a thread")])
async def test_the_callers_trace_is_the_parent_and_the_tools_spans_are_children(tool: str, inner: str):
    watched = Watched()
    async with raw(watched.server) as peer:
        await peer.call(tool, _meta={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    outer, child = watched.spans[f"tools/call {tool}"], watched.spans[inner]
    assert outer.parent is not None and f"{outer.parent.span_id:016x}" == PARENT
    assert outer.context is not None and f"{outer.context.trace_id:032x}" == TRACE
    assert child.parent is not None and child.parent.span_id == outer.context.span_id


async def test_what_goes_wrong_is_an_error_of_its_type():
    watched = Watched()
    async with raw(watched.server) as peer:
        await peer.call("fail")
        await peer.ask("resources/read", {"uri": "note://b"})
    failed, missing = watched.spans["tools/call fail"], watched.spans["resources/read"]
    assert failed.status.status_code == missing.status.status_code == trace.StatusCode.ERROR
    assert attributes(failed)["error.type"] == "tool_error"
    assert attributes(failed)["dev.defserve.error_type"] == "sold_out"
    assert attributes(missing)["mcp.resource.uri"] == "note://b"
    assert attributes(missing)["error.type"] == attributes(missing)["rpc.response.status_code"]


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


async def test_over_http_a_span_is_left_in_the_task_that_entered_it(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    async with at_address(watched.server) as url, RemoteServer(url).connect(timeout=10) as client:
        assert await client.call("think") == await client.call("work") == "done"
    assert attributes(watched.spans["tools/call think"])["network.transport"] == "tcp"
    assert [record.getMessage() for record in caplog.records if "detach" in record.getMessage()] == []


async def test_nothing_is_left_behind_in_the_context():
    watched = Watched()
    async with raw(watched.server, HANDSHAKE[-1]) as peer:
        await peer.call("think")
        assert isinstance(peer, Raw)
    assert not trace.get_current_span().get_span_context().is_valid


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "defserve.server.telemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    names: dict[str, Any] = {}
    exec("from defserve.server import *", names)
    with pytest.raises(UsageError, match="needs OpenTelemetry"):
        names["Telemetry"]()
