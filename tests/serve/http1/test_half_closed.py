"""Clients that close their side behind the request, as `nc -N` does, get their answer. Those that left are noticed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from defserve import Context, Limits, Server
from defserve.serve.http1 import connection
from defserve.serve.http1.connection import HttpConnection
from tests.listening import Listening, listening, request
from tests.raw import PREFIX, STATELESS, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ACCEPT = "accept: application/json, text/event-stream"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a client that closed its side is there."""
    monkeypatch.setattr(connection, "FIRST_PROBE_SECONDS", 0.02)


class Tools:
    """A server whose tools wait for the test."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.server = Server("patient", "1", limits=limits)
        self.go, self.begun, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.server.tool(self.echo)
        self.server.tool(self.wait)
        self.server.tool(self.chat)
        self.server.tool(self.tell)

    async def echo(self) -> str:
        return "at once"

    async def tell(self) -> str:
        return "much " * 1_000_000

    async def wait(self) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "in the end"

    async def chat(self, ctx: Context) -> str:
        ctx.log.info("so far")
        return await self.wait()


def a_call(tool: str) -> bytes:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"name": tool, "arguments": {}, "_meta": {**meta, PREFIX + "logLevel": "info"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    about = f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/call", f"mcp-name: {tool}"
    return request(ACCEPT, *about, body=body)


async def asked(where: Listening, *data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send, and close this side."""
    reader, writer = await where.connect()
    for piece in data:
        writer.write(piece)
    writer.write_eof()
    return reader, writer


async def test_an_answer_that_is_there_at_once_is_sent_and_the_connection_closed():
    async with listening(Tools().server) as where:
        for _ in range(3):  # the head is known from the second time on
            reader, writer = await asked(where, a_call("echo"))
            response = await reader.read()
            assert response.startswith(b"HTTP/1.1 200 ") and b"at once" in response
            writer.close()
        await until(lambda: where.connections == 0)


@pytest.mark.parametrize("tool", ["wait", "chat"])
async def test_a_call_that_takes_time_is_answered_too(tool: str):
    tools = Tools()
    async with listening(tools.server) as where:
        reader, writer = await asked(where, a_call(tool))
        await tools.begun.wait()
        begin = await reader.readuntil(b": keep-alive" if tool == "wait" else b"so far")  # the client is there
        assert begin.startswith(b"HTTP/1.1 200 ")
        tools.go.set()
        assert b"in the end" in await reader.read()
        assert not tools.cancelled.is_set()
        writer.close()


async def test_several_requests_are_all_answered():
    tools = Tools()
    async with listening(tools.server) as where:
        reader, writer = await asked(where, a_call("echo"), a_call("wait"), a_call("echo"))
        await tools.begun.wait()
        tools.go.set()
        response = await reader.read()
        assert response.count(b"at once") == 2 and response.count(b"in the end") == 1
        writer.close()


async def test_a_request_behind_an_answer_that_is_read_slowly_is_answered(monkeypatch: pytest.MonkeyPatch):
    looked: list[object] = []

    def look(self: HttpConnection, seconds: float) -> None:
        looked.append(self)
        probe(self, seconds)

    probe = HttpConnection._probe_half_closed
    monkeypatch.setattr(HttpConnection, "_probe_half_closed", look)
    async with listening(Tools().server) as where:
        reader, writer = await asked(where, a_call("tell"), a_call("echo"))
        assert b"200 OK" in await reader.readuntil(b"much ")
        await until(lambda: bool(looked))  # whether the client is there
        assert b"at once" in await reader.read()
        writer.close()


@pytest.mark.parametrize("tool", ["wait", "chat"])
async def test_a_client_that_has_left_is_noticed_and_its_call_ends(tool: str):
    tools = Tools()
    async with listening(tools.server) as where:
        _, writer = await where.connect()
        writer.write(a_call(tool))
        await tools.begun.wait()
        writer.close()
        await asyncio.wait_for(tools.cancelled.wait(), 20)
        await until(lambda: where.connections == 0)


@for_each_row("sent", [b"", b"POST /mcp HT", a_call("wait")[:-1]])
async def test_a_request_that_will_never_be_whole_is_not_waited_for(sent: bytes):
    async with listening(Tools().server) as where:
        reader, writer = await asked(where, sent)
        assert b"200 OK" not in await reader.read()
        await until(lambda: where.connections == 0)
        writer.close()


async def session_of(where: Listening) -> str:
    about: dict[str, Any] = {"name": "c", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    opened = await where.ask(ACCEPT, body=body)
    id = opened.partition(b"mcp-session-id: ")[2].partition(b"\r\n")[0].decode()
    ready = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    assert b" 202 " in await where.ask(ACCEPT, f"mcp-session-id: {id}", body=ready)
    return id


@pytest.mark.slow
async def test_a_stream_of_events_goes_on_but_not_for_ever():
    tools = Tools(Limits(idle=1.5))
    async with listening(tools.server) as where:
        id = await session_of(where)
        reader, writer = await asked(where, request(ACCEPT, f"mcp-session-id: {id}", verb="GET"))
        await reader.readuntil(b"text/event-stream")
        tools.server.remove_tool("chat")
        await reader.readuntil(b"list_changed")
        # The client reads on, and the server ends it all the same.
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readuntil(b"never"), 20)
        await until(lambda: where.connections == 0)
        writer.close()


async def test_a_stream_that_nobody_half_closed_is_sent_no_needless_comments():
    async with listening(Tools().server) as where:
        id = await session_of(where)
        reader, writer = await where.connect()
        writer.write(request(ACCEPT, f"mcp-session-id: {id}", verb="GET"))
        await reader.readuntil(b"text/event-stream")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readuntil(b"keep-alive"), 0.3)
        writer.close()


async def test_it_works_over_a_unix_socket(tmp_path: Path):
    tools = Tools()
    async with listening(tools.server, f"unix:{tmp_path}/s") as where:
        reader, writer = await asked(where, a_call("wait"))
        await tools.begun.wait()
        tools.go.set()
        assert b"in the end" in await reader.read()
        writer.close()
