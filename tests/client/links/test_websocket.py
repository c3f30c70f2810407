from __future__ import annotations

import asyncio
import base64
import builtins
import hashlib
import http
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from defserve.client import Client, WebSocketLink
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.serve import outbound
from tests.client.web import Exchange, RenewingAuthorizer, web

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(handle: Callable[[ServerConnection], Awaitable[None]], **options: Any) -> AsyncIterator[str]:
    async with serve(handle, "127.0.0.1", 0, **{"subprotocols": ["mcp"], **options}) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/mcp"


async def echo(socket: ServerConnection) -> None:
    """A server of the handshake era that answers with the params it was asked with, and how they came."""
    async for frame in socket:
        message = json.loads(frame)
        result = {**message.get("params", {}), "capabilities": {}, "text": isinstance(frame, str)}
        if "id" in message:
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))


async def test_a_message_is_a_text_frame_and_the_subprotocol_is_mcp():
    agreed: list[Any] = []

    async def handle(socket: ServerConnection) -> None:
        agreed.append((socket.subprotocol, socket.request and socket.request.headers.get("Authorization")))
        await echo(socket)

    async with serving(handle) as url:
        link = await WebSocketLink.connect(url, token="t0ken")
        async with Client(link, version="2025-11-25", timeout=30) as client:
            results = await asyncio.gather(*(client.request("x/y", {"n": n}) for n in range(20)))
    assert [(result["n"], result["text"]) for result in results] == [(n, True) for n in range(20)]
    assert agreed == [("mcp", "Bearer t0ken")]


async def test_a_server_that_closes_says_why():
    async def handle(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.close(1001, "going away for good")

    async with serving(handle) as url:
        with pytest.raises(PeerGone, match="1001 going away for good"):
            async with Client(await WebSocketLink.connect(url), version="2025-11-25", timeout=30):
                pytest.fail("nobody answered")


async def test_a_message_that_is_too_long_ends_the_connection():
    async def handle(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send("x" * 2_000)
        await socket.wait_closed()

    async with serving(handle) as url:
        link = await WebSocketLink.connect(url, longest=1_000)
        await link.send(b"{}")
        with pytest.raises(PeerGone, match="1009"):
            await link.receive()
        with pytest.raises(PeerGone, match="1009"):
            await link.send(b"{}")
        await link.aclose()


async def test_a_server_that_answers_no_ping_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbound, "PING_SECONDS", 0.02)
    monkeypatch.setattr(outbound, "DIAL_CLOSE_SECONDS", 0.02)
    over = asyncio.Event()

    async def deaf(exchange: Exchange) -> None:
        key = exchange.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
        lines = ["HTTP/1.1 101 Yes", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
        await exchange.write("\r\n".join(lines) + "\r\n\r\n")
        await over.wait()

    async with web(deaf) as server:
        link = await WebSocketLink.connect(server.url.replace("http", "ws"))
        with pytest.raises(PeerGone, match="ping timeout"):
            await link.receive()
        await link.aclose()
        over.set()


async def test_refused_credentials_are_told_with_the_challenge():
    def refuse(socket: ServerConnection, request: Any) -> Any:
        response = socket.respond(http.HTTPStatus.UNAUTHORIZED, "no")
        response.headers["WWW-Authenticate"] = 'Bearer scope="read"'
        return response

    async with serving(echo, process_request=refuse) as url:
        with pytest.raises(PeerError, match="HTTP 401") as refused:
            await WebSocketLink.connect(url)
    assert refused.value.data == {"status": 401, "challenge": 'Bearer scope="read"'}


async def test_a_server_that_has_no_websocket_there_is_told():
    def refuse(socket: ServerConnection, request: Any) -> Any:
        return socket.respond(http.HTTPStatus.NOT_FOUND, "no")

    async with serving(echo, process_request=refuse) as url:
        with pytest.raises(PeerError, match="answered HTTP 404 Not Found"):
            await WebSocketLink.connect(url)


async def test_nobody_at_the_address_is_told_without_its_secrets():
    async with serving(echo) as url:
        address = url.removeprefix("ws://")
    with pytest.raises(PeerGone) as gone:
        await WebSocketLink.connect(f"ws://user:hunter2@{address}?key=hunter2")
    assert f"{address} cannot be reached" in str(gone.value)
    assert "hunter2" not in str(gone.value)


async def test_an_address_that_cannot_be_is_told():
    for url in ("ws://127.0.0.1:99999/", "ws://127.0.0.1:x/", "ws://["):
        with pytest.raises(UsageError, match=r"is not a ws\(s\) address"):
            await WebSocketLink.connect(url)
    for host in ("a..example", f"{'a' * 70}.example"):
        with pytest.raises(PeerGone, match="cannot be reached"):
            await WebSocketLink.connect(f"ws://{host}/")


@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:1", "ftp://me:hunter2@proxy", "http://127.0.0.1:99999", "http://[proxy"], ids=str
)
async def test_a_proxy_of_the_environment_that_cannot_be_used_is_told(proxy: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(PeerGone, match="ws://192.0.2.1:9/mcp cannot be reached") as gone:
        await WebSocketLink.connect("ws://192.0.2.1:9/mcp")
    assert "hunter2" not in str(gone.value)


async def test_closing_twice_is_harmless():
    async with serving(echo) as url:
        link = await WebSocketLink.connect(url)
        await link.aclose()
        await link.aclose()
        with pytest.raises(PeerGone):
            await link.receive()


async def test_an_end_that_waits_for_an_issuer_and_is_called_off_closes_the_connection():
    async with serving(echo) as url:
        authorizer = RenewingAuthorizer()
        there: Any = authorizer
        link = await WebSocketLink.connect(url.replace("ws://127.0.0.1", "WS://LOCALHOST"), authorizer=there)
        # What a proof of possession signs is the address as it is asked for.
        assert authorizer.urls == [url.replace("ws://127.0.0.1", "http://localhost")]
        ending = asyncio.create_task(link.aclose())
        await authorizer.closing.wait()
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        with pytest.raises(PeerGone):
            await link.receive()


async def test_without_websockets_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    known = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "websockets":
            raise ImportError(name)
        return known(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError) as usage:
        await WebSocketLink.connect("ws://127.0.0.1:1/")
    assert 'pip install "defserve[http]"' in str(usage.value)
