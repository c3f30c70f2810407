"""Whoever sends much waits until its messages were taken: it is told so once for each, however the transport ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from defserve.core.extension import OutgoingMessage
from defserve.serve.connection import BulkQueue
from defserve.serve.http.exchange import UnreadMessages
from defserve.serve.http.streamable import route_message
from defserve.serve.lifespans import MemoryTransport
from defserve.serve.outbound import WebSocketClient
from defserve.serve.stdio import StdioTransport
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

LARGE = b"x" * 300_000  # more than a pipe holds


class Sender:
    """Counts how often it is told that a message was taken."""

    def __init__(self) -> None:
        self.told: dict[int, int] = {}

    def taken(self) -> Callable[[], None]:
        number = len(self.told)
        self.told[number] = 0

        def taken() -> None:
            self.told[number] += 1

        return taken

    @property
    def each_once(self) -> bool:
        return bool(self.told) and set(self.told.values()) == {1}


class Pipes:
    """A stdio transport on pipes of its own; `reader` and `writer` are the peer's ends."""

    def __init__(self) -> None:
        self.transport = StdioTransport(1_000_000)
        self.transport._input, self.writer = os.pipe()
        self.reader, self.transport._output = os.pipe()
        self.ended = asyncio.Event()
        self.transport.start(asyncio.get_running_loop(), lambda frames: None, self.ended.set)

    def close(self) -> None:
        self.transport.close()
        for descriptor in (self.writer, self.reader, self.transport._input, self.transport._output):
            try:
                os.close(descriptor)
            except OSError:
                pass


@for_each_row("ending", ["close", "peer leaves", "closed before"])
async def test_stdio(ending: str):
    pipes, sender = Pipes(), Sender()
    try:
        if ending == "closed before":
            pipes.transport.close()
        for _ in range(5):
            pipes.transport.send(LARGE, sender.taken())
        pipes.transport.flush()
        if ending == "peer leaves":
            os.close(pipes.reader)
            await pipes.ended.wait()
        else:
            pipes.transport.close()
        assert sender.each_once
    finally:
        pipes.close()


@for_each_row("ending", ["close", "peer leaves", "never read"])
async def test_memory(ending: str):
    transport, sender = MemoryTransport(1_000), Sender()
    transport.start(asyncio.get_running_loop(), lambda frames: None, transport.close)
    for _ in range(3):
        transport.send(b"x", sender.taken())
    assert await transport.peer.receive() == b"x"
    if ending == "close":
        transport.close()
        transport.send(b"x", sender.taken())
    await transport.peer.aclose()
    transport.send(b"x", sender.taken())
    assert sender.each_once


@for_each_row("ending", ["close", "peer leaves", "closed before"])
async def test_a_websocket_of_ours(ending: str):
    leave = asyncio.Event()

    async def peer(socket: ServerConnection) -> None:
        await leave.wait()

    sender = Sender()
    async with serve(peer, "127.0.0.1", 0, ping_interval=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client = await WebSocketClient.open(f"ws://127.0.0.1:{port}", longest=1_000)
        ended = asyncio.Event()
        client.start(asyncio.get_running_loop(), lambda frames: None, ended.set)
        if ending == "closed before":
            client.close()
        for _ in range(20):
            client.send(LARGE, sender.taken())
        await asyncio.sleep(0)
        if ending == "peer leaves":
            leave.set()
            await ended.wait()
        leave.set()
        await client.aclose()
    assert sender.each_once


async def test_an_outbox_that_nobody_reads():
    outbox, sender = UnreadMessages(), Sender()
    outbox.add_message(OutgoingMessage(b"x", None, taken=sender.taken()))
    outbox.add_message(OutgoingMessage(b"", None, taken=sender.taken()))
    outbox.add_message(OutgoingMessage(b"bulk", None, bulk=True, taken=sender.taken()))
    outbox.abandon()
    outbox.add_message(OutgoingMessage(b"x", None, taken=sender.taken()))
    assert sender.each_once and not outbox.unread


async def test_a_message_without_a_response_to_carry_it():
    sender = Sender()
    route_message(OutgoingMessage(b"x", None, taken=sender.taken()))
    assert sender.each_once


@pytest.mark.parametrize("ending", ["close", "the transport is closed"])
async def test_bulk_that_waits(ending: str):
    queue, sender, later = BulkQueue(), Sender(), list[Callable[[], None]]()
    is_closed = False

    def write(outgoing: Any, taken: Callable[[], None]) -> None:
        if is_closed:
            taken()
        else:
            later.append(taken)

    for _ in range(5_000):  # deeper than the stack
        queue.add_message(OutgoingMessage(b"x" * 10_000, None, bulk=True, taken=sender.taken()), write)
    queue.advance()
    if ending == "close":
        queue.close()
    is_closed = True
    for taken in later:
        taken()
    assert sender.each_once
