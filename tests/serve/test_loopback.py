from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from defserve import Server
from defserve.client import RemoteServer
from defserve.errors import PeerError
from defserve.serve import network
from defserve.serve.session_opener import serve_on_loopback
from tests.at_address import at_address
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def calculator(waits: asyncio.Event | None = None) -> Server:
    server = Server("calculator")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def wait() -> None:
        assert waits is not None
        waits.set()
        await asyncio.Event().wait()

    return server


@for_each_row("scheme", ["http", "ws"])
async def test_an_app_is_reached_while_the_block_runs_and_not_after_it(scheme: str):
    async with at_address(calculator(), scheme) as url:
        assert url.startswith(f"{scheme}://127.0.0.1:")
        async with RemoteServer(url).connect(timeout=10) as client:
            assert await client.call("add", a=1, b=2) == 3
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2].rstrip("/"))))


@for_each_row("scheme", ["http", "ws"])
async def test_who_is_still_connected_at_the_end_is_cut_off(scheme: str):
    waits, before = asyncio.Event(), asyncio.all_tasks()
    server = calculator(waits)
    app = server.asgi()
    async with serve_on_loopback(app, server.limits, scheme=scheme) as url:
        connection = RemoteServer(url).connect(timeout=10)
        client = await connection.__aenter__()
        call = asyncio.ensure_future(client.call("wait"))
        await waits.wait()
        await app.provider.stop()
    async with asyncio.timeout(10):
        with pytest.raises(PeerError):
            await call
        await connection.__aexit__(None, None, None)
    assert asyncio.all_tasks() <= before


async def test_what_a_response_is_made_of_goes_out_without_waiting_for_the_peer(monkeypatch: pytest.MonkeyPatch):
    accepted: list[Any] = []
    monkeypatch.setattr(network, "HttpConnection", noting(network.HttpConnection, accepted))
    async with at_address(calculator()) as url, RemoteServer(url).connect(timeout=10) as client:
        await client.ping()
    assert accepted and all(accepted)


def noting(protocol: Any, delays: list[Any]) -> Any:
    class Noting(protocol):
        def connection_made(self, transport: Any) -> None:
            one = transport.get_extra_info("socket")
            delays.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            super().connection_made(transport)

    return Noting
