"""What a stranger sends is bounded, however it comes."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from defserve import Limits, Server
from defserve.serve import network
from defserve.serve.http1 import connection, websocket
from defserve.serve.http1.connection import HttpConnection
from defserve.serve.http1.framing import MAX_HEAD_BYTES
from defserve.serve.http1.websocket import WebSocketConnection
from defserve.serve.session_opener import serve_on_loopback
from tests.listening import Listening, listening, request
from tests.raw import PREFIX, STATELESS, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

# The most that a reader of sockets takes at once, and what the system holds on the way.
BLOCK = 256 * 1024
BLANK = b"\r\n\r\n"
UPGRADE = (
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==",
)


def parrot(limits: Limits | None = None) -> Server:
    server = Server("parrot", "1", limits=limits)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def wait() -> str:
        await asyncio.sleep(60)
        return "late"

    return server


def a_call(tool: str = "echo", **arguments: Any) -> bytes:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def headers_for(tool: str = "echo") -> tuple[str, ...]:
    about = f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/call", f"mcp-name: {tool}"
    return "accept: application/json, text/event-stream", *about


CHUNKED = (*headers_for(), "content-type: application/json", "transfer-encoding: chunked")


def chunked(*more: str, body: bytes | None = None) -> bytes:
    """A request whose body is complete, and behind it the last chunk: only trailers can follow."""
    body = a_call(text="fine") if body is None else body
    return request(*CHUNKED, *more) + b"%x\r\n%b\r\n0\r\n" % (len(body), body)


async def endless(where: Listening, begin: bytes, piece: bytes) -> tuple[bytes, int]:
    """Send a beginning, then one piece until the server hangs up: what it said, and how much it took."""
    reader, writer = await where.connect()
    before = where.received
    writer.write(begin)
    answer = asyncio.create_task(reader.read())
    try:
        async with asyncio.timeout(20):
            while not answer.done():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
    except ConnectionError:
        pass
    said = (await asyncio.gather(answer, return_exceptions=True))[0]
    writer.close()
    return said if isinstance(said, bytes) else b"", where.received - before


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1]) if response else 0


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "trailers": (chunked(), b"x-more: " + b"x" * 1000 + b"\r\n"),
    "small trailers": (chunked(), b"a:b\r\n" * 100),
    "one trailer": (chunked() + b"x-more: ", b"x" * 1000),
    "the name of a trailer": (chunked(), b"x" * 1000),
    "the extension of a chunk": (request(*CHUNKED) + b"5;a=", b"x" * 1000),
    "the size of a chunk": (request(*CHUNKED), b"0" * 1000),
    "headers": (b"GET /mcp HTTP/1.1\r\n", b"a:b\r\n" * 100),
    "one header": (b"GET /mcp HTTP/1.1\r\nx: ", b"x" * 1000),
    "the name of a header": (b"GET /mcp HTTP/1.1\r\n", b"x" * 1000),
    "the path": (b"GET /", b"x" * 1000),
    "the method": (b"GET", b"T" * 1000),
    "blank lines": (b"", b"\r\n" * 100),
    "headers of a socket": (request(*UPGRADE, verb="GET").removesuffix(b"\r\n"), b"a:b\r\n" * 100),
}


@for_each_row("part", ENDLESS)
async def test_no_part_of_a_request_may_be_endless(part: str):
    async with listening(parrot()) as where:
        said, received = await endless(where, *ENDLESS[part])
        assert received < MAX_HEAD_BYTES + 4 * BLOCK
        assert status(said) in (0, 400, 431), said
        await until(lambda: where.connections == 0)
        assert b'"fine"' in await where.ask(*headers_for(), body=a_call(text="fine"))


def count_connections() -> int:
    gc.collect()
    return sum(isinstance(each, HttpConnection) for each in gc.get_objects())


async def test_refused_connections_do_not_add_up_in_memory():
    counts = list[int]()
    async with listening(parrot()) as where:
        for _ in range(4):
            assert b"upgraded with GET" in await where.ask(*UPGRADE)
            assert status((await endless(where, *ENDLESS["trailers"]))[0]) in (0, 200, 431)
            await until(lambda: where.connections == 0)
            counts.append(count_connections())
    assert counts[-1] <= counts[0], "a refusal that is raised again keeps every connection that it went through"


@pytest.mark.parametrize("behind", [False, True])
async def test_a_head_that_comes_at_once_has_the_same_limit(behind: bool):
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        first = request(verb="GET", path="/nothing") if behind else b""
        writer.write(first + request(*(f"x-{n}: y" for n in range(12_000)), verb="GET", path="/nothing"))
        if behind:  # no refusal can be sent before the first answer
            with suppress(ConnectionError):
                assert (await reader.read()).count(b" 404 ") <= 1
        else:
            assert status(await reader.read()) == 431
        writer.close()


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES - 2000, MAX_HEAD_BYTES + 2000, 500_000])
async def test_a_large_body_does_not_count_as_a_head(size: int):
    async with listening(parrot()) as where:
        for more in ((), ("x-more: " + "y" * 20_000,)):
            said = await where.ask(*headers_for(), *more, body=a_call(text="x" * size))
            assert status(said) == 200 and len(said) > size


async def test_many_small_chunks_are_a_body_as_any_other():
    async with listening(parrot()) as where:
        body = a_call(text="y" * 20_000)
        reader, writer = await where.connect()
        about = "content-type: application/json", "transfer-encoding: chunked", "connection: close"
        chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body)
        writer.write(request(*headers_for(), *about) + chunks + b"0\r\nx-sum: 1\r\n\r\n")
        assert status(await reader.read()) == 200
        writer.close()


async def test_a_trailer_that_comes_byte_by_byte_counts_each_byte_once():
    async with listening(parrot()) as where:
        reader, writer = await where.connect()
        tail = b"x-sum: %b\r\n\r\n" % (b"1" * 500)
        await where.write(writer, chunked("connection: close"), *(tail[at : at + 1] for at in range(len(tail))))
        assert status(await reader.read()) == 200
        writer.close()


@pytest.mark.parametrize(
    "trailer",
    ["origin: http://evil.example", "authorization: Bearer x", "mcp-name: wait"],
)
async def test_a_trailer_is_no_header(trailer: str):
    scopes = list[Any]()
    async with listening(parrot()) as where:
        app = where.listener.state.app

        async def seeing(scope: Any, receive: Any, send: Any) -> None:
            scopes.append(scope)
            await app(scope, receive, send)
            scopes.append(scope)

        where.listener.state.app = seeing
        reader, writer = await where.connect()
        writer.write(chunked("connection: close") + trailer.encode() + b"\r\n\r\n")
        assert b'"fine"' in await reader.read()
        writer.close()
    name, _, value = trailer.partition(": ")
    for scope in scopes:
        assert (name.encode(), value.encode()) not in scope["headers"]
    assert len(scopes) == 2


async def test_a_trailer_opens_no_session_and_names_none():
    async with listening(parrot()) as where:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
        head = request(headers_for()[0], "content-type: application/json", "transfer-encoding: chunked")
        reader, writer = await where.connect()
        writer.write(head + b"%x\r\n%b\r\n0\r\nmcp-session-id: any\r\n\r\n" % (len(body), body))
        assert b"Mcp-Session-Id header is missing" in await reader.readuntil(b"missing")
        writer.close()


async def test_the_rest_of_a_request_that_was_answered_is_thrown_away_but_not_for_ever():
    limits = Limits(message=100_000)
    async with listening(parrot(limits)) as where:
        reader, writer = await where.connect()
        writer.write(request("transfer-encoding: chunked", path="/nothing"))
        assert b" 404 " in await reader.readuntil(BLANK)
        writer.close()
        said, received = await endless(
            where, request("transfer-encoding: chunked", path="/nothing"), b"3e8\r\n" + b"x" * 1000 + b"\r\n"
        )
        assert status(said) in (0, 404)
        assert received < limits.message + MAX_HEAD_BYTES + 4 * BLOCK


async def held_back(where: Listening, writer: asyncio.StreamWriter, piece: bytes) -> int:
    """Send one piece again and again until the server takes no more: how much it took by then."""
    before, took = where.received, -1
    while took != where.received:
        took = where.received
        for _ in range(64):
            writer.write(piece)
        # Enough turns for everything that may still be read.
        for _ in range(50):
            await asyncio.sleep(0)
        if writer.is_closing() or where.received - before > 64 * BLOCK:
            break
    return where.received - before


@pytest.mark.parametrize("path", ["/nothing", "/mcp"])
async def test_requests_that_wait_behind_another_are_not_read_ahead(path: str):
    async with listening(parrot()) as where:
        _, writer = await where.connect()
        writer.write(request(*headers_for("wait"), body=a_call("wait")))
        await until(lambda: where.app.provider.composition.running == 1)
        assert await held_back(where, writer, request(verb="GET", path=path) * 100) < 8 * BLOCK
        writer.transport.abort()


async def test_what_comes_behind_the_last_request_is_not_kept():
    async with listening(parrot()) as where:
        _, writer = await where.connect()
        writer.write(request(*headers_for("wait"), "connection: close", body=a_call("wait")))
        await until(lambda: where.app.provider.composition.running == 1)
        assert await held_back(where, writer, b"x" * 10_000) < 8 * BLOCK
        writer.transport.abort()


# -- WebSocket -------------------------------------------------------------------------------------------


def frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    """A frame of a client, up to 125 bytes. A mask of zeros leaves the data as it is."""
    return bytes([(0x80 if last else 0) | opcode, 0x80 | len(data)]) + bytes(4) + data


async def opened(where: Listening) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]:
    """A socket, and the server's end of it."""
    reader, writer = await where.connect()
    writer.write(request(*UPGRADE, verb="GET"))
    await reader.readuntil(BLANK)
    await until(lambda: len(where.app.sockets.open) == 1)
    (served,) = where.listener.state.connections
    return reader, writer, served


@pytest.mark.slow
@pytest.mark.parametrize("calls", [False, True])
async def test_who_pings_and_does_not_read_is_not_read_from(calls: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "MAX_CONTROL_FRAMES", 10**9)
    async with listening(parrot()) as where:
        _, writer, served = await opened(where)
        pings = frame(9, b"x" * 125) * 500
        piece = pings + (frame(1, b"{}") if calls else b"")
        sent, reading = 0, served.transport.is_reading
        async with asyncio.timeout(20):
            while (reading() or calls) and sent < 32_000_000:
                writer.write(piece)
                sent += len(piece)
                await asyncio.sleep(0)
        assert served.transport.get_write_buffer_size() < 2_000_000
        writer.transport.abort()


async def test_a_frame_that_claims_to_be_compressed_ends_the_socket(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "CLOSE_SECONDS", 0.1)
    async with listening(parrot()) as where:
        reader, writer, _ = await opened(where)
        writer.write(bytes([0x80 | 0x40 | 1, 0x80 | 2]) + bytes(4) + b"{}")
        assert (await reader.read())[:1] == b"\x88"
        await until(lambda: where.connections == 0)
        writer.close()


@for_each_row("kind", ["one frame", "fragments"])
async def test_a_message_that_is_too_large_ends_the_socket_before_it_is_there(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(websocket, "CLOSE_SECONDS", 0.1)
    async with listening(parrot(Limits(message=100_000))) as where:
        reader, writer, _ = await opened(where)
        if kind == "one frame":
            writer.write(bytes([0x81, 0x80 | 127]) + (10**12).to_bytes(8, "big") + bytes(4) + b"x" * 1000)
        else:
            writer.write(frame(1, last=False) + frame(0, b"x" * 100, last=False) * 1100)
        assert (await reader.read())[:1] == b"\x88"
        await until(lambda: where.connections == 0)
        writer.close()


async def test_what_comes_before_a_socket_is_open_is_bounded():
    gate = asyncio.Event()
    async with listening(parrot()) as where:
        serve = where.app.sockets.serve

        async def later(*parts: Any) -> None:
            await gate.wait()
            await serve(*parts)

        where.app.sockets.serve = later  # type: ignore[method-assign]
        _, writer = await where.connect()
        writer.write(request(*UPGRADE, verb="GET"))
        await until(lambda: any(isinstance(one, WebSocketConnection) for one in where.listener.state.connections))
        (served,) = where.listener.state.connections
        for _ in range(400):
            writer.write(frame(1, b"x" * 100) * 100)
            await asyncio.sleep(0)
        assert len(served._rest) < 10_000
        assert not served.transport.is_reading()
        gate.set()
        writer.transport.abort()


# -- nothing stays ---------------------------------------------------------------------------------------

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


async def _one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _ in range(3):
        writer.write(request(*headers_for(), body=a_call(text="fine"), path="/"))
        await reader.readuntil(b'"fine"')


async def _not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request(verb="GET", path="/nothing"))
    await reader.readuntil(b"Not found")


async def _pipelined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request(*headers_for("wait"), body=a_call("wait"), path="/") * 3)


async def _trailers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(chunked().replace(b"/mcp", b"/", 1) + b"x: y\r\n" * 10_000)


async def _half_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request("content-length: 1000", body=b"half", path="/"))


CONVERSATIONS: Iterable[Conversation] = (_one_answer, _not_found, _pipelined, _trailers, _half_a_body)


@pytest.mark.parametrize("converse", CONVERSATIONS, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("reset", [False, True])
async def test_nothing_of_a_closed_connection_waits_for_the_garbage_collector(
    converse: Conversation, reset: bool, monkeypatch: pytest.MonkeyPatch
):
    known = list[weakref.ref[Any]]()

    class KnownConnection(HttpConnection):
        def __init__(self, state: Any) -> None:
            super().__init__(state)
            known.append(weakref.ref(self))

    monkeypatch.setattr(network, "HttpConnection", KnownConnection)
    monkeypatch.setattr(connection, "FIRST_PROBE_SECONDS", 0.01)
    server = parrot()
    gc.disable()
    try:
        async with serve_on_loopback(server.asgi(), server.limits) as url:
            host, _, port = url.removeprefix("http://").strip("/").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await converse(reader, writer)
            await until(lambda: bool(known))
            if reset:
                writer.transport.abort()
            writer.close()
            await until(lambda: known[0]() is None)
    finally:
        gc.enable()
