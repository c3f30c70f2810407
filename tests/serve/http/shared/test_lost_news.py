"""A change that was answered for reaches who subscribed to it, whichever message with the store fails or comes late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.protocols.mcp.subscriptions import SubscribedUris
from defserve.serve.http import redis_log
from defserve.serve.http.streams import StreamReader
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.lua_scripts import CLAIM_SESSION
from defserve.stores.store import StoreUnavailable
from tests.asgi import Peer
from tests.serve.http.shared.group import Client, Group, becomes, held_back, leave, log, logs, session
from tests.waiting import until

pytestmark = pytest.mark.anyio

SUBSCRIBE = "resources/subscribe", {"uri": "memo://a"}


def notify(group: Group, client: Client, text: str) -> None:
    session(group["one"], client).conversation.notify("notifications/message", {"data": text, "level": "info"})


async def test_a_subscription_that_is_tried_again_is_answered_when_the_store_has_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client = await group.client("one")
    monkeypatch.setattr(redis_log, "WRITE_TIMEOUT", 0.01)
    with held_back(monkeypatch, group["one"].link):
        for _ in range(2):
            assert (await client.at("one").begin_request(*SUBSCRIBE).ended()).status == 503
    await until(lambda: group["one"].link.is_written)
    assert (await client.at("one").begin_request(*SUBSCRIBE).ended()).status == 200


async def test_a_new_owner_keeps_what_was_subscribed_to_here_and_is_not_written_yet(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client, two = await group.client("one"), group["two"]
    await client.at("two").call("who")
    known = log(two, client)
    with held_back(monkeypatch, two.link):
        asking = client.at("two").begin_request(*SUBSCRIBE)
        await until(lambda: not two.link.is_written)
        taking = asyncio.create_task(logs(two).ownership.take_over(known, two.link.last_read_update_id, "1-0"))
        for _ in range(3):
            await two.link.run_script(lua_scripts.LOOK_UP_STREAM, client.session, "s")
    await taking
    await asking.ended()
    assert "memo://a" in known.conversation.local(SubscribedUris).uris


async def test_a_claim_whose_reply_was_lost_is_made_again_without_another_request(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client, two = await group.client("one"), group["two"]
    await client.at("one").ask(*SUBSCRIBE)
    await group["one"].kill()
    real = two.link.run_script

    async def run(script: str, *args: Any) -> Any:
        reply = await real(script, *args)
        if script == CLAIM_SESSION:
            monkeypatch.setattr(two.link, "run_script", real)
            raise StoreUnavailable("The store cannot be reached")
        return reply

    monkeypatch.setattr(two.link, "run_script", run)
    assert (await client.at("two").begin_call("who").ended()).status == 503
    for renewed in two.link.renewed:
        renewed()
    await until(lambda: log(two, client).is_owner and not two.link.behind)


async def test_a_worker_that_does_not_receive_news_yet_neither_opens_a_session_nor_claims_one(group: Group):
    client, two = await group.client("one"), group["two"]
    await client.at("one").ask(*SUBSCRIBE)
    await group["one"].kill()
    cursor = two.link._cursors.pop("news")  # as if Redis had been away when it started
    with pytest.raises(AssertionError, match="cannot be reached"):
        await Peer(two.app).open()
    await client.at("two").call("who")
    assert not log(two, client).is_owner
    two.link._cursors["news"] = cursor
    for renewed in two.link.renewed:
        renewed()
    await until(lambda: log(two, client).is_owner and not two.link.behind)


async def test_an_old_claim_of_another_worker_that_is_read_late_does_not_count(group: Group):
    client, one = await group.client("one"), group["one"]
    known = log(one, client)
    known.claim = "9-0"
    fields = {"t": b"owner", "s": client.session.encode(), "w": b"0123456789ab"}
    logs(one)._on_owner(fields, "8-5")
    assert known.is_owner and not known.is_stale
    logs(one)._on_owner(fields, "9-1")
    assert not known.is_owner


async def test_who_listens_at_another_worker_is_told_on_when_the_owner_leaves_the_session(group: Group):
    client, two = await group.client("one"), group["two"]
    stream = await client.at("two").listen().started()
    session(group["one"], client).evict()
    await until(lambda: log(two, client).is_owner)
    two.server.remove_tool("who")
    await stream.until(lambda: bool(stream.messages))
    await leave(stream)


async def test_a_session_whose_claim_may_have_been_taken_is_left_to_the_next_worker(group: Group):
    client, one = await group.client("one"), group["one"]
    known = log(one, client)
    known.owner = ""
    known.schedule_reload()
    known.session.evict()
    await until(lambda: one.link.is_written)
    assert await one.link._redis.hget(f"{one.link._prefix}session:{client.session}", "owner") == b""


async def test_when_news_is_lost_for_good_sessions_are_told_that_anything_may_have_changed(group: Group):
    client, one = await group.client("one"), group["one"]
    stream = await client.at("one").listen().started()
    await client.at("one").ask(*SUBSCRIBE)
    for news_lost in one.link.news_lost:
        news_lost()
    for renewed in one.link.renewed:
        renewed()
    await stream.until(lambda: any(each["method"] == "notifications/resources/updated" for each in stream.messages))
    await leave(stream)


async def test_the_first_event_may_come_while_a_client_begins_to_listen(group: Group, monkeypatch: pytest.MonkeyPatch):
    client, two = await group.client("one"), group["two"]
    await client.at("two").call("who")
    real = two.link.run_script

    async def run(script: str, *args: Any) -> Any:
        reply = await real(script, *args)
        if script == lua_scripts.LOOK_UP_STREAM:
            monkeypatch.setattr(two.link, "run_script", real)
            notify(group, client, "first")
            await until(lambda: group["one"].link.is_written)
        return reply

    monkeypatch.setattr(two.link, "run_script", run)
    stream = await client.at("two").listen().started()
    await stream.until(lambda: bool(stream.messages))
    await leave(stream)


async def test_who_resumes_and_is_cut_off_at_once_comes_back_to_where_it_was(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client, link = await group.client("one"), group["two"].link
    first = await client.at("one").listen().started()
    for text in ("a", "b"):
        notify(group, client, text)
    await first.until(lambda: len(first.messages) == 2)

    async def read() -> bytes:
        return await link._redis.hget(f"{link._prefix}stream:{client.session}:s", "read")

    await becomes(read, b"2")

    async def fetch(self: StreamReader) -> None:
        """Its worker dies before it has given the client anything."""

    monkeypatch.setattr(StreamReader, "deliver_stored_events", fetch)
    second = await client.at("two").listen(str(first.events[1].id)).started()
    assert await read() == b"1"
    await leave(second)


async def test_an_owner_that_leaves_a_session_leaves_the_news_that_it_is_just_handling(group: Group):
    client, one = await group.client("one"), group["one"]
    before = one.link.handled_news
    one.link._cursors["news"] = "99999999999999-0"
    session(one, client).evict()
    await until(lambda: one.link.is_written)
    key = f"{one.link._prefix}session:{client.session}"
    assert await one.link._redis.hmget(key, "owner", "since") == [b"", before.encode()]


async def test_a_new_owner_that_fails_in_the_middle_tells_everything_when_it_tries_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client, two = await group.client("one"), group["two"]
    stream = await client.at("two").listen().started()
    await client.at("two").ask(*SUBSCRIBE)
    await group["one"].kill()
    two.server.resource_updated("memo://a")
    await until(lambda: two.link.has_read_own_updates)
    ownership, real = logs(two).ownership, logs(two).ownership.replay

    def fail(*_: Any) -> Any:
        ownership.replay = real
        raise RuntimeError("a bug")

    ownership.replay = fail
    monkeypatch.setattr("defserve.stores.shared.worker_link.SharedStoreLink.can_trust_leases", True)
    with pytest.raises(RuntimeError):
        await logs(two).load_session(client.session, session(two, client).opener)
    await logs(two).load_session(client.session, session(two, client).opener)
    await stream.until(lambda: bool(stream.messages))
    await leave(stream)


async def test_a_session_that_cannot_be_told_keeps_no_news_from_the_others(group: Group):
    first, second = await group.client("one"), await group.client("one")
    streams_ = [await each.at("one").listen().started() for each in (first, second)]

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    log(group["one"], first).append = fail
    group["one"].server.remove_tool("who")
    await streams_[1].until(lambda: bool(streams_[1].messages))
    assert len(streams_[1].messages) == 1
    for stream in streams_:
        await leave(stream)
