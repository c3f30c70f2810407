"""Idle streams on our own server: no task waits for them, and nothing is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Limits, Server
from defserve.serve.http.streams import StreamKeepAliveTimer
from tests.listening import Listening, listening, request
from tests.raw import HANDSHAKE, turns, until

pytestmark = pytest.mark.anyio

VERSION = HANDSHAKE[-1]
ACCEPT = "accept: application/json, text/event-stream"


def make_server() -> Server:
    server = Server("news", "1", limits=Limits(sessions_per_address=1_000))

    @server.tool
    async def publish(count: int) -> str:
        for number in range(count):
            server.resource_updated(f"memo://{number}")
        return "published"

    @server.resource("memo://{number}")
    async def memo(number: str) -> str:
        return number

    return server


class Session:
    """A session of the older era, over a connection of its own for each request."""

    def __init__(self, where: Listening) -> None:
        self.where, self.id = where, ""

    async def open(self) -> Session:
        client = {"name": "t", "version": "1"}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        self.id = re.findall(rb"mcp-session-id: (\S+)", await self.ask("initialize", params))[0].decode()
        await self.ask("notifications/initialized", None, id=None)
        return self

    async def ask(self, method: str, params: Any, id: int | None = 1) -> bytes:
        message = (
            {"jsonrpc": "2.0", "method": method} | ({"id": id} if id else {}) | ({"params": params} if params else {})
        )
        about = (f"mcp-session-id: {self.id}", f"mcp-protocol-version: {VERSION}") if self.id else ()
        body = json.dumps(message).encode()
        return await self.where.ask(ACCEPT, "content-type: application/json", *about, body=body)

    async def listen(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.where.connect()
        about = f"mcp-session-id: {self.id}", f"mcp-protocol-version: {VERSION}"
        writer.write(request("accept: text/event-stream", *about, verb="GET"))
        await reader.readuntil(b"\r\n\r\n")
        await turns()
        return reader, writer


@asynccontextmanager
async def open_session() -> AsyncGenerator[tuple[Listening, Session]]:
    async with listening(make_server()) as where:
        yield where, await Session(where).open()


def numbers_in(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb'"uri":"memo://(\d+)"', data)]


async def read_numbers(reader: asyncio.StreamReader, last: int) -> list[int]:
    data = b""
    while b'"memo://%d"' % last not in data:
        data += await reader.read(65536)
    return numbers_in(data)


async def test_no_task_waits_for_an_idle_stream():
    async with open_session() as (where, session):
        _, writer = await session.listen()
        await until(lambda: not where.listener.state.tasks)
        before = asyncio.all_tasks()
        _, other = await (await Session(where).open()).listen()
        await until(lambda: not where.listener.state.tasks)
        assert {task for task in asyncio.all_tasks() - before if "defserve" in repr(task)} == set()
        writer.close()
        other.close()


async def test_what_is_sent_to_an_idle_stream_arrives_in_order():
    async with open_session() as (_, session):
        for number in range(30):
            await session.ask("resources/subscribe", {"uri": f"memo://{number}"})
        reader, writer = await session.listen()
        await session.ask("tools/call", {"name": "publish", "arguments": {"count": 30}})
        assert await read_numbers(reader, 29) == list(range(30))
        writer.close()


async def test_a_reader_that_left_gets_the_rest_when_it_is_back():
    async with open_session() as (where, session):
        for number in range(4):
            await session.ask("resources/subscribe", {"uri": f"memo://{number}"})
        reader, writer = await session.listen()
        await session.ask("tools/call", {"name": "publish", "arguments": {"count": 2}})
        assert await read_numbers(reader, 1) == [0, 1]
        writer.transport.abort()
        (one,) = where.app.streamable.sessions
        await until(lambda: not one.reading)
        await session.ask("tools/call", {"name": "publish", "arguments": {"count": 4}})
        reader, writer = await session.listen()
        assert await read_numbers(reader, 3) == [0, 1, 2, 3]
        writer.close()


async def test_a_held_stream_ends_when_the_server_stops():
    async with open_session() as (where, session):
        reader, writer = await session.listen()
        where.app.streamable.drain()
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()


async def test_a_client_that_closed_its_side_is_written_to_until_it_is_known_to_be_gone():
    async with open_session() as (_, session):
        reader, writer = await session.listen()
        writer.write_eof()
        await reader.readuntil(b": keep-alive\n\n")
        writer.close()


class FakeStream:
    def __init__(self, silent: StreamKeepAliveTimer) -> None:
        self.silent, self.signs = silent, 0

    def send_sign_of_life(self) -> None:
        self.signs += 1
        self.silent.note_write(self)  # type: ignore[arg-type]


async def test_one_timer_sends_signs_of_life_to_all_silent_streams():
    silent = StreamKeepAliveTimer(0.01)
    streams = [FakeStream(silent) for _ in range(1_000)]
    for stream in streams:
        silent.note_write(stream)  # type: ignore[arg-type]
    await until(lambda: all(stream.signs >= 2 for stream in streams))
    for stream in streams:
        silent.discard(stream)  # type: ignore[arg-type]
    counts = [stream.signs for stream in streams]
    await turns()
    assert [stream.signs for stream in streams] == counts
