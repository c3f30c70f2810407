"""A WebSocket of ours to somebody else's server: order, an end with its reason, and who does not listen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from defserve.errors import PeerGone, UsageError
from defserve.serve import outbound as websocket_client
from defserve.serve.address import CredentialsRequired, HttpRefusal
from defserve.serve.outbound import WebSocketClient, dial_websocket
from tests.raw import soon, until

pytestmark = pytest.mark.anyio


class Far:
    """What came over a connection, and whether it has ended."""

    def __init__(self) -> None:
        self.frames: list[bytes | None] = []
        self.ended = asyncio.Event()


@asynccontextmanager
async def connected(
    behave: Callable[[ServerConnection], Awaitable[None]],
) -> AsyncGenerator[tuple[WebSocketClient, Far]]:
    async with serve(behave, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client, far = await WebSocketClient.open(f"ws://127.0.0.1:{port}/", longest=1_000_000), Far()
        client.start(asyncio.get_running_loop(), far.frames.extend, far.ended.set)
        try:
            yield client, far
        finally:
            await client.aclose()


async def echo(socket: ServerConnection) -> None:
    async for frame in socket:
        await socket.send(frame)


async def test_messages_go_and_come_in_order_as_text():
    async with connected(echo) as (client, far):
        taken: list[int] = []
        for number in range(50):
            client.send(b"%d" % number, lambda number=number: taken.append(number))
        await client.wait_until_written(5)
        await until(lambda: len(far.frames) == 50)
        assert far.frames == [b"%d" % number for number in range(50)] and taken == list(range(50))


async def test_an_empty_message_is_not_sent_and_counts_as_taken():
    async with connected(echo) as (client, far):
        taken: list[int] = []
        client.send(b"", lambda: taken.append(1))
        client.send(b"x")
        await until(lambda: bool(far.frames))
        assert far.frames == [b"x"] and taken == [1]


async def test_the_end_says_why():
    async def leave(socket: ServerConnection) -> None:
        await socket.close(1008, "not you")

    async with connected(leave) as (client, far):
        await far.ended.wait()
        assert client.end == (1008, "not you") and client.closed


async def test_nothing_is_read_while_too_much_waits_to_be_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket_client, "BACKLOG_BYTES", 1_000)
    listening = asyncio.Event()

    async def talk(socket: ServerConnection) -> None:
        for _ in range(200):
            await socket.send("ask")
        await listening.wait()
        async for _ in socket:
            pass

    async with serve(talk, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client, read = await WebSocketClient.open(f"ws://127.0.0.1:{port}/", longest=1_000_000), list[bytes | None]()

        def answer(frames: list[bytes | None]) -> None:
            read.extend(frames)
            client.send(b"x" * 500_000)

        client.start(asyncio.get_running_loop(), answer, lambda: None)
        before = -1
        while before < len(read):  # until it reads no more
            before = len(read)
            await soon(lambda: len(read) > before)  # noqa: B023
        assert len(read) < 100
        listening.set()
        await until(lambda: len(read) == 200)
        await client.aclose()


async def test_nobody_there_is_gone_and_no_address_is_a_mistake():
    with pytest.raises(PeerGone):
        await WebSocketClient.open("ws://127.0.0.1:1/", longest=1)
    with pytest.raises(UsageError):
        await WebSocketClient.open("http://127.0.0.1/", longest=1)


async def test_a_redirect_is_not_followed_since_headers_would_go_with_it():
    seen: list[str] = []

    async def elsewhere(socket: ServerConnection) -> None:
        seen.append(str(socket.request))

    async with serve(elsewhere, "127.0.0.1", 0) as evil:
        there = f"ws://127.0.0.1:{next(iter(evil.sockets)).getsockname()[1]}/"

        def redirect(connection: ServerConnection, request: Request) -> Response:
            answer = connection.respond(302, "")
            answer.headers["Location"] = there
            return answer

        async with serve(elsewhere, "127.0.0.1", 0, process_request=redirect) as honest:
            url = f"ws://127.0.0.1:{next(iter(honest.sockets)).getsockname()[1]}/"
            with pytest.raises(HttpRefusal, match="HTTP 302"):
                await dial_websocket(url, token="t", headers={"x-api-key": "k"}, longest=1_000)
    assert seen == []


async def test_the_token_of_a_handshake_is_in_no_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)

    async def wait(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with serve(wait, "127.0.0.1", 0, logger=logging.Logger("the other side")) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
        socket, _ = await dial_websocket(url, token="s3cret", longest=1_000)
        await socket.close()
    assert "s3cret" not in caplog.text


async def test_challenges_in_two_headers_are_one_challenge_and_say_who_refused():
    async def never(socket: ServerConnection) -> None: ...

    def challenge(connection: ServerConnection, request: Request) -> Response:
        answer = connection.respond(401, "")
        answer.headers["WWW-Authenticate"] = 'DPoP algs="ES256"'
        answer.headers["WWW-Authenticate"] = 'Bearer resource_metadata="https://x.example"'
        return answer

    async with serve(never, "127.0.0.1", 0, process_request=challenge) as server:
        with pytest.raises(CredentialsRequired) as refused:
            await dial_websocket(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/", longest=1_000)
    assert "DPoP" in refused.value.headers["www-authenticate"] and "Bearer" in refused.value.headers["www-authenticate"]
    assert refused.value.peers == {"127.0.0.1"}
