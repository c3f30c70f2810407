from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Context, Limits, Server
from defserve.core.extension import OutgoingMessage
from defserve.serve.http.exchange import MAX_UNREAD_MESSAGES, Exchange
from tests.listening import Listening, listening, request
from tests.raw import Raw, text_of, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def shop(limits: Limits | None = None) -> Server:
    server = Server("shop", "1", limits=limits)
    server.open = asyncio.Event()  # type: ignore[attr-defined]

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def wait(ctx: Context) -> str:
        ctx.progress(1, 2)
        await server.open.wait()  # type: ignore[attr-defined]
        return "done"

    return server


class Stream:
    """An open stream of events, and what is said beside it; a link as `Raw` wants it."""

    def __init__(self, where: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.where, self.reader, self.writer = where, reader, writer
        self.target = ""

    async def event(self) -> tuple[str, str]:
        """The next event's name and data; a stream that ends gives two empty texts."""
        while True:
            async with asyncio.timeout(20):
                chunk = await self._chunk()
            if not chunk:
                return "", ""
            fields = dict(line.split(": ", 1) for line in chunk.decode().strip().split("\n"))
            if "data" in fields:
                return fields.get("event", "message"), fields["data"]

    async def _chunk(self) -> bytes:
        """One piece of a chunked body; the server writes an event in one."""
        size = int(await self.reader.readline() or b"0", 16)
        return (await self.reader.readexactly(size + 2))[:-2] if size else b""

    async def post(self, body: bytes, *lines: str, target: str | None = None) -> bytes:
        return await self.where.ask(*lines, body=body, path=target or self.target)

    async def send(self, message: bytes) -> None:
        response = await self.post(message)
        assert response.startswith(b"HTTP/1.1 202 "), response

    async def receive(self) -> bytes:
        name, data = await self.event()
        assert name == "message"
        return data.encode()


@asynccontextmanager
async def stream_of(where: Listening, path: str = "/sse") -> AsyncIterator[Stream]:
    reader, writer = await where.connect()
    writer.write(request("accept: text/event-stream", verb="GET", path=path))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"content-type: text/event-stream" in head, head
    stream = Stream(where, reader, writer)
    name, stream.target = await stream.event()
    assert name == "endpoint"
    try:
        yield stream
    finally:
        writer.close()


@asynccontextmanager
async def peer_of(where: Listening) -> AsyncIterator[Raw]:
    async with stream_of(where) as stream:
        peer = Raw(stream, "2024-11-05", {})
        await peer.open()
        yield peer


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


@pytest.mark.req("MCP-3.3")
async def test_an_old_client_calls_a_tool():
    async with listening(shop(), legacy_sse=True) as where, peer_of(where) as peer:
        assert peer.opening["protocolVersion"] == "2024-11-05"
        assert text_of(await peer.call("echo", {"text": "two\nlines"})) == "two\nlines"


async def test_progress_and_several_answers_come_on_the_one_stream():
    server = shop()
    async with listening(server, legacy_sse=True) as where, peer_of(where) as peer:
        slow = await peer.begin("tools/call", {"name": "wait", "_meta": {"progressToken": 7}})
        assert text_of(await peer.call("echo", {"text": "quick"})) == "quick"
        server.open.set()  # type: ignore[attr-defined]
        assert text_of((await peer.reply_to(slow))["result"]) == "done"
        assert [message["params"]["progressToken"] for message in peer.heard] == [7]


async def test_it_is_served_only_when_asked_for():
    async with listening(shop()) as where:
        assert status(await where.ask("accept: text/event-stream", verb="GET", path="/sse")) == 404
        assert status(await where.ask(body=b"{}", path="/messages?session_id=x")) == 404


@for_each_row(
    ("on", "stream", "messages"), [("/mcp", "/sse", "/messages"), ("/api/v1/mcp", "/api/v1/sse", "/api/v1/messages")]
)
async def test_it_stands_beside_the_endpoint(on: str, stream: str, messages: str):
    async with listening(shop(), f"http://127.0.0.1:0{on}", legacy_sse=True) as where:
        async with stream_of(where, stream) as opened:
            assert re.fullmatch(re.escape(messages) + r"\?session_id=[\w-]{32}", opened.target)


async def test_a_mounted_app_names_the_path_it_is_mounted_at():
    app, sent = shop().asgi(legacy_sse=True), list[Any]()
    left = asyncio.Event()

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            left.set()

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/tools/sse",
        "root_path": "/tools",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    assert sent[1]["body"].startswith(b"event: endpoint\ndata: /tools/messages?session_id=")
    await app.provider.stop()


# -- who may speak ---------------------------------------------------------------------------------------


async def test_evil_hosts_and_origins_are_refused_at_both_ends():
    async with listening(shop(), legacy_sse=True) as where, stream_of(where) as stream:
        for line, refused in (("origin: http://evil.example", 403), ("host: evil.example", 421)):
            assert status(await where.ask(line, verb="GET", path="/sse")) == refused
            assert status(await stream.post(b"{}", line)) == refused


async def test_a_session_that_is_not_ours_is_not_found():
    async with listening(shop(), legacy_sse=True, trusted_proxy=True) as where, stream_of(where) as stream:
        assert status(await stream.post(b"{}", target="/messages?session_id=guess")) == 404
        assert status(await stream.post(b"{}", target="/messages")) == 404
        assert status(await stream.post(b"{}", target="/messages?" + "a=1&" * 50)) == 404
        # The proxy says that this request came from elsewhere.
        assert status(await stream.post(b"{}", "x-forwarded-for: 192.0.2.1")) == 404


@for_each_row(("verb", "path", "refused"), [("POST", "/sse", 405), ("GET", "/messages", 405), ("DELETE", "/sse", 405)])
async def test_other_methods_are_refused(verb: str, path: str, refused: int):
    async with listening(shop(), legacy_sse=True) as where:
        assert status(await where.ask(verb=verb, path=path)) == refused


async def test_who_takes_no_events_gets_none():
    async with listening(shop(), legacy_sse=True) as where:
        assert status(await where.ask("accept: application/json", verb="GET", path="/sse")) == 406


# -- limits ----------------------------------------------------------------------------------------------


async def test_bodies_are_checked_as_on_the_endpoint():
    async with listening(shop(Limits(message=100)), legacy_sse=True) as where, stream_of(where) as stream:
        assert status(await stream.post(b"x" * 101)) == 413
        assert status(await stream.post(b"{")) == 400
        assert status(await stream.post(b"{}", "content-type: text/plain")) == 415


async def test_a_stream_too_many_is_refused_until_another_ends():
    server = shop(Limits(sessions=1))
    async with listening(server, legacy_sse=True) as where:
        async with peer_of(where) as first:
            waiting = asyncio.create_task(first.ask("tools/call", {"name": "wait", "arguments": {}}))
            await until(lambda: any(feed.conversation.in_flight for feed in where.app.legacy.feeds.values()))
            response = await where.ask(verb="GET", path="/sse")
            assert status(response) == 503 and b"retry-after: 1" in response
            waiting.cancel()
        await until(lambda: not where.app.legacy.feeds)
        async with peer_of(where) as peer:
            assert (await peer.ask("ping"))["result"] == {}


async def test_an_idle_stream_of_a_stranger_gives_way():
    async with listening(shop(Limits(sessions=1)), legacy_sse=True) as where:
        reader, writer = await where.connect()
        writer.write(request(verb="GET", path="/sse"))
        await reader.readuntil(b"session_id=")
        async with peer_of(where) as second:
            assert (await second.ask("ping"))["result"] == {}
            async with asyncio.timeout(20):
                await reader.readuntil(b"0\r\n\r\n")  # the stream has ended
        writer.close()


async def test_a_session_whose_answers_nobody_reads_takes_no_more_requests():
    async with listening(shop(), legacy_sse=True) as where, stream_of(where) as stream:
        (feed,) = where.app.legacy.feeds.values()
        for _ in range(MAX_UNREAD_MESSAGES):
            feed.push(OutgoingMessage(b"{}", None, answers=True))
        # Without a turn of the loop nothing was written yet.
        assert feed.exchange.is_full
        assert await where.app.legacy.find(one_more(feed), target_of(stream)) is None


async def test_a_stream_that_was_ended_stays_ended_whatever_is_said():
    async with listening(shop(), legacy_sse=True) as where, stream_of(where) as stream:
        (feed,) = where.app.legacy.feeds.values()
        taken = list[str]()
        feed.evict()
        feed.push(OutgoingMessage(b'{"late": true}', None, taken=lambda: taken.append("late")))
        assert await stream.event() == ("", "") and taken == ["late"]


def one_more(feed: Any) -> Exchange:
    async def receive() -> Any: ...
    async def send(message: Any) -> None: ...

    return Exchange({}, receive, send, principal=feed.exchange.principal, refusal=None)


def target_of(stream: Stream) -> dict[str, Any]:
    return {"query_string": stream.target.partition("?")[2].encode()}


async def test_the_end_of_the_stream_ends_the_session_and_its_calls():
    server = shop()
    async with listening(server, legacy_sse=True) as where:
        async with peer_of(where) as peer:
            target = peer.link.target
            await peer.begin("tools/call", {"name": "wait"})
            await until(lambda: server.composition.running == 1)
        await until(lambda: server.composition.running == 0 and not server.composition.sessions)
        assert status(await where.ask(body=b"{}", path=target)) == 404


async def test_a_stopping_server_answers_what_runs_then_ends_the_stream():
    server = shop()
    async with listening(server, legacy_sse=True) as where, peer_of(where) as busy, stream_of(where) as idle:
        id = await busy.begin("tools/call", {"name": "wait"})
        await until(lambda: server.composition.running == 1)
        where.app.drain()
        assert await idle.event() == ("", "")
        server.open.set()  # type: ignore[attr-defined]
        assert json.dumps((await busy.reply_to(id))["result"]).count("done") == 1
        assert await busy.link.event() == ("", "")


async def test_a_stream_that_is_opened_while_the_server_stops_ends_at_once():
    async with listening(shop(), legacy_sse=True) as where, asyncio.timeout(10), stream_of(where) as early:
        where.app.drain()
        assert await early.event() == ("", "")
        async with stream_of(where) as late:
            assert await late.event() == ("", "")
