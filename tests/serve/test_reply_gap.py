"""A reply that follows a notification of its call leaves a millisecond later, in a write of its own.

Clients in TypeScript handle the replies of one read before its notifications, and so lose the last progress.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Context, Server
from defserve.errors import ToolError
from defserve.serve.connection import Connection
from defserve.serve.lifespans import close_connection, drain_connection, enter_lifespans
from tests import asgi, clock
from tests.raw import HANDSHAKE, PREFIX, STATELESS, turns, until
from tests.rows import for_each_row

VERSIONS = (HANDSHAKE[-1], STATELESS)
MILLISECOND = 0.001


def shop() -> Server:
    server = Server("shop", "1")

    @server.tool
    async def at_once(ctx: Context) -> str:
        ctx.progress(1, 1)
        return "done"

    @server.tool
    async def after_a_wait(ctx: Context) -> str:
        await asyncio.sleep(0.5)
        ctx.progress(1, 1)
        return "done"

    @server.tool
    async def blocking(ctx: Context) -> str:
        ctx.progress(1, 1)
        asyncio.get_running_loop().now += 0.5  # type: ignore[attr-defined]
        return "done"

    @server.tool
    async def failing(ctx: Context) -> str:
        ctx.progress(1, 1)
        raise ToolError("no")

    @server.tool
    async def logging(ctx: Context) -> str:
        ctx.log.warning("almost")
        return "done"

    @server.tool
    async def long_ago(ctx: Context) -> str:
        ctx.progress(1, 1)
        await asyncio.sleep(0.25)
        return "done"

    @server.tool
    async def silent() -> str:
        return "done"

    return server


class Pipe:
    """The server's end of a pipe: every write, and when it happened."""

    queued = 0

    def __init__(self) -> None:
        self.closed = False
        self.writes: list[tuple[float, list[dict[str, Any]]]] = []
        self._queue: list[tuple[bytes, Callable[[], None] | None]] = []

    def start(self, *_: Any) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        self._queue.append((message, taken))

    def flush(self) -> None:
        queue, self._queue = self._queue, []
        if queue and not self.closed:
            self.writes.append((asyncio.get_running_loop().time(), [json.loads(data) for data, _ in queue]))
        for _, taken in queue:
            if taken is not None:
                taken()

    @property
    def replies(self) -> dict[Any, float]:
        return {message["id"]: at for at, messages in self.writes for message in messages if "id" in message}

    async def until_replied(self, *ids: int) -> None:
        await until(lambda: set(ids) <= set(self.replies))


def call(tool: str, id: int = 1) -> bytes:
    meta = {
        "progressToken": id,
        PREFIX + "protocolVersion": STATELESS,
        PREFIX + "clientCapabilities": {},
        PREFIX + "logLevel": "info",
    }
    params = {"name": tool, "arguments": {}, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, Pipe]]:
    composition, pipe = shop().composition, Pipe()
    async with enter_lifespans(composition) as engine:
        connection = Connection(composition, pipe)
        connection.attach(engine)
        yield connection, pipe
        await close_connection(connection, 1)


@for_each_row("tool", ["at_once", "after_a_wait", "blocking", "failing", "logging"])
def test_in_a_pipe_the_reply_is_written_a_millisecond_after_the_notification(tool: str):
    async def scene() -> None:
        async with connected() as (connection, pipe):
            connection.feed_frames([call(tool)])
            await pipe.until_replied(1)
            (first, notices), (second, replies) = pipe.writes
            assert "method" in notices[0] and [reply["id"] for reply in replies] == [1]
            assert MILLISECOND <= second - first <= 3 * MILLISECOND

    clock.run(scene())


def test_only_the_call_that_has_just_notified_waits():
    async def scene() -> None:
        async with connected() as (connection, pipe):
            began = asyncio.get_running_loop().time()
            connection.feed_frames([call("at_once", 1), call("silent", 2), call("long_ago", 3)])
            await pipe.until_replied(1, 2, 3)
            assert pipe.replies[2] == began
            assert pipe.replies[1] >= began + MILLISECOND
            assert pipe.replies[3] == pytest.approx(began + 0.25, abs=MILLISECOND / 2)

    clock.run(scene())


def test_a_drain_does_not_lose_the_reply_that_waits():
    async def scene() -> None:
        async with connected() as (connection, pipe):
            connection.feed_frames([call("at_once")])
            await asyncio.sleep(0)
            assert not pipe.replies
            await drain_connection(connection, 1)
            connection.close()
            assert set(pipe.replies) == {1}

    clock.run(scene())


def test_a_cancellation_ends_the_wait_without_a_reply():
    async def scene() -> None:
        async with connected() as (connection, pipe):
            began = asyncio.get_running_loop().time()
            connection.feed_frames([call("at_once")])
            (session,) = connection.sessions.values()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            session.cancel(1)
            await turns()
            assert not session.in_flight
            assert asyncio.get_running_loop().time() == began
            assert not pipe.replies

    clock.run(scene())


class TimedExchange(asgi.Exchange):
    """An exchange that knows when each of its messages was written."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.times: list[float] = []

    async def send(self, message: dict[str, Any]) -> None:
        before = len(self.messages)
        await super().send(message)
        self.times += [asyncio.get_running_loop().time()] * (len(self.messages) - before)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tool", ["at_once", "after_a_wait", "failing"])
def test_on_a_stream_of_events_too(tool: str, version: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asgi, "Exchange", TimedExchange)

    async def scene() -> None:
        async with asgi.peer(shop(), version) as peer:
            exchange = peer.begin_call(tool, _meta={"progressToken": 1})
            await exchange.ended()
            assert ["id" in message for message in exchange.messages] == [False, True]
            first, second = exchange.times  # type: ignore[attr-defined]
            assert MILLISECOND <= second - first <= 3 * MILLISECOND

    clock.run(scene())


def test_on_a_web_socket_too():
    async def scene() -> None:
        sent: list[tuple[float, dict[str, Any]]] = []
        frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "websocket.send":
                sent.append((asyncio.get_running_loop().time(), json.loads(message["text"])))

        async with asgi.living(shop().asgi()) as app:
            scope = {"type": "websocket", "path": "/", "raw_path": b"/", "headers": [(b"host", b"localhost")]}
            frames.put_nowait({"type": "websocket.connect"})
            frames.put_nowait({"type": "websocket.receive", "text": call("at_once").decode()})
            socket = asyncio.ensure_future(app({**scope, "client": ("127.0.0.1", 1), "state": {}}, frames.get, send))
            await until(lambda: len(sent) == 2)
            frames.put_nowait({"type": "websocket.disconnect"})
            await socket
        (first, notice), (second, reply) = sent
        assert (notice["method"], reply["id"]) == ("notifications/progress", 1)
        assert MILLISECOND <= second - first <= 3 * MILLISECOND

    clock.run(scene())
