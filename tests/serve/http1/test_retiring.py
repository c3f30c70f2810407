"""A listener that others take over from: each client is told with an answer, never instead of one."""

from __future__ import annotations

import asyncio
import json

import pytest

from defserve import Context, Server
from tests.auth.web import stateless
from tests.listening import listening, request
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ASKED = request(verb="GET", path="/healthz")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The head of the response to one request more."""
    writer.write(ASKED)
    head = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok"
    return head.lower()


async def test_the_next_response_on_each_connection_says_that_it_is_the_last():
    async with listening(Server("s")) as where:
        used, unused = await where.connect(), await where.connect()
        for _ in range(3):
            assert b"connection: close" not in await answer(*used)
        where.listener.retire()
        late = await where.connect()  # accepted before it stopped listening, and seen after
        for reader, writer in (used, unused, late):
            assert b"\r\nconnection: close\r\n" in await answer(reader, writer)
            assert await reader.read() == b""
            writer.close()


@for_each_row("end", ["retire", "shut_down"])
async def test_who_reads_a_stream_meanwhile_is_told_by_the_next_response(end: str):
    server = Server("s")
    go_on = asyncio.Event()

    @server.tool
    async def slow(ctx: Context) -> str:
        await ctx.progress(1)
        await go_on.wait()
        return "done"

    body, headers = stateless("tools/call", name="slow", arguments={})
    body["params"]["_meta"]["progressToken"] = 1
    call = request(*(": ".join(one) for one in headers.items()), body=json.dumps(body).encode())
    async with listening(server) as where:
        reader, writer = await where.connect()
        writer.write(call)
        assert b"connection: close" not in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"notifications/progress")
        for each in list(where.listener.state.connections):
            getattr(each, end)()
        go_on.set()
        await reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in await answer(reader, writer)
        assert await reader.read() == b""
        writer.close()


async def test_what_one_listener_does_concerns_no_other():
    async with listening(Server("s")) as one, listening(Server("s")) as other:
        one.listener.retire()
        reader, writer = await other.connect()
        assert b"connection: close" not in await answer(reader, writer)
        writer.close()
