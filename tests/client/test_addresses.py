from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from websockets.asyncio.server import ServerConnection, serve

from defserve.client import HttpLink, RemoteServer, WebSocketLink, connect_url
from defserve.client.targets import is_server_address
from defserve.errors import UsageError
from defserve.testing.client import SyncClient
from tests.client.pretend import STATELESS
from tests.client.web import Exchange, web
from tests.rows import for_each_row


@pytest.mark.anyio
async def test_an_address_picks_its_link():
    async def wait(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with serve(wait, "127.0.0.1", 0) as server:
        link = await connect_url(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/")
        assert isinstance(link, WebSocketLink)
        await link.aclose()
    link = await connect_url("HTTP://127.0.0.1:1/mcp")
    assert isinstance(link, HttpLink)
    await link.aclose()


@pytest.mark.anyio
@for_each_row("url", ["ftp://example.org", "unix:///tmp/x", "calc.py", "http://[/mcp", "http://[x/sse", "ws://["])
async def test_an_address_of_another_kind_is_refused(url: str):
    with pytest.raises(UsageError, match="use http://, https://, ws:// or wss://"):
        await connect_url(url)


@pytest.mark.anyio
async def test_a_connection_goes_to_the_addresses_that_were_resolved_and_to_no_others():
    asked = list[tuple[str, int]]()

    async def handle(exchange: Exchange) -> None:
        await exchange.answer(STATELESS["server/discover"])

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["127.0.0.2", "127.0.0.1"] if host == "wiki.example.org" else []

    async with web(handle) as server:
        port = int(server.url.split(":")[2].partition("/")[0])
        for host, is_reached in (("wiki.example.org", True), ("other.example.org", False)):
            link = await connect_url(f"http://{host}:{port}/mcp", resolve=resolve)
            with anyio.fail_after(20):
                await link.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
                assert isinstance(await link.receive(), bytes) is is_reached
            await link.aclose()
        assert [exchange.headers["host"] for exchange in server.seen] == [f"wiki.example.org:{port}"]
    assert asked == [("wiki.example.org", port), ("other.example.org", port)]
    # Nobody judges the addresses of a WebSocket, so there is none.
    with pytest.raises(UsageError):
        await connect_url("ws://127.0.0.1:1/", resolve=resolve)


def test_an_address_is_told_from_code():
    assert is_server_address("https://example.org/mcp")
    assert not any(map(is_server_address, ("server.py:mcp", "C:\\server.py", "shop.tools:server")))


def test_a_remote_server_is_tested_like_a_local_one():
    async def handle(exchange: Exchange) -> None:
        discover = STATELESS["server/discover"]
        result = discover if exchange.method == "server/discover" else {"content": [{"type": "text", "text": "hi"}]}
        await exchange.answer(result)

    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(web(handle)) as server:
        with SyncClient(RemoteServer(server.url, token="t0ken"), "stateless") as client:
            assert client.call_raw("greet")["content"][0]["text"] == "hi"
        assert {exchange.headers["authorization"] for exchange in server.seen} == {"Bearer t0ken"}
