"""The requests of a peer, when it does not read the answers."""

from __future__ import annotations

import asyncio

import pytest

from defserve.client import exchange
from defserve.client.client import Client
from defserve.client.exchange import MAX_PEER_REQUESTS
from defserve.errors import PeerTimeout
from tests.client.pretend import SILENCE, PretendServer
from tests.waiting import until


class Deaf(PretendServer):
    """Takes no answers as long as it is deaf."""

    def __init__(self) -> None:
        super().__init__({"tools/call": {"content": [{"type": "text", "text": "fine"}]}})
        self.hears, self.offered = asyncio.Event(), 0

    async def send(self, message: bytes) -> None:
        if b'"method"' not in message:
            self.offered += 1
            await self.hears.wait()
        await super().send(message)


@pytest.mark.anyio
async def test_a_peer_that_asks_without_end_and_reads_no_answer_is_bounded() -> None:
    server = Deaf()
    async with Client(server, version="2025-11-25") as client:
        for number in range(3 * MAX_PEER_REQUESTS):
            server.say({"id": f"q{number}", "method": "ping"})
        assert await client.call("fine") == "fine"  # what came before has been read
        await until(lambda: server.offered == MAX_PEER_REQUESTS)
        server.hears.set()
        await until(lambda: sum(sent.get("id") == f"q{MAX_PEER_REQUESTS - 1}" for sent in server.sent) == 1)
        server.say({"id": "again", "method": "ping"})
        await until(lambda: any(sent.get("id") == "again" for sent in server.sent))
        assert server.offered == MAX_PEER_REQUESTS + 1


@pytest.mark.anyio
async def test_large_requests_of_a_peer_that_reads_no_answer_are_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "MAX_PEER_REQUEST_BYTES", 100_000)
    server = Deaf()
    async with Client(server, version="2025-11-25") as client:
        for number in range(30):
            server.say({"id": f"q{number}", "method": "ping", "params": {"more": "x" * 10_000}})
        assert await client.call("fine") == "fine"
        await until(lambda: server.offered == 10)
        server.hears.set()
        await until(lambda: any(sent.get("id") == "q9" for sent in server.sent))
        server.say({"id": "again", "method": "ping"})
        await until(lambda: any(sent.get("id") == "again" for sent in server.sent))
        assert server.offered == 11


@pytest.mark.anyio
async def test_a_peer_that_reads_no_answer_does_not_stop_our_clock() -> None:
    server = Deaf()
    server.replies["tools/call"] = SILENCE
    async with Client(server, version="2025-11-25", timeout=0.2) as client, asyncio.timeout(20):
        server.say({"id": "q", "method": "ping"})
        server.say({"id": "r", "method": "no/such"})
        await until(lambda: server.offered == 2)
        with pytest.raises(PeerTimeout):
            await client.call("silent")


@pytest.mark.anyio
async def test_all_pages_of_a_list_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0

    def page(message: object) -> dict[str, object]:
        nonlocal now
        now += 0.5
        return {"tools": [], "nextCursor": f"c{now}"}

    monkeypatch.setattr("defserve.client.server_requests.monotonic", lambda: now)
    server = PretendServer({"tools/list": page})
    async with Client(server, version="2025-11-25", timeout=5) as client, asyncio.timeout(20):
        with pytest.raises(PeerTimeout, match="tools/list did not end within 5 s"):
            await client.tools()
    assert sum(sent.get("method") == "tools/list" for sent in server.sent) < 20
