"""Requests that come whole and responses that go whole, beside those that do not: to a client all look alike."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from defserve import Server
from defserve.runner import network
from defserve.runner.whole import fits
from tests.listening import Listening, listening, parsers, request

pytestmark = pytest.mark.anyio

VERSION = "2026-07-28"


def parrot() -> Server:
    server = Server("parrot", "1")

    @server.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool
    async def ponder(text: str) -> str:
        """Say it again, later."""
        await asyncio.sleep(0.01)
        return text

    return server


def a_call(text: str, tool: str = "echo", *more: str) -> bytes:
    prefix = "io.modelcontextprotocol/"
    meta = {prefix + "protocolVersion": VERSION, prefix + "clientCapabilities": {}}
    params = {"name": tool, "arguments": {"text": text}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": text[:8], "method": "tools/call", "params": params}).encode()
    about = (f"mcp-protocol-version: {VERSION}", "mcp-method: tools/call", f"mcp-name: {tool}")
    return request(*about, "accept: application/json, text/event-stream", *more, body=body)


async def response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, lines = head.partition("\r\n")[::2]
    headers = dict(line.lower().split(": ", 1) for line in lines.strip().split("\r\n") if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(status.split()[1]), headers, json.loads(body) if body else None


def said(reply: Any) -> str:
    return reply["result"]["content"][0]["text"]


async def heard(reader: asyncio.StreamReader) -> str:
    status, headers, reply = await response(reader)
    assert (status, headers["content-type"]) == (200, "application/json")
    return said(reply)


async def warm(where: Listening) -> None:
    """Headers that were seen before are those that are not looked at again."""
    reader, writer = await where.connect()
    writer.write(a_call("warm") + a_call("warm", "ponder"))
    assert [await heard(reader), await heard(reader)] == ["warm", "warm"]
    writer.close()


def test_the_uvicorn_that_is_installed_is_the_one_this_knows():
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    assert fits(HttpToolsProtocol)
    assert not fits(H11Protocol)


def test_another_uvicorn_takes_the_steps():
    class HttpToolsProtocol: ...

    assert not fits(HttpToolsProtocol)


@parsers
async def test_requests_that_do_not_wait_for_answers_get_them_in_order(parser: str):
    async with listening(parrot(), parser=parser) as where:
        await warm(where)
        reader, writer = await where.connect()
        tools = ("echo", "ponder", "echo", "echo", "ponder")
        writer.write(b"".join(a_call(f"n{place}", tool) for place, tool in enumerate(tools)))
        assert [await heard(reader) for _ in tools] == ["n0", "n1", "n2", "n3", "n4"]
        writer.close()


@parsers
@pytest.mark.parametrize("size", [10, 70_000, 300_000])
async def test_bodies_and_answers_of_any_size_arrive(parser: str, size: int):
    async with listening(parrot(), parser=parser) as where:
        await warm(where)
        reader, writer = await where.connect()
        for _ in range(3):
            writer.write(a_call("x" * size))
            assert await heard(reader) == "x" * size
        writer.close()


@parsers
async def test_a_body_in_pieces_is_waited_for(parser: str):
    async with listening(parrot(), parser=parser) as where:
        await warm(where)
        reader, writer = await where.connect()
        whole = a_call("in pieces")
        for cut in (len(whole) - 1, len(whole) - 40, whole.index(b"\r\n\r\n") + 4):
            writer.write(whole[:cut])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(whole[cut:])
            assert await heard(reader) == "in pieces"
        writer.close()


@parsers
async def test_who_wants_the_connection_closed_has_it_closed(parser: str):
    async with listening(parrot(), parser=parser) as where:
        await warm(where)
        reader, writer = await where.connect()
        writer.write(a_call("last", "echo", "connection: close"))
        status, headers, reply = await response(reader)
        assert (status, headers["connection"], said(reply)) == (200, "close", "last")
        assert await reader.read() == b""
        writer.close()


@parsers
async def test_who_asks_before_it_sends_is_told_to_go_on(parser: str):
    async with listening(parrot(), parser=parser) as where:
        await warm(where)
        reader, writer = await where.connect()
        head, _, body = a_call("polite", "echo", "expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert await heard(reader) == "polite"
        writer.close()


@parsers
async def test_the_old_version_of_http_is_answered_and_closed(parser: str):
    async with listening(parrot(), parser=parser) as where:
        await warm(where)
        reader, writer = await where.connect()
        writer.write(a_call("old").replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert b'"old"' in await reader.read()
        writer.close()


@parsers
async def test_a_refusal_looks_the_same_as_ever(parser: str):
    async with listening(parrot(), parser=parser) as where:
        await warm(where)
        reader, writer = await where.connect()
        writer.write(re.sub(rb"mcp-name: echo", b"mcp-name: other", a_call("no")))
        status, _, reply = await response(reader)
        assert (status, reply["error"]["code"]) == (400, -32020)
        writer.write(a_call("yes"))
        assert await heard(reader) == "yes"
        writer.close()


@parsers
async def test_an_idle_connection_is_let_go_and_a_busy_one_is_not(parser: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "KEEP_ALIVE", 1)
    async with listening(parrot(), parser=parser) as where:
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
