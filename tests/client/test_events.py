"""Our client and events: list, poll, listen, and webhooks for others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.client import Client, HttpLink
from defserve.client.eras import MAX_QUEUED_NEWS
from defserve.errors import PeerError
from defserve.protocols.mcp.events import webhooks as deliveries
from defserve.protocols.mcp.events.extension import Events
from defserve.server import EventSettings
from defserve.testing import WebhookReceiver
from tests.at_address import at_address
from tests.client.pretend import SILENCE, STATELESS, PretendServer
from tests.protocols.mcp.events.repositories import Push, make_server
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def test_types_are_listed():
    async with make_server().connect() as client:
        assert [event["name"] for event in await client.events.list_types()] == ["pushed"]


async def test_events_are_heard_as_they_happen():
    server = make_server()
    async with server.connect() as client, client.listen_events("pushed", repository="x") as events:
        await client.call("push", repository="y")
        await client.call("push", repository="x", commits=3)
        event = await anext(events)
        assert (event.name, event.data, event.is_after_gap) == ("pushed", {"commits": 3}, False)
        assert events.cursor == event.cursor


async def test_listening_goes_on_after_the_last_event_that_was_read():
    server = make_server()
    async with server.connect() as client:
        async with client.listen_events("pushed", repository="x") as events:
            await client.call("push", repository="x", commits=1)
            cursor = (await anext(events)).cursor
        await client.call("push", repository="x", commits=2)
        async with asyncio.timeout(20):  # not with the next look at the log, half a minute later
            async for event in client.listen_events("pushed", cursor=cursor, repository="x"):
                assert event.data == {"commits": 2}
                break


async def test_the_first_event_after_a_gap_says_so():
    server = make_server(settings=EventSettings(max_events=1))
    async with server.connect() as client:
        page = await client.events.fetch_page("pushed", repository="x")
        for number in range(3):
            await client.call("push", repository="x", commits=number)
        async with client.listen_events("pushed", cursor=page["cursor"], repository="x") as events:
            event = await anext(events)
            assert (event.data, event.is_after_gap) == ({"commits": 2}, True)


async def test_a_stream_that_nobody_reads_any_more_ends_at_the_server_too():
    server = make_server()
    [events] = [extension for extension in server.extensions if isinstance(extension, Events)]
    async with server.connect() as client:
        stream = client.listen_events("pushed", repository="x")
        await stream.open()
        assert events._streams == {"local": 1}  # pyright: ignore[reportPrivateUsage]
        for number in range(MAX_QUEUED_NEWS + 1):
            await server.emit_event("pushed", Push(commits=number), repository="x")
        await until(lambda: not events._streams)  # pyright: ignore[reportPrivateUsage]
        assert [(await anext(stream)).data["commits"] for _ in range(MAX_QUEUED_NEWS)] == list(range(MAX_QUEUED_NEWS))
        with pytest.raises(PeerError, match="faster than they were read"):
            await anext(stream)


async def test_an_event_that_does_not_exist_is_an_error():
    async with make_server().connect() as client:
        with pytest.raises(PeerError) as raised:
            await anext(client.listen_events("nope"))
        # The SEP's number: our client declares the extension.
        assert raised.value.code == -32023


async def test_who_gives_up_waiting_for_a_stream_calls_it_off_and_may_open_it_again():
    def begin(request: dict[str, Any]) -> Any:
        if len(server.asked("events/stream")) > 1:
            meta = {"io.modelcontextprotocol/subscriptionId": request["id"]}
            server.say({"method": "notifications/events/active", "params": {"_meta": meta}})
            server.say({"method": "notifications/events/event", "params": {"_meta": meta, "eventId": "e"}})
        return SILENCE

    server = PretendServer({**STATELESS, "events/stream": begin})
    async with Client(server) as client:
        events = client.listen_events("pushed")
        opening = asyncio.ensure_future(anext(events))
        request = await server.told(lambda one: one["method"] == "events/stream")
        opening.cancel()
        cancelled = await server.told(lambda one: one["method"] == "notifications/cancelled")
        assert cancelled["params"]["requestId"] == request["id"]
        assert (await anext(events)).id == "e"


async def test_a_stream_that_the_server_ends_raises_why():
    server = make_server()
    async with server.connect() as client, client.listen_events("pushed", repository="x") as events:
        server.remove_event("pushed")
        with pytest.raises(PeerError, match="no longer an event"):
            await anext(events)


async def test_polling_goes_on_and_on():
    server = make_server()
    async with server.connect() as client:
        polled = client.events.poll_events("pushed", every=0.01, repository="x")
        waiting = asyncio.create_task(anext(polled))
        while not waiting.done():
            await client.call("push", repository="x", commits=5)
        assert (await waiting).data == {"commits": 5}
        await polled.aclose()


async def test_events_come_over_http():
    server = make_server()
    async with at_address(server) as url, Client(HttpLink(url)) as client:
        async with client.listen_events("pushed", repository="x") as events:
            await server.emit_event("pushed", Push(commits=8), repository="x")
            assert (await anext(events)).data == {"commits": 8}


async def test_a_webhook_is_subscribed_to_refreshed_and_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deliveries, "LOOK_SECONDS", 0.02)
    server = make_server(settings=EventSettings(allow_loopback=True))
    with WebhookReceiver() as receiver:
        async with server.connect() as client:
            made = await client.events.subscribe_webhook("pushed", receiver.url, receiver.secret, repository="x")
            assert made.status["active"] is True
            assert receiver.secret not in repr(made)
            await client.call("push", repository="x", commits=2)
            (event,) = await asyncio.to_thread(receiver.wait_for_events, 1)
            assert (event.data, event.subscription) == ({"commits": 2}, made.id)
            before = made.refresh_before
            await made.refresh(receiver.rotate_secret())
            assert before is not None and made.refresh_before is not None and made.refresh_before >= before
            await made.unsubscribe()
            with pytest.raises(PeerError) as raised:
                await made.unsubscribe()
            assert raised.value.code == -32023


async def test_a_poll_goes_on_after_an_answer_without_a_list_of_events():
    pages = [{"events": 5, "cursor": "1"}, {"events": [{"eventId": "e"}, 7], "cursor": "2"}]
    server = PretendServer({**STATELESS, "events/poll": lambda _: pages.pop(0)})
    async with Client(server) as client:
        events = client.events.poll_events("pushed", every=0.01)
        assert (await anext(events)).cursor == "2"
        await events.aclose()
