"""Resources of a backend that several clients want to hear of, in one conversation."""

from __future__ import annotations

import asyncio

import pytest

from defserve import Server
from defserve.errors import DefserveError
from tests.proxying.backends import child, until_fact
from tests.waiting import DEADLINE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIVE, REFUSED = "note://e/live", "note://e/refused"


def desk() -> Server:
    server = Server("desk")
    server.mount(child("watched.py", per="shared", version="handshake"), prefix="e")
    return server


async def test_who_is_refused_does_not_end_what_another_client_hears() -> None:
    server = desk()
    async with server.connect("stateless") as one, server.connect("stateless") as other:
        async with one.listen(uris=[LIVE]) as news:
            with pytest.raises(DefserveError, match="not this one"):
                async with other.listen(uris=[LIVE, REFUSED]):
                    pass
            await other.ping()
            assert await one.call("e_fact", name="subscribed")
            await one.call("e_change")
            assert (await asyncio.wait_for(anext(news), DEADLINE)).params["uri"] == LIVE


async def test_of_what_is_refused_in_part_nothing_stays_subscribed() -> None:
    async with desk().connect("stateless") as client:
        with pytest.raises(DefserveError, match="not this one"):
            async with client.listen(uris=[LIVE, REFUSED]):
                pass
        assert await client.call("e_fact", name="idle")


async def test_what_clients_that_left_wanted_to_hear_of_is_no_longer_asked_for() -> None:
    server = desk()
    async with server.connect("stateless") as staying:
        for _ in range(2):
            async with server.connect("handshake") as leaving:
                await leaving.subscribe(LIVE)
                await leaving.subscribe(LIVE)
        await until_fact(staying, "idle")


async def test_what_another_client_still_wants_to_hear_of_is_asked_for() -> None:
    server = desk()
    async with server.connect("stateless") as staying, staying.listen(uris=[LIVE]) as news:
        async with server.connect("handshake") as leaving:
            await leaving.subscribe(LIVE)
        await staying.call("e_change")
        assert (await asyncio.wait_for(anext(news), DEADLINE)).params["uri"] == LIVE
