"""Events of mounted servers: listed with their server, polled, streamed and sent as if they were our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Remote, Server
from defserve.base.backoff import Backoff
from defserve.client import Client
from defserve.client.eras import LIST_CHANGE_NOTIFICATIONS
from defserve.errors import PeerError
from defserve.protocols.mcp.errors import SERVER_ID_META_KEY
from defserve.protocols.mcp.events.draft import EVENTS_LIST_CHANGED_FILTER, EVENTS_LIST_CHANGED_NOTIFICATION
from defserve.protocols.mcp.events.streams import EventHub
from defserve.proxying import events
from defserve.proxying.events import EventFollower, RemoteEvent
from defserve.server import EventSettings
from defserve.testing import WebhookReceiver
from tests.at_address import at_address
from tests.kernel.running import running, url_entry
from tests.protocols.mcp.events.repositories import Push, make_server
from tests.waiting import until

pytestmark = pytest.mark.anyio


def make_front(*urls: str, store: Any = None) -> Server:
    front = Server("front", "1", store=store, experimental=[EventSettings(allow_loopback=True)])
    for number, url in enumerate(urls):
        front.mount(Remote(url), prefix=f"git{number}")
    return front


@asynccontextmanager
async def connect_front(front: Server) -> AsyncGenerator[Client]:
    async with front.connect() as client:
        await until(lambda: all(one.state == "connected" for one in front.mounts.backends.values()))
        yield client


async def push(server: Server, commits: int, repository: str = "x", **options: Any) -> str:
    return await server.emit_event("pushed", Push(commits=commits), repository=repository, branch="main", **options)


async def test_events_of_two_servers_are_listed_with_the_server_that_they_belong_to():
    first, second = make_server(), make_server()
    async with at_address(first) as one, at_address(second) as two, connect_front(make_front(one, two)) as client:
        listed = {each["name"]: each for each in await client.events.list_types()}
        assert {name: each["_meta"] for name, each in listed.items()} == {
            "git0_pushed": {SERVER_ID_META_KEY: "git0"},
            "git1_pushed": {SERVER_ID_META_KEY: "git1"},
        }
        assert listed["git0_pushed"]["inputSchema"]["required"] == ["repository"]
        assert listed["git0_pushed"]["delivery"] == ["poll", "push", "webhook"]


async def test_a_stream_brings_what_the_server_behind_emits_and_nothing_else():
    back = make_server()
    async with at_address(back) as url, connect_front(make_front(url)) as client:
        async with client.listen_events("git0_pushed", repository="x") as events:
            await push(back, 1, "other")
            id = await push(back, 2)
            event = await anext(events)
            assert (event.id, event.name, event.data) == (id, "git0_pushed", {"commits": 2})
            assert event.params["_meta"][SERVER_ID_META_KEY] == "git0"
            assert not event.is_after_gap


async def test_a_poll_goes_on_where_it_was_though_nobody_has_listened_meanwhile():
    back = make_server()
    async with at_address(back) as url, connect_front(make_front(url)) as client:
        await push(back, 1)
        start = await client.events.fetch_page("git0_pushed", repository="x")
        assert start["events"] == []
        for number in (2, 3):
            await push(back, number)
        page = await _poll_until(client, start["cursor"], 2)
        assert [event["data"]["commits"] for event in page["events"]] == [2, 3]
        assert page["truncated"] is False


async def _poll_until(client: Client, cursor: str, count: int) -> Any:
    async with asyncio.timeout(10):
        while True:
            page = await client.events.fetch_page("git0_pushed", cursor, repository="x")
            if len(page["events"]) >= count:
                return page
            await asyncio.sleep(0.01)


async def test_a_webhook_is_delivered_by_the_front():
    back = make_server()
    with WebhookReceiver() as receiver:
        async with at_address(back) as url, connect_front(make_front(url)) as client:
            made = await client.events.subscribe_webhook("git0_pushed", receiver.url, receiver.secret, repository="x")
            ids = [await push(back, number) for number in range(3)]
            events = await asyncio.to_thread(receiver.wait_for_events, 3)
            assert [(event.id, event.name, event.subscription) for event in events] == [
                (id, "git0_pushed", made.id) for id in ids
            ]
    assert receiver.refused == []


async def test_what_happens_while_the_front_is_away_is_delivered_once_when_it_is_back(tmp_path: Path):
    back, store = make_server(), f"sqlite:///{tmp_path / 'front.db'}"
    with WebhookReceiver() as receiver:
        async with at_address(back) as url:
            async with connect_front(make_front(url, store=store)) as client:
                await client.events.subscribe_webhook("git0_pushed", receiver.url, receiver.secret, repository="x")
                await push(back, 0)
                await asyncio.to_thread(receiver.wait_for_events, 1)
            for number in (1, 2, 3):
                await push(back, number)
            async with connect_front(make_front(url, store=store)):
                await push(back, 4)
                events = await asyncio.to_thread(receiver.wait_for_events, 5)
    assert [event.data["commits"] for event in events] == [0, 1, 2, 3, 4]
    assert (receiver.duplicates, receiver.control) == ([], [])


async def test_events_that_the_server_behind_has_lost_are_a_gap():
    back = make_server(settings=EventSettings(max_events=2))
    async with at_address(back) as url:
        front = make_front(url)
        async with connect_front(front) as client:
            start = (await client.events.fetch_page("git0_pushed", repository="x"))["cursor"]
            [backend] = front.mounts.backends.values()
            await backend.stop("test", 0)
            for number in range(5):
                await push(back, number)
            await backend.start()
            page = await _poll_until(client, start, 2)
            assert [event["data"]["commits"] for event in page["events"]] == [3, 4]
            assert page["truncated"] is True


@pytest.mark.parametrize("can_poll", [False, True])
async def test_a_server_behind_that_ends_its_streams_at_once_is_asked_less_and_less(
    can_poll: bool, monkeypatch: pytest.MonkeyPatch
):
    waits: list[float] = []

    class NotedBackoff(Backoff):
        def next_wait(self) -> float:
            waits.append(super().next_wait())
            return 0.0

    async def follow_stream(follower: EventFollower, channel: object) -> None:
        """It ends."""

    monkeypatch.setattr(events, "Backoff", NotedBackoff)
    monkeypatch.setattr(EventFollower, "follow_stream", follow_stream)
    monkeypatch.setattr(RemoteEvent, "can_poll", can_poll)
    async with at_address(make_server()) as url, connect_front(make_front(url)) as client:
        async with client.listen_events("git0_pushed", repository="x"):
            await until(lambda: waits[:4] == [0.5, 1.0, 2.0, 4.0])


async def test_many_events_that_cannot_be_passed_on_are_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def poll(self: EventFollower, channel: object, cursor: str | None) -> dict[str, Any]:
        bad: list[Any] = [{"eventId": "", "data": {}}] * 1_000
        return {"cursor": "0"} if cursor is None else {"cursor": "1", "events": bad if cursor == "0" else []}

    monkeypatch.setattr(EventFollower, "_poll", poll)
    async with at_address(make_server()) as url, connect_front(make_front(url)) as client:
        await client.events.fetch_page("git0_pushed", repository="x")
    assert sum("has no id" in record.message for record in caplog.records) == 1


async def test_two_who_poll_at_once_after_a_pause_both_get_what_has_happened_meanwhile(monkeypatch: pytest.MonkeyPatch):
    def keep_nothing(hub: EventHub, event: object, wanted: object, seconds: float) -> None:
        """No source runs, so each poll looks for itself."""

    monkeypatch.setattr(EventHub, "keep_source_for_seconds", keep_nothing)
    back = make_server()
    async with at_address(back) as url, connect_front(make_front(url)) as client:
        start = (await client.events.fetch_page("git0_pushed", repository="x"))["cursor"]
        for number in range(5):
            await push(back, number)
        pages = await asyncio.gather(*(client.events.fetch_page("git0_pushed", start, repository="x") for _ in "12"))
        for page in pages:
            assert [event["data"]["commits"] for event in page["events"]] == [0, 1, 2, 3, 4]


async def test_a_server_behind_that_always_has_more_but_no_events_is_asked_less_and_less_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
):
    waits: list[float] = []

    class NotedBackoff(Backoff):
        def next_wait(self) -> float:
            waits.append(super().next_wait())
            return 0.0

    async def poll(self: EventFollower, channel: object, cursor: str | None) -> dict[str, Any]:
        await asyncio.sleep(0)
        bad: list[Any] = [{"eventId": "", "data": {}}] * 10
        return {"cursor": str(int(cursor or 0) + 1), "events": bad, "hasMore": True, "truncated": True}

    monkeypatch.setattr(events, "Backoff", NotedBackoff)
    monkeypatch.setattr(events, "CATCH_UP_SECONDS", 0.2)
    monkeypatch.setattr(EventFollower, "_poll", poll)
    async with at_address(make_server()) as url, connect_front(make_front(url)) as client:
        await client.events.fetch_page("git0_pushed", repository="x")
        await until(lambda: waits[:4] == [0.5, 1.0, 2.0, 4.0])


async def test_events_of_one_page_that_cannot_be_passed_on_are_one_gap(monkeypatch: pytest.MonkeyPatch):
    added: list[str] = []
    append = EventFollower._append  # pyright: ignore[reportPrivateUsage]

    async def note(self: EventFollower, data: dict[str, Any], id: str, at: int, after: str) -> None:
        added.append(id)
        await append(self, data, id, at, after)

    async def poll(self: EventFollower, channel: object, cursor: str | None) -> dict[str, Any]:
        bad: list[Any] = [{"eventId": "", "data": {}}] * 100
        good = [{"eventId": "1", "data": {"commits": 1}}]
        found: dict[str, Any] = {"cursor": "1", "events": [*bad, *good, *bad] if cursor == "0" else []}
        return {"cursor": "0"} if cursor is None else found | {"truncated": cursor == "0"}

    monkeypatch.setattr(EventFollower, "_append", note)
    monkeypatch.setattr(EventFollower, "_poll", poll)
    async with at_address(make_server()) as url, connect_front(make_front(url)) as client:
        await client.events.fetch_page("git0_pushed", repository="x")
    assert added == ["", "1", ""]


async def test_arguments_that_the_server_behind_refuses_are_refused_here():
    async with at_address(make_server()) as url, connect_front(make_front(url)) as client:
        with pytest.raises(PeerError) as refused:
            await client.events.fetch_page("git0_pushed", repository=7)
        assert refused.value.code == -32602
        with pytest.raises(PeerError) as refused:
            await client.listen_events("git0_pulled", repository="x").open()
        assert (refused.value.code, refused.value.data["kind"]) == (-32023, "event")


async def test_an_event_that_is_removed_behind_ends_its_streams_here():
    back = make_server()
    async with at_address(back) as url, connect_front(make_front(url)) as client:
        async with client.listen_events("git0_pushed", repository="x") as events:
            back.remove_event("pushed")
            with pytest.raises(PeerError) as ended:
                await anext(events)
            assert ended.value.code == -32023
        assert await client.events.list_types() == []


async def test_a_front_without_events_does_not_show_them():
    front = Server("front", "1")
    async with at_address(make_server()) as url:
        front.mount(Remote(url), prefix="git")
        async with connect_front(front) as client:
            with pytest.raises(PeerError) as missing:
                await client.events.list_types()
            assert missing.value.code == -32601


def test_the_client_and_the_draft_agree_on_what_a_changed_list_is_called():
    assert LIST_CHANGE_NOTIFICATIONS["events"] == (EVENTS_LIST_CHANGED_NOTIFICATION, EVENTS_LIST_CHANGED_FILTER)


# -- the kernel


async def test_a_kernel_relays_events_if_its_file_says_so(tmp_path: Path):
    back = make_server()
    async with at_address(back) as url:
        kernel = '[kernel]\nevents = "memory"\n'
        async with running(tmp_path, kernel + url_entry("git", url)) as here:
            [listed] = await here.client.events.list_types()
            assert (listed["name"], listed["_meta"][SERVER_ID_META_KEY]) == ("git_pushed", "git")
            async with here.client.listen_events("git_pushed", repository="x") as events:
                await push(back, 7)
                assert (await anext(events)).data == {"commits": 7}


async def test_who_may_not_use_a_server_neither_sees_nor_gets_its_events(tmp_path: Path):
    back = make_server()
    async with at_address(back) as url:
        kernel = '[kernel]\nevents = "memory"\ndefault_policy = "opt-in"\n'
        async with running(tmp_path, kernel + url_entry("git", url)) as here:
            assert await here.client.events.list_types() == []
            with pytest.raises(PeerError) as refused:
                await here.client.events.fetch_page("git_pushed", repository="x")
            assert (refused.value.code, refused.value.data["kind"]) == (-32023, "event")
