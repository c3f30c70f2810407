from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Client, ClientLink, connect_url
from defserve.errors import ToolError
from defserve.serve.lifespans import connect_in_memory
from tests.at_address import at_address
from tests.examples import local_web_fetch
from tests.forking.spawning import spawn

from .refusals import refused

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio

PAGES = {
    "/page": "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello from the web",
    "/inside": "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/latest/meta-data\r\n\r\n",
    "/gone": "HTTP/1.1 410 Gone\r\n\r\n",
}


@pytest.fixture
async def web() -> AsyncIterator[str]:
    """`host:port` of a web server of this machine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        writer.write(PAGES[path].replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def link_to(transport: str, authority: str) -> AsyncGenerator[ClientLink]:
    if transport == "stdio":
        here = Path(local_web_fetch.__file__)
        yield await spawn(here, [authority], env={"PYTHONPATH": ":".join([str(here.parents[2]), *sys.path])})
    elif transport == "memory":
        async with connect_in_memory(local_web_fetch.make(authority).composition) as link:
            yield link
    else:
        async with at_address(local_web_fetch.make(authority), {"websocket": "ws"}.get(transport, transport)) as url:
            yield await connect_url(url)


@pytest.mark.req("MGP-4.5")
async def test_a_page_is_fetched_and_no_redirect_leads_inside(
    transport: str, version: str, speaking: dict[str, Any], web: str
):
    async with link_to(transport, web) as link, Client(link, version=version, capabilities=speaking) as client:
        assert await client.call("fetch", url=f"http://{web}/page") == "hello from the web"
        assert await client.call("fetch", url=f"http://{web}/page", characters=5) == "hello"
        with pytest.raises(ToolError, match="answered 410"):
            await client.call("fetch", url=f"http://{web}/gone")
        body = await refused(client, "fetch", url=f"http://{web}/inside")
        assert "169.254.169.254" in body["violations"][0]


@pytest.mark.req("MGP-1.3")
async def test_addresses_of_ones_own_network_are_refused_however_they_are_written(
    connect_to: ConnectTo, speaking: dict[str, Any], web: str
):
    port = web.partition(":")[2]
    async with connect_to("web_fetch", capabilities=speaking) as client:
        (tool,) = await client.tools()
        assert tool["annotations"] == {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True}
        for url in (
            f"http://{web}/page",
            f"http://localhost:{port}/page",
            f"http://2130706433:{port}/page",
            f"http://[::ffff:127.0.0.1]:{port}/page",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "http://user:pass@example.com/",
        ):
            body = await refused(client, "fetch", url=url)
            assert body["code"] == (1010 if speaking else "VALIDATION_BLOCKED"), url
