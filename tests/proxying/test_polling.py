"""A server with sessions that sends its client away in the middle of a call: our client is sent away too."""

from __future__ import annotations

import asyncio

import pytest

from defserve import Context, Remote, Server
from tests.asgi import Peer, last, living, text
from tests.at_address import at_address

pytestmark = pytest.mark.anyio


async def test_a_connection_that_a_mounted_server_drops_is_dropped_in_front_and_the_answer_is_kept() -> None:
    behind, go = Server("behind"), asyncio.Event()

    @behind.tool
    async def poll(ctx: Context) -> str:
        ctx.drop_connection()
        await go.wait()
        return "polled"

    front = Server("front")
    async with at_address(behind) as url:
        front.mount(Remote(url, version="handshake"), prefix="e")
        async with living(front.asgi()) as app:
            client = await Peer(app).open()
            exchange = await client.begin_call("e_poll").ended()
            assert not exchange.events[-1].data
            go.set()
            polling = await client.listen(exchange.events[-1].id).ended()
            assert text(last(polling)) == "polled"
