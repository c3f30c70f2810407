"""Requests that come whole and responses that go whole, beside those that do not: to a client all look alike."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel

from defserve import Context, Limits, Server
from defserve.auth import Principal
from defserve.serve.http1 import connection
from defserve.serve.http1.connection import MAX_LEARNED_HEADS
from defserve.serve.http1.request import RequestHeadCache
from tests.listening import Listening, listening, request
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

VERSION = "2026-07-28"


class Answer(BaseModel):
    value: bool


def parrot(limits: Limits | None = None) -> Server:
    server = Server("parrot", "1", limits=limits)

    @server.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool
    async def ponder(text: str) -> str:
        """Say it again, later."""
        await asyncio.sleep(0.01)
        return text

    @server.tool
    async def wait(text: str) -> str:
        """Say nothing."""
        await asyncio.sleep(60)
        return text

    return server


def a_call(text: str, tool: str = "echo", *more: str, token: int | None = None) -> bytes:
    prefix = "io.modelcontextprotocol/"
    meta = {prefix + "protocolVersion": VERSION, prefix + "clientCapabilities": {}}
    meta |= {"progressToken": token} if token is not None else {}
    params = {"name": tool, "arguments": {"text": text}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": text[:8], "method": "tools/call", "params": params}).encode()
    about = (f"mcp-protocol-version: {VERSION}", "mcp-method: tools/call", f"mcp-name: {tool}")
    return request(*about, "accept: application/json, text/event-stream", *more, body=body)


async def response_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, lines = head.partition("\r\n")[::2]
    headers = dict(line.lower().split(": ", 1) for line in lines.strip().split("\r\n") if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    is_json = headers.get("content-type") == "application/json"
    return int(status.split()[1]), headers, json.loads(body) if is_json else body


def said(reply: Any) -> str:
    return reply["result"]["content"][0]["text"]


async def heard(reader: asyncio.StreamReader) -> str:
    status, headers, reply = await response_of(reader)
    assert (status, headers["content-type"]) == (200, "application/json")
    return said(reply)


async def warm(where: Listening) -> None:
    """A head that came before is not parsed again."""
    reader, writer = await where.connect()
    for tool in ("echo", "ponder", "echo", "ponder"):
        writer.write(a_call("warm", tool))
        assert await heard(reader) == "warm"
    writer.close()


async def all_said(where: Listening, *data: bytes) -> bytes:
    """What comes back on one connection until it ends, or nothing more comes for many turns of the loop."""
    reader, writer = await where.connect()
    said = bytearray()

    async def listen() -> None:
        while chunk := await reader.read(65536):
            said.extend(chunk)

    listening = asyncio.create_task(listen())
    for part in data:
        writer.write(part)
        quiet, heard = 0, len(said)
        while quiet < 100 and not listening.done():
            await asyncio.sleep(0.001)
            quiet, heard = quiet + 1 if len(said) == heard else 0, len(said)
    listening.cancel()
    await asyncio.wait((listening,))
    writer.close()
    return bytes(said)


async def test_requests_that_do_not_wait_for_answers_get_them_in_order():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        tools = ("echo", "ponder", "echo", "echo", "ponder")
        writer.write(b"".join(a_call(f"n{place}", tool) for place, tool in enumerate(tools)))
        assert [await heard(reader) for _ in tools] == ["n0", "n1", "n2", "n3", "n4"]
        writer.close()


@for_each_row("size", [10, 70_000, 300_000])
async def test_bodies_and_answers_of_any_size_arrive(size: int):
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        for _ in range(3):
            writer.write(a_call("x" * size))
            assert await heard(reader) == "x" * size
        writer.close()


async def test_a_body_in_pieces_is_waited_for():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        whole = a_call("in pieces")
        for cut in (len(whole) - 1, len(whole) - 40, whole.index(b"\r\n\r\n") + 4):
            await where.write(writer, whole[:cut], whole[cut:])
            assert await heard(reader) == "in pieces"
        writer.close()


async def test_who_wants_the_connection_closed_has_it_closed():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        writer.write(a_call("last", "echo", "connection: close"))
        status, headers, reply = await response_of(reader)
        assert (status, headers["connection"], said(reply)) == (200, "close", "last")
        assert await reader.read() == b""
        writer.close()


async def test_who_asks_before_it_sends_is_told_to_go_on():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        head, _, body = a_call("polite", "echo", "expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert await heard(reader) == "polite"
        writer.close()


@for_each_row(
    "verb, path, length, status", [("POST", "/nothing", 5, 404), ("PUT", "/mcp", 5, 405), ("POST", "/mcp", 10**9, 413)]
)
async def test_who_asks_before_it_sends_and_is_refused_hears_that_the_connection_ends(
    verb: str, path: str, length: int, status: int
):
    """It need not send the body then, so what it sends next may be a body or a request."""
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        about = "content-type: application/json", "expect: 100-continue", f"content-length: {length}"
        writer.write(request(*about, verb=verb, path=path))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in head, head
        writer.write(a_call("no body"))
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()


async def test_the_old_version_of_http_is_answered_and_closed():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        writer.write(a_call("old").replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert b'"old"' in await reader.read()
        writer.close()


@pytest.mark.parametrize("before", [b"", a_call("first")], ids=["alone", "behind another request"])
async def test_events_for_the_old_version_of_http_come_without_chunks(before: bytes):
    server = parrot()

    @server.tool
    async def report(text: str, ctx: Context) -> str:
        ctx.progress(1, 2)
        await asyncio.sleep(0.01)
        return text

    async with listening(server) as where:
        reader, writer = await where.connect()
        asked = a_call("old", "report", token=1).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        writer.write(before + asked)
        if before:
            assert await heard(reader) == "first"
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        events = (await reader.read()).decode()
        writer.close()
    assert b"text/event-stream" in head and b"connection: close" in head and b"transfer-encoding" not in head
    assert all(re.match(r"(id|event|data|retry):|:|$", line) for line in events.split("\n")), events
    assert '"old"' in events


async def test_a_refusal_looks_the_same_as_ever():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        writer.write(re.sub(rb"mcp-name: echo", b"mcp-name: other", a_call("no")))
        status, _, reply = await response_of(reader)
        assert (status, reply["error"]["code"]) == (400, -32020)
        writer.write(a_call("yes"))
        assert await heard(reader) == "yes"
        writer.close()


@pytest.mark.slow
async def test_an_idle_connection_is_let_go_and_a_busy_one_is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "KEEP_ALIVE_SECONDS", 1.0)
    async with listening(parrot()) as where:
        await warm(where)
        idle, idle_writer = await where.connect()
        busy, busy_writer = await where.connect()
        idle_writer.write(a_call("idle"))
        assert await heard(idle) == "idle"
        gone = asyncio.ensure_future(idle.read())
        while not gone.done():
            busy_writer.write(a_call("busy"))
            assert await heard(busy) == "busy"
            await asyncio.sleep(0.05)
        assert await gone == b""
        busy_writer.write(a_call("still"))
        assert await heard(busy) == "still"
        busy_writer.close()
        idle_writer.close()


UPGRADE = (
    *("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-protocol: mcp"),
    "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==",
)
HEAD = "POST /nope HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"


async def test_a_refusal_reaches_one_who_is_still_sending():
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        writer.write(HEAD.format(200_000).encode())
        assert (await response_of(reader))[0] == 404
        for _ in range(20):
            writer.write(b"x" * 10_000)
            await writer.drain()
        writer.write(a_call("after all"))
        assert await heard(reader) == "after all"
        writer.close()


async def test_a_connection_whose_refused_body_came_late_is_only_idle():
    async with listening(parrot(Limits(header=0.2))) as where:
        reader, writer = await where.connect()
        writer.write(HEAD.format(10).encode())
        assert (await response_of(reader))[0] == 404
        writer.write(b"x" * 10)
        await asyncio.sleep(0.4)  # the time a head may take
        writer.write(a_call("idle"))
        assert await heard(reader) == "idle"
        writer.close()


async def test_a_head_that_grows_behind_an_open_stream_is_cut_off():
    async with listening(parrot()) as where:
        _reader, writer = await where.connect()
        writer.write(a_call("x", "wait") + b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n")

        async def grow() -> None:
            for number in range(16_000):
                writer.write(b"x-%d: " % number + b"y" * 1_000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)

        growing = asyncio.create_task(grow())
        await until(lambda: where.connections == 1 or growing.done())
        (served,) = where.listener.state.connections
        await until(lambda: not served.transport.is_reading() or growing.done())
        # Cut off, or no longer read.
        with pytest.raises((ConnectionError, TimeoutError)):
            await asyncio.wait_for(growing, 0.3)
        assert where.connections == 0 or not served.transport.is_reading()


async def test_an_offer_of_http_2_is_ignored():
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        writer.write(
            a_call("java", "echo", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEA")
        )
        assert await heard(reader) == "java"
        writer.close()


async def test_only_a_get_becomes_a_websocket():
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        key = "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg=="
        writer.write(
            a_call("no", "echo", "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", key)
        )
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.slow
async def test_a_socket_opened_on_a_used_connection_outlives_its_keep_alive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "KEEP_ALIVE_SECONDS", 1.0)
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        writer.write(a_call("first"))
        assert await heard(reader) == "first"
        about = (
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-protocol: mcp",
        )
        writer.write(request(*about, "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==", verb="GET"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.6):
                await reader.read(1)
        writer.close()


async def test_nothing_that_a_call_has_set_is_left_for_the_next_on_its_connection():
    marked: ContextVar[str] = ContextVar("marked", default="nothing")
    server, asked_again = Server("s", "1"), asyncio.Event()

    @server.tool
    async def mark(text: str) -> str:
        """Set it, and wait."""
        marked.set(text)
        await asked_again.wait()
        return text

    @server.tool
    async def look(text: str) -> str:
        """What is set."""
        return marked.get()

    async with listening(server) as where:
        reader, writer = await where.connect()
        await where.write(writer, a_call("alice", "mark"), a_call("", "look"))
        asked_again.set()
        assert [await heard(reader), await heard(reader)] == ["alice", "nothing"]
        writer.write(a_call("", "look"))
        assert await heard(reader) == "nothing"
        writer.close()


async def test_a_call_that_ends_while_a_question_of_its_own_waits_is_answered():
    server = Server("s", "1")

    @server.tool
    async def hasty(text: str, ctx: Context) -> str:
        """Ask, and do not wait."""
        asking = asyncio.ensure_future(ctx.ask("Really?", Answer))
        await asyncio.sleep(0)
        asking.cancel()
        return text

    async with listening(server) as where:
        reader, writer = await where.connect()
        for _ in range(5):
            writer.write(a_call("done", "hasty"))
            status, _, reply = await response_of(reader)
            assert (status, list(reply)) == (200, ["jsonrpc", "id", "result"])
        writer.close()


ODD = {
    "another host": a_call("hi").replace(b"host: localhost", b"host: evil.example"),
    "another origin": a_call("hi", "echo", "origin: https://evil.example"),
    "another tool in the body": a_call("hi").replace(b'"name": "echo"', b'"name": "wait"'),
    "another tool in the head": a_call("hi").replace(b"mcp-name: echo", b"mcp-name: wait"),
    "no JSON": a_call("hi")[:-1] + b"]",
    "half a body": a_call("hi")[:-9],
    "too much": a_call("hi") + b"}",
    "two": a_call("hi") + a_call("ho"),
    "two, one of them with a body too short": a_call("hi")[:-1] + a_call("ho"),
    "leading zeros": re.sub(rb"length: ", b"length: 00", a_call("hi")),
    "two lengths": a_call("hi").replace(b"content-type", b"content-length: 3\r\ncontent-type"),
    "a length that is none": re.sub(rb"length: [0-9]+", b"length: many", a_call("hi")),
    "chunks": a_call("hi").replace(b"content-type", b"transfer-encoding: chunked\r\ncontent-type"),
    "line feeds": a_call("hi").replace(b"\r\n", b"\n"),
    "lines before it": b"\r\n\r\n" + a_call("hi"),
    "a head in capitals": a_call("hi").replace(b"content-length", b"CONTENT-LENGTH"),
    "a folded line": a_call("hi").replace(b"mcp-name: echo", b"mcp-name:\r\n echo"),
    "the last of the connection": a_call("hi", "echo", "connection: close"),
    "another path": a_call("hi").replace(b"POST /mcp", b"POST /mcp2"),
    "another method": a_call("hi").replace(b"POST /mcp", b"PUT /mcp"),
}


@pytest.mark.slow
async def test_what_is_odd_is_answered_as_by_a_server_that_learns_nothing(monkeypatch: pytest.MonkeyPatch):
    async def answers(where: Listening) -> dict[str, list[bytes]]:
        def tries(odd: bytes) -> list[Any]:
            return [all_said(where, odd, a_call("after")), all_said(where, a_call("warm"), odd, a_call("after"))]

        said = iter(await asyncio.gather(*(one for odd in ODD.values() for one in tries(odd))))
        return {kind: [next(said), next(said)] for kind in ODD}

    with monkeypatch.context() as patch:
        patch.setattr(connection, "MAX_LEARNED_HEADS", 0)
        async with listening(parrot()) as where:
            fresh = await answers(where)
    async with listening(parrot()) as where:
        await warm(where)
        await warm(where)
        assert await answers(where) == fresh
    assert all(map(any, fresh.values()))


async def test_a_server_that_leaves_answers_what_is_on_its_way_and_then_hangs_up():
    async with listening(parrot()) as where:
        await warm(where)
        asks, idle, fresh = [await where.connect() for _ in range(3)]
        for reader, writer in (asks, idle):
            writer.write(a_call("before"))
            assert await heard(reader) == "before"
        for each in list(where.listener.state.connections):
            each.shut_down()
        asks[1].write(a_call("on its way"))
        assert await heard(asks[0]) == "on its way"
        async with asyncio.timeout(30):
            assert [await reader.read() for reader, _ in (asks, idle, fresh)] == [b"", b"", b""]
        for _, writer in (asks, idle, fresh):
            writer.close()


HALF = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-a: "


def statuses(said: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", said)]


async def test_behind_half_a_head_nothing_is_a_request_of_its_own():
    async with listening(parrot()) as where:
        await warm(where)
        whole = a_call("in pieces")
        for sent in ([a_call("one") + HALF], [whole[:-5], whole[-5:] + HALF]):
            said = await all_said(where, *sent, a_call("smuggled"))
            assert statuses(said) == [200, 400]
            assert b"smuggled" not in said


async def test_half_a_head_behind_a_request_is_waited_for_no_longer_than_any_other():
    async with listening(parrot(Limits(header=0.2))) as where:
        reader, writer = await where.connect()
        writer.write(a_call("one") + HALF)
        async with asyncio.timeout(30):
            said = await reader.read()
        assert statuses(said) == [200, 408]
        writer.close()


async def test_a_whole_request_behind_another_leaves_no_deadline_behind():
    async with listening(parrot(Limits(header=0.1))) as where:
        reader, writer = await where.connect()
        writer.write(a_call("one", "ponder") + a_call("two"))
        assert [await heard(reader), await heard(reader)] == ["one", "two"]
        await asyncio.sleep(0.3)
        writer.write(a_call("three"))
        assert await heard(reader) == "three"
        writer.close()


async def test_the_body_of_a_request_that_offers_another_protocol_is_no_request():
    async with listening(parrot()) as where:
        await warm(where)
        inner = a_call("smuggled")
        offer = ("connection: upgrade", "upgrade: foo", "content-type: application/json")
        for length in (f"content-length: {len(inner)}", "transfer-encoding: chunked"):
            said = await all_said(where, request(*offer, length), inner)
            assert len(statuses(said)) == 1
            assert b"smuggled" not in said


async def test_what_comes_behind_an_offer_of_another_protocol_before_its_answer_is_no_request():
    async with listening(parrot()) as where:
        offer = a_call("first", "echo", "connection: upgrade", "upgrade: h2c")
        said = await all_said(where, offer + a_call("behind"))
        assert statuses(said) == [200]
        assert b"behind" not in said


async def test_a_body_that_speaks_of_http_2_is_left_as_it_is():
    async with listening(parrot()) as where:
        refused = request("content-length: 40", "content-type: application/json", path="/nope")
        body = b"a\r\nupgrade: h2c\r\nb".ljust(40, b"x")
        assert statuses(await all_said(where, refused, body, a_call("after"))) == [404, 200]


async def test_a_socket_is_opened_behind_the_response_that_comes_before_it():
    async with listening(parrot()) as where:
        assert statuses(await all_said(where, a_call("first", "ponder") + request(*UPGRADE, verb="GET"))) == [200, 101]


async def test_a_client_that_leaves_stops_the_call_it_was_being_answered_whatever_it_sent_behind():
    server, stopped = parrot(), asyncio.Event()

    @server.tool
    async def count(text: str, ctx: Context) -> str:
        """Say how far it is."""
        try:
            while True:
                ctx.progress(1, 3)
                await asyncio.sleep(0.01)
        finally:
            stopped.set()

    wants = b'"progressToken": 1, "io.modelcontextprotocol/clientCapabilities"'
    body = a_call("a", "count").partition(b"\r\n\r\n")[2].replace(wants[20:], wants)
    about = (f"mcp-protocol-version: {VERSION}", "mcp-method: tools/call", "mcp-name: count")
    counting = request(*about, "accept: application/json, text/event-stream", body=body)
    async with listening(server) as where:
        reader, writer = await where.connect()
        writer.write(counting + a_call("behind"))
        await reader.readuntil(b'"progress":')
        writer.transport.abort()
        async with asyncio.timeout(30):
            await stopped.wait()


async def test_who_comes_with_a_known_head_is_still_one_too_many():
    async with listening(parrot(Limits(connections=2))) as where:
        await warm(where)
        others = [await where.connect() for _ in range(2)]
        for number, (_, writer) in enumerate(others):
            writer.write(a_call("hi", "wait"))  # an idle one would give way
            await until(lambda number=number: len(where.listener.state.tasks) == number + 1)
        assert b" 503 " in await all_said(where, a_call("hi"))
        for _, writer in others:
            writer.transport.abort()


async def test_a_known_head_that_came_by_halves_is_put_together():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        for cut in (1, 30, 90):
            whole = a_call(f"cut at {cut}")
            await where.write(writer, whole[:cut], whole[cut:])
            assert await heard(reader) == f"cut at {cut}"
            writer.write(a_call("whole again"))
            assert await heard(reader) == "whole again"
        writer.close()


@pytest.mark.slow
async def test_a_call_with_a_known_head_that_streams_asks_or_outlives_its_client_does_so_as_ever():
    server, ended = parrot(), asyncio.Event()

    @server.tool
    async def count(ctx: Context) -> str:
        """Say how far it is."""
        try:
            for number in range(3):
                ctx.progress(number, 3)
                await asyncio.sleep(0.001)
            await asyncio.sleep(60)
            return "done"
        finally:
            ended.set()

    prefix = "io.modelcontextprotocol/"
    meta = {prefix + "protocolVersion": VERSION, prefix + "clientCapabilities": {}, "progressToken": 1}
    params = {"name": "count", "arguments": {}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    about = (f"mcp-protocol-version: {VERSION}", "mcp-method: tools/call", "mcp-name: count")
    counting = request(*about, "accept: application/json, text/event-stream", body=body)
    async with listening(server) as where:
        for _ in range(3):
            reader, writer = await where.connect()
            writer.write(counting)
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            assert "text/event-stream" in head
            await reader.readuntil(b'"progress":2')
            writer.close()
            async with asyncio.timeout(30):
                await ended.wait()
            ended.clear()


async def test_a_head_is_not_parsed_twice(monkeypatch: pytest.MonkeyPatch):
    parsed: list[bytes] = []
    parse = connection.read_head
    monkeypatch.setattr(connection, "read_head", lambda raw: (parsed.append(raw), parse(raw))[1])
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        for text in ("a", "abc", "a much longer text"):
            writer.write(a_call(text))
            assert await heard(reader) == text
        assert len(parsed) == 1
        writer.close()


async def test_a_connection_whose_heads_all_differed_learns_one_that_comes_twice(monkeypatch: pytest.MonkeyPatch):
    learnt: list[bytes] = []
    learn = RequestHeadCache.add_head
    monkeypatch.setattr(
        RequestHeadCache, "add_head", lambda self, data, scope: (learnt.append(data), learn(self, data, scope))[1]
    )
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        for number in range(MAX_LEARNED_HEADS + 9):
            writer.write(a_call("odd", "echo", f"x-number: {number}"))
            assert await heard(reader) == "odd"
        assert len(learnt) == MAX_LEARNED_HEADS
        for _ in range(5):
            writer.write(a_call("same"))
            assert await heard(reader) == "same"
        assert len(learnt) == MAX_LEARNED_HEADS + 1, "when it came for the second time"
        writer.close()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there, work that is done at once has a task all the same")
async def test_a_call_with_a_known_head_that_does_not_wait_is_answered_without_a_task():
    async with listening(parrot()) as where:
        await warm(where)
        reader, writer = await where.connect()
        for _ in range(2):
            writer.write(a_call("once a task is spare"))
            assert await heard(reader) == "once a task is spare"
        loop, made = asyncio.get_running_loop(), list[Any]()

        def counted(loop: Any, work: Any, **more: Any) -> Any:
            made.append(work)
            return asyncio.Task(work, loop=loop, **more)

        loop.set_task_factory(counted)
        try:
            for text in ("a", "abc", "a much longer text"):
                writer.write(a_call(text))
                assert await heard(reader) == text
            assert made == []
            writer.write(a_call("later", "ponder"))
            assert await heard(reader) == "later"
            assert made != []
        finally:
            loop.set_task_factory(None)
            writer.close()


async def test_a_token_that_a_verifier_names_in_its_error_is_not_in_the_log(caplog: pytest.LogCaptureFixture):
    known: dict[str, Principal] = {}

    class Verifier:
        async def verify(self, token: str) -> Principal:
            return known[token]

    async with listening(Server("known", "1", auth=Verifier())) as where:
        # A head that was seen before takes another way.
        for number in range(4):
            reader, writer = await where.connect()
            writer.write(a_call("hi", "echo", f"authorization: Bearer the-token-itself-{number}"))
            assert (await response_of(reader))[0] == 500
            writer.close()
    assert caplog.text.count("a request failed\n") == caplog.text.count("KeyError: '[redacted]'") == 4
    assert "the-token-itself" not in caplog.text


@for_each_row("path", ["/healthz", "/livez", "/nothing"])
async def test_the_answer_to_head_has_no_body_however_often_it_is_asked_for(path: str):
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        for _ in range(3):
            writer.write(request("content-length: 0", verb="HEAD", path=path))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 0" not in head, "the length of a body that is not sent"
            writer.write(a_call("next"))
            assert await heard(reader) == "next"
        writer.close()


async def test_an_answer_without_content_has_no_length():
    async with listening(parrot()) as where:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
        opened = await where.ask("accept: application/json, text/event-stream", body=body)
        session = next(line for line in opened.decode().split("\r\n") if line.startswith("mcp-session-id: "))
        said = await where.ask(session, verb="DELETE")
        assert said.startswith(b"HTTP/1.1 204 ") and b"content-length" not in said
