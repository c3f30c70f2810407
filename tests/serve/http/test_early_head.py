"""The head of the response to a long call comes after a second, with the id to resume it by. Short calls stay JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from defserve import Limits, Server
from tests import clock
from tests.asgi import Exchange, Peer, last, peer, text
from tests.raw import HANDSHAKE, STATELESS
from tests.rows import for_each_row
from tests.serve.web_tools import is_json, is_stream

LATEST = HANDSHAKE[-1]


def bakery(limits: Limits | None = None) -> Server:
    server = Server("bakery", "1", limits=limits)

    @server.tool
    async def bake(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "baked"

    return server


def play(scene: Callable[[Peer], Awaitable[None]], version: str = LATEST, limits: Limits | None = None) -> None:
    async def played() -> None:
        async with peer(bakery(limits), version) as client:
            await scene(client)

    clock.run(played())


def begun(client: Peer, seconds: float) -> Exchange:
    return client.begin_call("bake", {"seconds": seconds})


def test_a_long_call_has_its_head_and_an_event_id_after_a_second():
    async def scene(client: Peer) -> None:
        exchange = begun(client, 5)
        await asyncio.sleep(0.9)
        assert exchange.status == 0
        await asyncio.sleep(0.2)
        assert exchange.status == 200 and is_stream(exchange)
        (first,) = exchange.events
        assert first.id and not first.data
        await exchange.ended()
        assert text(last(exchange)) == "baked"

    play(scene)


def test_a_connection_that_is_cut_meanwhile_is_resumed():
    async def scene(client: Peer) -> None:
        exchange = begun(client, 5)
        await asyncio.sleep(1.5)
        exchange.leave()
        await exchange.ended()
        resumed = client.listen(exchange.events[0].id)
        await resumed.ended()
        assert text(last(resumed)) == "baked"

    play(scene)


@for_each_row("version", HANDSHAKE[1:-1])
def test_a_version_without_such_an_event_has_the_head(version: str):
    async def scene(client: Peer) -> None:
        exchange = begun(client, 5)
        await asyncio.sleep(1.1)
        assert exchange.status == 200 and is_stream(exchange) and not exchange.events
        await exchange.ended()
        assert text(last(exchange)) == "baked"

    play(scene, version)


@for_each_row(("version", "seconds"), [(LATEST, 0.9), (STATELESS, 0.9), (STATELESS, 9)])
def test_a_short_call_or_one_that_cannot_be_resumed_is_answered_in_json(version: str, seconds: float):
    async def scene(client: Peer) -> None:
        exchange = await begun(client, seconds).ended()
        assert is_json(exchange) and text(exchange.json) == "baked"

    play(scene, version)


def test_a_call_that_finds_no_room_is_still_refused_with_its_status():
    async def scene(client: Peer) -> None:
        first, second = begun(client, 7), begun(client, 7)
        await asyncio.sleep(2.5)
        assert (first.status, second.status) == (200, 0)
        await second.ended()
        assert (second.status, second.headers["retry-after"]) == (429, "1")
        third = begun(client, 3)
        await asyncio.sleep(5)
        assert is_stream(third)  # there was room after a while, and then a second went by

    play(scene, limits=Limits(in_flight=1, queue=4))
