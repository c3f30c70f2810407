"""A listener that others take over from: each client is told with an answer, never instead of one."""

from __future__ import annotations

import asyncio

import pytest

from defserve import Server
from tests.listening import listening, parsers, request

pytestmark = pytest.mark.anyio

ASKED = request(verb="GET", path="/healthz")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The head of the response to one request more."""
    writer.write(ASKED)
    head = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok"
    return head.lower()


@parsers
async def test_the_next_response_on_each_connection_says_that_it_is_the_last(parser: str):
    async with listening(Server("s"), parser=parser) as where:
        used, unused = await where.connect(), await where.connect()
        for _ in range(3):
            assert b"connection: close" not in await answer(*used)
        where.listener.config.http_protocol_class.retire_connections()
        late = await where.connect()  # accepted before it stopped listening, and seen after
        for reader, writer in (used, unused, late):
            assert b"\r\nconnection: close\r\n" in await answer(reader, writer)
            assert await reader.read() == b""
            writer.close()


@parsers
async def test_what_one_listener_does_concerns_no_other(parser: str):
    async with listening(Server("s"), parser=parser) as one, listening(Server("s"), parser=parser) as other:
        one.listener.config.http_protocol_class.retire_connections()
        reader, writer = await other.connect()
        assert b"connection: close" not in await answer(reader, writer)
        writer.close()
