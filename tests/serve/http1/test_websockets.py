"""What a client sends on a WebSocket may end that socket. It holds up nobody, and is no fault of the app."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Server
from defserve.serve.http1 import websocket
from defserve.serve.http1.websocket import MAX_CONTROL_FRAMES, PIECE_BYTES
from tests.attack.speaking.websocket import CLOSE, CONTINUATION, PING, PONG, TEXT, frame
from tests.listening import UPGRADE, listening, request
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

EMPTY = frame(TEXT)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A server runs on uvloop where there is one."""
    if request.param:
        pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def opened() -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]]:
    """A socket, and the server's end of it."""
    async with listening(Server("parrot", "1")) as where, asyncio.timeout(20):
        reader, writer = await where.connect()
        writer.write(request(*UPGRADE, verb="GET"))
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: len(where.app.sockets.open) == 1)
        (served,) = where.listener.state.connections
        try:
            yield reader, writer, served
        finally:
            writer.transport.abort()


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The opcode and the content of the next frame."""
    first, size = await reader.readexactly(2)
    if size == 126:
        (size,) = struct.unpack(">H", await reader.readexactly(2))
    return first & 0x0F, await reader.readexactly(size)


HEADS = {
    "a long line": [f"x-long: {'a' * 20_000}"],
    "many lines": [f"x-{number}: a" for number in range(1_000)],
    "many protocols": [f"sec-websocket-protocol: {'a' * 10_000}, mcp"],
    "bytes that are no ASCII": ["x-old: \xe9"],
}


@for_each_row("lines, path", [*((each, "/mcp") for each in HEADS.values()), ([], f"/mcp?{'a' * 20_000}")])
async def test_whatever_head_http_takes_may_open_a_socket_and_the_place_is_free_afterwards(lines: list[str], path: str):
    async with listening(Server("parrot", "1")) as where, asyncio.timeout(20):
        reader, writer = await where.connect()
        writer.write(request(*UPGRADE, *lines, verb="GET", path=path))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(frame(PING, b"there"))
        assert await read_frame(reader) == (PONG, b"there")
        writer.close()
        await until(lambda: where.connections == 0)


@for_each_row("kind", ["websocket.send", "websocket.close"])
async def test_what_is_sent_after_the_client_was_hung_up_on_fails_as_if_it_had_left(kind: str):
    async with opened() as (_, _, served):
        await served.send({"type": "websocket.close", "code": 1000})
        with pytest.raises(OSError):
            await served.send({"type": kind, "text": ""})


@for_each_row("error, is_logged", [(ConnectionAbortedError, False), (ValueError, True)])
async def test_a_client_that_leaves_while_the_app_sends_is_no_failure_of_the_app(
    error: type[Exception], is_logged: bool, caplog: pytest.LogCaptureFixture
):
    ends = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        try:
            while True:
                await send({"type": "websocket.send", "text": "news"})
                await asyncio.sleep(0)
        except OSError as left:
            raise error from left
        finally:
            ends.set()

    async with listening(Server("parrot", "1")) as where, asyncio.timeout(20):
        where.listener.state.app = app
        reader, writer = await where.connect()
        writer.write(request(*UPGRADE, verb="GET"))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await ends.wait()
        await until(lambda: where.connections == 0)
    assert ("a WebSocket failed" in caplog.messages) is is_logged


@for_each_row("opcode", [PING, PONG])
async def test_a_client_that_sends_very_many_pings_or_pongs_is_cut_off(opcode: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "CLOSE_SECONDS", 0.1)
    async with opened() as (reader, writer, _):
        writer.write(frame(opcode) * (MAX_CONTROL_FRAMES + 1))
        while (got := await read_frame(reader))[0] == PONG:
            pass
        assert got[0] == CLOSE and struct.unpack_from(">H", got[1]) == (1008,)
        assert await reader.read() == b""


async def test_a_client_may_ping_often_for_a_long_time():
    async with opened() as (reader, writer, served):
        for _ in range(3):
            writer.write(frame(PING) * MAX_CONTROL_FRAMES)
            for _ in range(MAX_CONTROL_FRAMES):
                assert await read_frame(reader) == (PONG, b"")
            served._counted_since -= 1  # a second later


async def test_of_many_messages_only_some_are_handled_in_one_turn():
    async with opened() as (_, _, served):
        served.data_received(EMPTY * PIECE_BYTES)
        assert 0 < len(served._messages) <= PIECE_BYTES // len(EMPTY) + 1
        waiting = len(served._rest)
        while waiting:
            assert not served.transport.is_reading()
            await asyncio.sleep(0)
            assert waiting - len(served._rest) <= PIECE_BYTES
            waiting = len(served._rest)
        await until(served.transport.is_reading)


async def test_of_what_comes_behind_a_close_only_some_is_handled_in_one_turn():
    async with opened() as (reader, _, served):
        served.transport.pause_reading()
        await served.send({"type": "websocket.close", "code": 1000})
        served.data_received(EMPTY * (PIECE_BYTES // len(EMPTY)) * 3 + frame(CLOSE))
        assert len(served._rest) > PIECE_BYTES
        assert (await read_frame(reader))[0] == CLOSE
        assert await reader.read() == b""
        assert not served._rest


async def test_what_waits_for_its_turn_is_answered_in_order():
    calls = [b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % id for id in range(1000)]
    async with opened() as (reader, writer, _):
        writer.write(b"".join(frame(TEXT, call) + frame(PONG) * (id % 5 == 0) for id, call in enumerate(calls)))
        for id in range(len(calls)):
            assert json.loads((await read_frame(reader))[1])["id"] == id
        writer.write(frame(CLOSE))
        assert (await read_frame(reader))[0] == CLOSE


async def test_a_long_message_is_read_in_one_turn_and_answered():
    text = b" " * (10 * PIECE_BYTES) + b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    async with opened() as (reader, writer, served):
        half = len(text) // 2
        served.data_received(frame(TEXT, text[:half], fin=False) + frame(CONTINUATION, text[half:]))
        assert len(served._messages) == 1 and not served._rest
        assert json.loads((await read_frame(reader))[1])["id"] == 1
        writer.write(frame(PING, b"still here"))
        assert await read_frame(reader) == (PONG, b"still here")


async def test_a_client_that_leaves_takes_along_what_waited_for_its_turn():
    async with opened() as (_, _, served):
        served.data_received(EMPTY * PIECE_BYTES)
        assert served._rest
        served.transport.abort()
        await until(lambda: served._is_lost)
        assert not served._rest


@for_each_row("version", ["8", "14", "x"])
async def test_a_client_of_another_version_of_websocket_is_told_which_one_is_spoken(version: str):
    async with listening(Server("parrot", "1")) as where:
        others = [line for line in UPGRADE if "version" not in line]
        reader, writer = await where.connect()
        writer.write(request(*others, f"sec-websocket-version: {version}", verb="GET"))
        said = (await reader.read()).lower()
        assert said.startswith(b"http/1.1 400 ") and b"\r\nsec-websocket-version: 13\r\n" in said
        writer.close()
