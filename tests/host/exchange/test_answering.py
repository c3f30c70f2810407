"""The requests of a peer, when it does not read the answers."""

from __future__ import annotations

import asyncio

import pytest

from defserve.host.client import Client
from defserve.host.exchange.answering import MOST
from tests.host.pretend import PretendServer
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
        for number in range(3 * MOST):
            server.say({"id": f"q{number}", "method": "ping"})
        assert await client.call("fine") == "fine"  # what came before has been read
        await until(lambda: server.offered == MOST)
        server.hears.set()
        await until(lambda: sum(sent.get("id") == f"q{MOST - 1}" for sent in server.sent) == 1)
        server.say({"id": "again", "method": "ping"})
        await until(lambda: any(sent.get("id") == "again" for sent in server.sent))
        assert server.offered == MOST + 1
