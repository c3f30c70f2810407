"""Sessions of strangers: so many for each address, and idle ones give way. Over real sockets, with small limits."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from defserve import Limits, Server
from defserve.auth.auth_options import Auth
from defserve.auth.principals import Principal
from defserve.serve.sockets import get_client_network
from tests.listening import Listening, listening, request
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ACCEPT = "accept: application/json, text/event-stream"
PROXY: dict[str, Any] = {"trusted_proxy": True}


def shop(**limits: Any) -> Server:
    server = Server("shop", "1", limits=Limits(**limits))

    @server.tool
    async def wait() -> str:
        await asyncio.sleep(60)
        return "late"

    return server


def message(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


OPENING = message("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "c", "version": "1"})


def coming_from(address: str | None) -> tuple[str, ...]:
    return (f"x-forwarded-for: {address}",) if address is not None else ()


async def opened(where: Listening, address: str | None = None, *more: str) -> str | None:
    """The id of a new session, or None if it was refused."""
    response = await where.ask(ACCEPT, *coming_from(address), *more, body=OPENING)
    assert response.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")), response
    return response.partition(b"mcp-session-id: ")[2].partition(b"\r\n")[0].decode() or None


async def is_open(where: Listening, id: str | None, address: str | None = None) -> bool:
    response = await where.ask(ACCEPT, f"mcp-session-id: {id}", *coming_from(address), body=message("ping"))
    assert response.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 404 ")), response
    return response.startswith(b"HTTP/1.1 200 ")


async def reading(where: Listening, id: str | None, address: str | None = None) -> asyncio.StreamWriter:
    """A client that reads the stream of its session."""
    reader, writer = await where.connect()
    writer.write(request(ACCEPT, f"mcp-session-id: {id}", *coming_from(address), verb="GET"))
    await reader.readuntil(b"text/event-stream")
    return writer


async def test_one_caller_cannot_keep_others_on_its_machine_from_a_session():
    async with listening(shop(sessions=30, sessions_per_address=10)) as where:
        flood = [await opened(where) for _ in range(50)]
        assert None not in flood
        id = await opened(where)
        assert await is_open(where, id)
        assert len(where.app.streamable.sessions) == 10


async def test_of_a_full_address_the_session_that_was_idle_for_longest_gives_way_and_no_other():
    async with listening(shop(sessions_per_address=3), **PROXY) as where:
        other = await opened(where, "192.0.2.9")
        first, second, third = [await opened(where, "192.0.2.1") for _ in range(3)]
        for id in (first, third, second):
            assert await is_open(where, id, "192.0.2.1")
        fourth = await opened(where, "192.0.2.1")
        assert not await is_open(where, first, "192.0.2.1")
        assert await is_open(where, third, "192.0.2.1") and await is_open(where, second, "192.0.2.1")
        assert await is_open(where, fourth, "192.0.2.1") and await is_open(where, other, "192.0.2.9")


async def test_a_session_that_was_never_used_gives_way_before_one_that_was():
    async with listening(shop(sessions_per_address=2)) as where:
        used = await opened(where)
        assert await is_open(where, used)
        for _ in range(5):
            assert await opened(where) is not None
        assert await is_open(where, used)


async def test_a_session_with_a_running_call_or_an_open_stream_stays():
    async with listening(shop(sessions_per_address=2), **PROXY) as where:
        listens, calls = await opened(where, "192.0.2.1"), await opened(where, "192.0.2.1")
        stream = await reading(where, listens, "192.0.2.1")
        _, call = await where.connect()
        about = ACCEPT, f"mcp-session-id: {calls}", *coming_from("192.0.2.1")
        call.write(request(*about, body=message("tools/call", name="wait", arguments={})))
        await until(lambda: where.app.provider.composition.running == 1)  # type: ignore[attr-defined]
        assert await opened(where, "192.0.2.1") is None
        assert await opened(where, "192.0.2.2") is not None
        for writer in (stream, call):
            writer.transport.abort()


async def test_the_addresses_of_one_ipv6_network_count_as_one():
    async with listening(shop(sessions_per_address=2), **PROXY) as where:
        writers = list[asyncio.StreamWriter]()
        for address in ("2001:db8::1", "2001:db8::2"):
            writers.append(await reading(where, await opened(where, address), address))
        assert await opened(where, "2001:db8::ffff") is None
        assert await opened(where, "2001:db8:0:1::1") is not None
        for writer in writers:
            writer.transport.abort()


async def test_when_the_table_is_full_the_fullest_address_gives_one():
    async with listening(shop(sessions=6), **PROXY) as where:
        many = [await opened(where, "192.0.2.1") for _ in range(4)]
        few = [await opened(where, "192.0.2.2") for _ in range(2)]
        assert await opened(where, "192.0.2.3") is not None
        assert [await is_open(where, id, "192.0.2.1") for id in many].count(False) == 1
        assert all([await is_open(where, id, "192.0.2.2") for id in few])


class Known:
    """Takes one token for a principal."""

    async def verify(self, token: str) -> Principal | None:
        return Principal("known") if token == "secret" else None


async def test_idle_strangers_give_way_to_everybody_who_is_known():
    server = shop(sessions=5, sessions_per_principal=5)
    async with listening(server, **PROXY) as where:
        strangers = [await opened(where, f"192.0.2.{n}") for n in range(5)]
        where.app.auth = Auth(Known(), resource="https://shop.example/mcp")  # type: ignore[arg-type]
        for _ in range(5):
            assert await opened(where, None, "authorization: Bearer secret") is not None
        # Strangers never take the place of somebody who is known.
        assert await opened(where, None, "authorization: Bearer secret") is None
        where.app.auth = None
        assert await opened(where, "192.0.2.77") is None
        assert not await is_open(where, strangers[0], "192.0.2.0")


async def test_sockets_count_too():
    async with listening(shop(sessions_per_address=2), **PROXY) as where:
        url = f"ws://{where.authority}/mcp"
        async with (
            connect(url, proxy=None, additional_headers={"x-forwarded-for": "192.0.2.1"}) as first,
            connect(url, proxy=None, additional_headers={"x-forwarded-for": "192.0.2.1"}) as second,
        ):
            await until(lambda: len(where.app.sockets.open) == 2)
            assert await opened(where, "192.0.2.2") is not None
            assert len(where.app.sockets.open) == 2
            assert await opened(where, "192.0.2.1") is not None
            with suppress(ConnectionClosed):
                await first.recv()
            assert (first.close_code, second.close_code) == (1013, None)


async def test_the_streams_of_old_clients_count_too():
    async with listening(shop(sessions_per_address=1), legacy_sse=True, **PROXY) as where:
        reader, writer = await where.connect()
        old = request("accept: text/event-stream", *coming_from("192.0.2.1"), verb="GET", path="/sse")
        writer.write(old)
        await reader.readuntil(b"event: endpoint")
        assert await opened(where, "192.0.2.2") is not None
        assert where.app.legacy.feeds
        assert await opened(where, "192.0.2.1") is not None
        await until(lambda: not where.app.legacy.feeds)
        writer.transport.abort()


@for_each_row(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::1", "::/64"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
        ("", ""),
        ("x" * 100_000, "x" * 64),
    ],
)
def test_the_network_of_an_address(address: str, network: str):
    assert get_client_network(address) == network
