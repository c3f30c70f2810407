"""A connection on real descriptors: in which turn of the loop calls are answered, and in how many writes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Context, Server
from defserve.core.extension import CarriedMessage
from defserve.core.session import Session
from defserve.serve.connection import Connection
from defserve.serve.lifespans import close_connection, enter_lifespans
from defserve.serve.stdio import StdioTransport
from tests.raw import PREFIX, STATELESS, until

META: dict[str, Any] = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}


def line(id: int, tool: str, **arguments: Any) -> bytes:
    params: dict[str, Any] = {"name": tool, "arguments": arguments, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode() + b"\n"


def ids_in(data: bytes) -> list[int]:
    return [json.loads(reply)["id"] for reply in data.splitlines()]


def a_server() -> Server:
    server = Server("turns", "1")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @server.tool
    async def waits() -> str:
        """Wait for a turn."""
        me = asyncio.current_task()
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        assert asyncio.current_task() is me
        return "waited"

    return server


@asynccontextmanager
async def peer_of(server: Server) -> AsyncGenerator[socket.socket]:
    """The other end. Each of its messages is one write of the server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    transport: Any = StdioTransport(server.limits.message)
    transport._input, transport._output = os.dup(ours.fileno()), ours.fileno()
    loop = asyncio.get_running_loop()
    async with enter_lifespans(server.composition) as engine:
        connection = Connection(server.composition, transport)
        connection.attach(engine)
        transport.start(loop, connection.feed_frames, connection.close)
        yield theirs
        connection.close()
    os.close(transport._input)
    ours.close()
    theirs.close()


async def asked(peer: socket.socket, request: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(peer, request)
    return await loop.sock_recv(peer, 1 << 16)


def test_a_call_that_never_waits_is_answered_in_the_turn_in_which_it_came() -> None:
    async def main() -> None:
        async with peer_of(a_server()) as peer:
            for id in range(4):
                await asked(peer, line(id, "add", a=1, b=2))
            peer.send(line(9, "add", a=1, b=2))
            await asyncio.sleep(0)  # in this turn the request is found
            await asyncio.sleep(0)
            assert ids_in(peer.recv(1 << 16)) == [9]

    asyncio.run(main())


def test_replies_to_the_calls_of_one_read_leave_in_one_write() -> None:
    async def main() -> None:
        async with peer_of(a_server()) as peer:
            for first in (0, 100, 200):
                ids = list(range(first, first + 32))
                replies = await asked(peer, b"".join(line(id, "add", a=1, b=2) for id in ids))
                assert ids_in(replies) == ids

    asyncio.run(main())


def test_the_last_answer_of_a_read_leaves_before_its_call_is_tidied_up(monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[bool] = []

    def write(descriptor: int, data: bytes, write: Callable[[int, bytes], int] = os.write) -> int:
        writers.append(asyncio.current_task() is not None)
        return write(descriptor, data)

    async def main() -> None:
        async with peer_of(a_server()) as peer:
            for id in range(4):
                await asked(peer, line(id, "add", a=1, b=2))
            monkeypatch.setattr(os, "write", write)
            await asked(peer, line(7, "add", a=1, b=2))
            await asked(peer, line(8, "add", a=1, b=2) + line(9, "add", a=1, b=2))
            monkeypatch.undo()

    asyncio.run(main())
    assert writers == [True, True]


def test_a_call_that_waits_does_not_hold_up_those_that_came_with_it() -> None:
    async def main() -> None:
        async with peer_of(a_server()) as peer:
            for first in (0, 10, 20):
                request = line(first, "add", a=1, b=2) + line(first + 1, "waits") + line(first + 2, "add", a=1, b=2)
                found = ids_in(await asked(peer, request))
                while len(found) < 3:
                    found += ids_in(await asyncio.get_running_loop().sock_recv(peer, 1 << 16))
                assert sorted(found) == [first, first + 1, first + 2]
                assert found.index(first) < found.index(first + 1)

    asyncio.run(main())


# -- peers that share a pipe -----------------------------------------------------------------------------


class Sink:
    """A transport on which nothing is read, and everything is taken at once."""

    closed, queued = False, 0

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        if taken is not None:
            taken()

    def flush(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    def start(self, loop: Any, received: Any, ended: Any) -> None: ...


class Unread(Sink):
    """A transport whose peer takes nothing."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        self.sent.append(message)
        self.queued += len(message)


class Guests:
    """A carrier whose frames are the name of a peer, and its message. Without one it has left."""

    def unwrap(self, frame: bytes) -> list[CarriedMessage]:
        peer, _, message = frame.partition(b" ")
        return [CarriedMessage(peer.decode(), message or None)]

    def wrap(self, data: bytes, peer: str, answers: object | None) -> bytes:
        return data

    def handle_event(self, session: Session, event: object) -> None:
        session.close()


@pytest.mark.anyio
async def test_for_a_peer_that_does_not_read_only_answers_and_questions_wait() -> None:
    server, transport = a_server(), Unread()

    @server.tool
    async def chatty(ctx: Context) -> str:
        """Log more than any pipe holds."""
        for _ in range(100):
            ctx.log.info("x" * 99_000)
        return "said"

    async with enter_lifespans(server.composition) as engine:
        connection = Connection(server.composition, transport)
        connection.attach(engine)
        params = {"name": "chatty", "arguments": {}, "_meta": {**META, PREFIX + "logLevel": "info"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        connection.feed_frames([json.dumps(call).encode()])
        await until(lambda: not connection.calls())
    assert 30 < len(transport.sent) < 50
    assert json.loads(transport.sent[-1])["result"]["content"][0]["text"] == "said"


@pytest.mark.anyio
async def test_nothing_is_kept_of_peers_that_have_left() -> None:
    server = a_server()
    async with enter_lifespans(server.composition) as engine:
        connection = Connection(server.composition, Sink(), carrier=Guests())
        connection.attach(engine)
        for number in range(100):
            connection.feed_frames([b"guest%d " % number + line(1, "add", a=1, b=2), b"guest%d" % number])
        await until(lambda: not connection.calls())
        connection.feed_frames([b"last"])
        assert not connection.sessions and not server.composition.sessions
        assert not connection._ending  # pyright: ignore[reportPrivateUsage]


@pytest.mark.anyio
async def test_the_end_of_a_connection_waits_for_the_calls_of_a_peer_that_has_left() -> None:
    server, began, cleaned_up = Server("turns", "1"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def tidy() -> None:
        """Clean up after a while."""
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            cleaned_up.set()

    async with enter_lifespans(server.composition) as engine:
        connection = Connection(server.composition, Sink(), carrier=Guests())
        connection.attach(engine)
        connection.feed_frames([b"guest " + line(1, "tidy")])
        await began.wait()
        connection.feed_frames([b"guest"])
        assert not connection.sessions
        await close_connection(connection, 10)
        assert cleaned_up.is_set()
