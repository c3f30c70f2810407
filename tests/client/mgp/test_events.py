from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Server
from defserve.client import Client, Mgp, ServerEvent
from defserve.client.eras import MAX_QUEUED_NEWS
from defserve.client.mgp.events import EVENT_NOTIFICATION
from defserve.errors import PeerError, PeerGone
from tests.client.pretend import PretendServer

pytestmark = pytest.mark.anyio

SUBSCRIBED = {"subscribed": ["a.b"], "unsupported": ["c"], "subscription_id": "s1"}
REPLIES = {"mgp/events/subscribe": SUBSCRIBED, "mgp/events/unsubscribe": {}}


def event(sequence: Any, id: str = "s1", **more: Any) -> dict[str, Any]:
    params = {"subscription_id": id, "channel": "a.b", "timestamp": "2026-02-27T12:05:00Z", "data": sequence, **more}
    return {
        "method": EVENT_NOTIFICATION,
        "params": {**params, "sequence": sequence} if sequence is not None else params,
    }


@pytest.mark.req("MGP-13.2", "MGP-13.2u", "MGP-13.2f")
async def test_a_stream_subscribes_when_it_opens_and_unsubscribes_when_it_closes():
    link = PretendServer(REPLIES)
    async with Client(link) as client:
        async with client.subscribe_events(["a.*", "c"], min_severity="error") as events:
            assert (events.subscribed, events.unsupported) == (("a.b",), ("c",))
            assert link.asked("mgp/events/subscribe") == [
                {"channels": ["a.*", "c"], "filter": {"min_severity": "error"}}
            ]
            assert link.asked("mgp/events/unsubscribe") == []
        assert link.asked("mgp/events/unsubscribe") == [{"subscription_id": "s1"}]
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@pytest.mark.req("MGP-13.3")
async def test_only_events_of_the_subscription_come_and_all_their_parts():
    link = PretendServer(REPLIES)
    async with Client(link) as client, client.subscribe_events(["*"]) as events:
        link.say(event(1, id="another"))
        link.say({"method": "notifications/other", "params": {"subscription_id": "s1"}})
        link.say(event(1, severity="error"))
        found = await anext(events)
    assert (found.channel, found.data, found.timestamp) == ("a.b", 1, "2026-02-27T12:05:00Z")
    assert (found.severity, found.sequence, found.missed) == ("error", 1, 0)
    assert repr(found) == "Event('a.b', 1, sequence=1, missed=0)"


async def test_events_that_are_faster_than_the_reply_are_not_lost():
    link = PretendServer(REPLIES)

    def early(request: dict[str, Any]) -> dict[str, Any]:
        link.say(event(1, id="another"))
        link.say(event(1))
        return SUBSCRIBED

    link.replies["mgp/events/subscribe"] = early
    async with Client(link) as client, client.subscribe_events(["*"]) as events:
        assert (await anext(events)).sequence == 1


async def test_a_hole_in_the_sequence_is_reported():
    link = PretendServer(REPLIES)
    async with Client(link) as client, client.subscribe_events(["*"]) as events:
        for sequence in (1, 5, 6, 4):
            link.say(event(sequence))
        assert [(await anext(events)).missed for _ in range(4)] == [0, 3, 0, 0]


async def test_what_this_client_was_too_slow_for_is_missed_as_well():
    link = PretendServer(REPLIES)
    async with Client(link) as client, client.subscribe_events(["*"]) as events:
        for sequence in range(1, MAX_QUEUED_NEWS + 8):
            link.say(event(sequence))
        await client.request(
            "mgp/events/unsubscribe", {"subscription_id": "none"}
        )  # everything said before is heard by now
        assert (await anext(events)).missed == 7


async def test_a_server_without_sequences_and_severities_is_understood():
    link = PretendServer(REPLIES)
    async with Client(link) as client, client.subscribe_events(["*"]) as events:
        link.say(event(None))
        link.say(event("x"))
        found = [await anext(events), await anext(events)]
    assert [(each.sequence, each.missed, each.severity) for each in found] == [(0, 0, "info")] * 2


async def test_a_server_that_leaves_ends_the_stream():
    link = PretendServer(REPLIES)
    async with Client(link) as client:
        async with client.subscribe_events(["*"]) as events:
            link.leave()
            with pytest.raises(PeerGone):
                await anext(events)


async def test_a_subscription_without_an_id_is_the_servers_error():
    async with Client(PretendServer({"mgp/events/subscribe": {}})) as client:
        with pytest.raises(PeerError, match="subscription_id"):
            await client.subscribe_events(["*"]).open()


async def test_without_a_session_events_are_asked_for_from_where_one_was():
    server = Server("s", "1")
    channel = server.event_channel("a.b")
    await channel.emit("before")
    async with server.connect("2026-07-28", mgp=Mgp(audit=[])) as client:
        async with client.subscribe_events(["a.*", "x"], every=0.001) as events:
            assert (events.subscribed, events.unsupported) == (("a.*",), ("x",))
            waiting = asyncio.ensure_future(anext(events))
            await channel.emit(1)
            found: list[ServerEvent] = [await waiting]
            for number in range(2, 300):
                await channel.emit(number)
            found.append(await anext(events))
    assert [(each.data, each.sequence) for each in found] == [(1, 1), (44, 3)]
    assert [each.missed for each in found] == [0, 1]  # at least
