"""How long a peer waits for the end of a connection, when nothing more is to come: never for one of our timers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from defserve import Limits, Server
from defserve.serve.http1.connection import CLOSE_LINGER_SECONDS, FIRST_PROBE_SECONDS, REFUSAL_LINGER_SECONDS
from defserve.serve.http1.websocket import CLOSE_SECONDS
from tests.listening import UPGRADE, Listening, listening, request
from tests.raw import STATELESS
from tests.rows import for_each_row
from tests.waiting import until
from tests.walks import call_body

pytestmark = pytest.mark.anyio

BOUND = 0.15
"""Seconds. Well below every timer of a connection, and many times what the machine needs."""

ABOUT = (
    f"mcp-protocol-version: {STATELESS}",
    "mcp-method: tools/call",
    "mcp-name: add",
    "accept: application/json, text/event-stream",
)
LAST = "connection: close"
MASK = b"\0\0\0\0"
CLOSE_FRAME = b"\x88\x82" + MASK + b"\x03\xe8"
HEALTH = request(verb="GET", path="/healthz")


def a_call(*lines: str) -> bytes:
    return request(*ABOUT, *lines, body=call_body(1))


def upgrade(*lines: str) -> bytes:
    said = {line.partition(":")[0] for line in lines}
    usual = [line for line in UPGRADE if line.partition(":")[0] not in said]
    return request(*usual, *lines, verb="GET")


# What the peer sends, and what the first bytes of the response are. Then it waits for the end.
SENT: dict[str, tuple[bytes, bytes]] = {
    "a last request": (a_call(LAST), b"HTTP/1.1 200"),
    "a last GET": (request(LAST, verb="GET", path="/healthz"), b"HTTP/1.1 200"),
    "a last HEAD": (request(LAST, verb="HEAD"), b"HTTP/1.1 4"),
    "a last request behind another": (a_call() + a_call(LAST), b"HTTP/1.1 200"),
    "HTTP/1.0": (HEALTH.replace(b"HTTP/1.1", b"HTTP/1.0"), b"HTTP/1.1 200"),
    "a version of HTTP that is not served": (HEALTH.replace(b"HTTP/1.1", b"HTTP/3.0"), b"HTTP/1.1 505"),
    "no head at all": (b"\x16\x03\x01 hello\r\n\r\n", b"HTTP/1.1 400"),
    "a head that is too long": (b"GET / HTTP/1.1\r\nx: " + b"y" * 80_000, b"HTTP/1.1 431"),
    "a body of two lengths": (request("content-length: 5", "content-length: 6", verb="POST"), b"HTTP/1.1 400"),
    "a chunk without a size": (
        request(*ABOUT, "content-type: application/json", "transfer-encoding: chunked") + b"?\r\n",
        b"HTTP/1.1 400",
    ),
    "a last request whose body is refused": (request(LAST, "content-length: 9000000"), b"HTTP/1.1 4"),
    "an upgrade by POST": (
        request("connection: upgrade", "upgrade: websocket", body=b"{}"),
        b"HTTP/1.1 400",
    ),
    "an upgrade without a key": (upgrade("sec-websocket-key: x"), b"HTTP/1.1 400"),
    "an upgrade to another version": (upgrade("sec-websocket-version: 9"), b"HTTP/1.1 400"),
    "an upgrade at another path": (upgrade().replace(b"/mcp", b"/else"), b"HTTP/1.1 404"),
    "an upgrade from another site": (upgrade("origin: https://evil.example"), b"HTTP/1.1 403"),
    "a WebSocket that it closes": (upgrade() + CLOSE_FRAME, b"HTTP/1.1 101"),
    "a WebSocket with a frame that is no frame": (upgrade() + b"\xff\xff" + MASK, b"HTTP/1.1 101"),
    "a WebSocket with a text that is none": (upgrade() + b"\x81\x81" + MASK + b"\xff", b"HTTP/1.1 101"),
}

# What the peer sends before it closes its side.
HALF_CLOSED = {
    "nothing": b"",
    "half a head": HEALTH[:20],
    "half a body": a_call()[:-5],
    "a request": a_call(),
    "two requests": a_call() + a_call(),
    "a request and half a head": a_call() + HEALTH[:20],
    "a request and half a body": a_call() + a_call()[:-5],
}


@asynccontextmanager
async def tools() -> AsyncGenerator[Listening]:
    server = Server("tools", "1", limits=Limits(message=100_000))

    @server.tool
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    async with listening(server) as where:
        await where.ask(*ABOUT, body=call_body(0))
        yield where


async def until_end(where: Listening, sent: bytes, *, half_closes: bool = False) -> tuple[bytes, float]:
    """What the peer got, and how long it waited for the end. It answers the close of a WebSocket, and nothing else."""
    reader, writer = await where.connect()
    began, got, has_answered = time.monotonic(), b"", CLOSE_FRAME in sent
    writer.write(sent)
    if half_closes:
        writer.write_eof()
    while part := await reader.read(65536):
        got += part
        if got.startswith(b"HTTP/1.1 101") and b"\r\n\r\n\x88" in got and not has_answered:
            has_answered = True
            writer.write(CLOSE_FRAME)
    waited = time.monotonic() - began
    writer.close()
    return got, waited


def test_the_bound_is_below_every_timer():
    assert min(CLOSE_LINGER_SECONDS, FIRST_PROBE_SECONDS, REFUSAL_LINGER_SECONDS, CLOSE_SECONDS) > 1.5 * BOUND


@for_each_row("name", SENT)
async def test_no_peer_waits_for_a_timer_to_see_the_end(name: str):
    sent, begins = SENT[name]
    async with tools() as where:
        # In the best of three tries: the machine may be busy with something else.
        waits: list[float] = []
        for _ in range(3):
            got, waited = await until_end(where, sent)
            assert got.startswith(begins), got[:200]
            waits.append(waited)
            if waited < BOUND:
                break
        assert min(waits) < BOUND
        await until(lambda: not where.connections)


@for_each_row("name", HALF_CLOSED)
async def test_no_peer_that_has_closed_its_side_waits_for_a_timer(name: str):
    sent = HALF_CLOSED[name]
    async with tools() as where:
        waits: list[float] = []
        for _ in range(3):
            got, waited = await until_end(where, sent, half_closes=True)
            assert got.count(b"HTTP/1.1 200") == sent.count(call_body(1))
            waits.append(waited)
            if waited < BOUND:
                break
        assert min(waits) < BOUND
        await until(lambda: not where.connections)
