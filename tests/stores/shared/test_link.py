"""What is written through a link is in Redis in the end, and in order, whatever Redis says meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve.stores.identity import ServerIdentity
from defserve.stores.shared import lua_scripts, worker_link
from defserve.stores.shared.worker_link import SharedStoreLink
from defserve.stores.store import StoreUnavailable
from tests.stores.redis_server import RedisServer, balancing, client_of_own_redis
from tests.waiting import until

pytestmark = pytest.mark.anyio

TTL = 600_000
NOTES = ServerIdentity("name", "notes")


@pytest.fixture
def redis() -> Iterator[Any]:
    with client_of_own_redis() as client:
        yield client


@pytest.fixture
async def link(redis: Any) -> AsyncIterator[SharedStoreLink]:
    link = SharedStoreLink(f"redis+unix://{redis.connection_pool.connection_kwargs['path']}?prefix=p:", NOTES)
    await link.start()
    await link.run_script(lua_scripts.OPEN_SESSION, "s1", link.worker, TTL, "me", "3", "opener", "x")
    await link.run_script(lua_scripts.BEGIN_STREAM, "s1", "c", link.worker, '"id"', "me", "", TTL)
    yield link
    await link.stop()


def append(link: SharedStoreLink, number: int, replies: list[Any], kind: str = "message") -> None:
    args = lua_scripts.append_arguments(
        b"data", session="s1", stream="c", producer="me", number=number, kind=kind, ttl=TTL, most_events=1000
    )
    link.queue_script(lua_scripts.APPEND_EVENT, *args, done=replies.append)


@pytest.mark.parametrize("trouble", ["it is full", "it is a replica", "it is cut off"])
async def test_what_redis_cannot_take_for_a_while_is_written_later(
    redis: Any, link: SharedStoreLink, monkeypatch: pytest.MonkeyPatch, trouble: str
):
    failed: list[int] = []
    send = link._writes._send

    async def count(batch: list[Any]) -> list[Any]:
        failed.append(len(batch))
        return await send(batch)

    monkeypatch.setattr(link._writes, "_send", count)
    if trouble == "it is full":
        redis.config_set("maxmemory", "1")
    else:
        redis.config_set("replica-serve-stale-data", "no" if trouble == "it is cut off" else "yes")
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    replies: list[Any] = []
    for number in (1, 2):
        append(link, number, replies)
    await until(lambda: len(failed) > 2)
    assert replies == []
    redis.config_set("maxmemory", "0")
    redis.execute_command("REPLICAOF", "NO", "ONE")
    await until(lambda: len(replies) == 2)
    assert [reply[1:3] for reply in replies] == [[1, 0], [2, 1]]


async def test_events_that_redis_has_lost_stop_nothing(redis: Any, link: SharedStoreLink):
    replies: list[Any] = []
    append(link, 1, replies)
    await until(lambda: len(replies) == 1)
    events = redis.dump("p:server:name=notes:shared:events:s1:c")
    for number in (2, 3):
        append(link, number, replies)
    await until(lambda: len(replies) == 3)
    # As a replica that took over and had not received of the last two.
    redis.hset("p:server:name=notes:shared:stream:s1:c", mapping={"last": 1, "n:me": 1})
    redis.restore("p:server:name=notes:shared:events:s1:c", 0, events, replace=True)
    for number in (4, 5):
        append(link, number, replies)
    await until(lambda: len(replies) == 5)
    # They have the numbers that readers expect.
    assert [reply[1:3] for reply in replies[3:]] == [[4, 3], [5, 4]]


async def test_text_counts_as_what_waits_to_be_written(link: SharedStoreLink, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_link, "QUEUED_BYTES", 1000)
    link.queue_script(lua_scripts.PUBLISH_UPDATE, "", "", "t", "x" * 1001)
    assert link.is_full
    await until(lambda: not link.is_full)


async def test_streams_of_cancelled_calls_are_forgotten_too(redis: Any, link: SharedStoreLink):
    for name in ("d", "e", "f"):
        await link.run_script(lua_scripts.BEGIN_STREAM, "s1", name, link.worker, '"id"', "me", "", TTL)
        fields = {"session": "s1", "stream": name, "producer": "me", "number": 1, "kind": "end"}
        await link.run_script(
            lua_scripts.APPEND_EVENT, *lua_scripts.append_arguments(b"", **fields, ttl=TTL, most_ended=2)
        )
    assert [redis.exists(f"p:server:name=notes:shared:stream:s1:{name}") for name in ("c", "d", "e", "f")] == [
        1,
        0,
        1,
        1,
    ]
    assert not redis.hexists("p:server:name=notes:shared:streams:s1", "d")


async def test_mail_that_was_read_does_not_stay_in_redis(redis: Any, link: SharedStoreLink):
    received: list[bytes] = []
    link.add_receiver("letter", lambda fields, id: received.append(fields["d"]))
    for number in range(5):
        redis.xadd(f"p:server:name=notes:shared:mail:{link.worker}", {"t": "letter", "d": str(number)})
    await until(lambda: len(received) == 5)
    await link._renew()
    assert redis.xlen(f"p:server:name=notes:shared:mail:{link.worker}") <= 1


@pytest.mark.slow
async def test_a_mailbox_takes_so_many_bytes_and_its_owner_learns_that_it_missed_some(
    redis: Any, link: SharedStoreLink
):
    lost: list[bool] = []
    link.lease_lost.append(lambda: lost.append(True))
    absent, size = "absent", 8 * 1024 * 1024
    redis.set(f"p:server:name=notes:shared:lease:{absent}", 1)
    sent = [
        await link.run_script(lua_scripts.SEND_MAIL, "", "", absent, "t", "letter", "d", b"x" * size) for _ in range(9)
    ]
    assert sent == [1] * 7 + [lua_scripts.MAILBOX_FULL] * 2
    assert redis.xlen(f"p:server:name=notes:shared:mail:{absent}") == 7
    last = redis.xrevrange(f"p:server:name=notes:shared:mail:{absent}", count=1)[0][0]
    # It comes back, and has read all of it: there is room again, and it is told that something is missing.
    assert await link.run_script(lua_scripts.RENEW_LEASE, absent, TTL, "0-0", last) == 0
    assert await link.run_script(lua_scripts.RENEW_LEASE, absent, TTL, "0-0", last) == 1
    assert await link.run_script(lua_scripts.SEND_MAIL, "", "", absent, "t", "letter", "d", b"x" * size) == 1


async def test_a_worker_that_does_not_live_gets_no_mailbox(redis: Any, link: SharedStoreLink):
    before = redis.dbsize()
    assert [
        await link.run_script(lua_scripts.SEND_MAIL, "", "", f"{n:012x}", "t", "letter", "d", b"x") for n in range(5)
    ] == [0] * 5
    assert redis.dbsize() == before


@pytest.mark.slow
async def test_news_is_kept_up_to_so_many_bytes(redis: Any, link: SharedStoreLink):
    for _ in range(10):
        await link.run_script(lua_scripts.PUBLISH_UPDATE, "", "", "t", "x", "d", b"x" * 8 * 1024 * 1024)
    assert redis.xlen("p:server:name=notes:shared:news") == 8


async def test_news_that_was_dropped_before_it_was_read_is_noticed(redis: Any, link: SharedStoreLink):
    happened: list[str] = []

    async def caught_up() -> None:
        happened.append("tables")

    link.add_receiver("x", lambda fields, id: happened.append(fields["d"].decode()))
    link.news_lost.append(lambda: happened.append("lost"))
    link.caught_up.append(caught_up)
    for text in ("a", "ä"):
        await link.run_script(lua_scripts.PUBLISH_UPDATE, "", "", "t", "x", "d", text)
    await until(lambda: happened == ["a", "ä"])
    redis.hincrby("p:server:name=notes:shared:size:news", "added", 10)  # as if there had been more, which is trimmed
    for text in ("b", "c"):
        await link.run_script(lua_scripts.PUBLISH_UPDATE, "", "", "t", "x", "d", text)
    await until(lambda: happened[-1] == "c")
    assert happened == ["a", "ä", "lost", "tables", "b", "c"]


async def test_an_answer_that_finds_no_room_leaves_its_question_open(redis: Any, link: SharedStoreLink):
    fields = {"session": "s1", "stream": "c", "producer": "me", "number": 1, "kind": "request"}
    await link.run_script(
        lua_scripts.APPEND_EVENT,
        *lua_scripts.append_arguments(b"?", **fields, question="absent.1", asker="me", ttl=TTL),
    )
    redis.hset("p:server:name=notes:shared:size:mail:absent", "added", 64 * 1024 * 1024)
    answer = (lua_scripts.ANSWER_QUESTION, "s1", "absent.1", "absent", b"yes", "me")
    assert await link.run_script(*answer) == lua_scripts.MAILBOX_FULL
    redis.hset("p:server:name=notes:shared:size:mail:absent", "read", 64 * 1024 * 1024)
    assert [await link.run_script(*answer) for _ in range(2)] == [1, 0]


async def test_news_is_settled_when_receivers_are_done_with_it(redis: Any, link: SharedStoreLink):
    began, end = asyncio.Event(), asyncio.Event()

    async def receive(fields: dict[str, bytes], id: str) -> None:
        began.set()
        await end.wait()

    link.add_receiver("slow", receive)
    before = link.last_read_update_id
    link.publish_update("t", "slow")
    await began.wait()
    assert link.last_read_update_id != before == link._settle()
    end.set()
    await until(lambda: link._settle() == link.last_read_update_id)


async def test_news_and_mail_whose_reply_was_lost_are_not_sent_twice(
    redis: Any, link: SharedStoreLink, monkeypatch: pytest.MonkeyPatch
):
    real = link._writes._send

    async def lose_the_reply(batch: Any) -> Any:
        monkeypatch.setattr(link._writes, "_send", real)
        await real(batch)
        raise StoreUnavailable("The store cannot be reached")

    received: list[bytes] = []
    link.add_receiver("x", lambda fields, id: received.append(fields["d"]))
    monkeypatch.setattr(link._writes, "_send", lose_the_reply)
    link.publish_update("t", "x", "d", "first")
    link.queue_script_once(lua_scripts.SEND_MAIL, link.worker, "t", "x", "d", "second")
    await link.wait_until_written(20)
    link.publish_update("t", "x", "d", "third")
    await until(lambda: b"third" in received)
    assert sorted(received) == [b"first", b"second", b"third"]


async def test_what_an_owner_did_not_get_round_to_deliver_is_left_to_the_next_one(redis: Any, link: SharedStoreLink):
    for worker, read in ((link.worker, "5-0"), ("second", "9-0"), ("third", "9-0")):
        redis.set(f"p:server:name=notes:shared:read:{worker}", read)
    redis.delete(f"p:server:name=notes:shared:lease:{link.worker}")
    redis.hset("p:server:name=notes:shared:session:s1", "delivered", "4-0")
    second = await link.run_script(lua_scripts.CLAIM_SESSION, "s1", "second")
    third = await link.run_script(lua_scripts.CLAIM_SESSION, "s1", "third")
    assert second[0] == third[0] == b"5-0"
    for number, (_, claim) in enumerate((second, third)):  # the first is not the owner any more
        await link.run_script(lua_scripts.MARK_DELIVERED, "s1", claim, f"7-{number}")
    assert redis.hget("p:server:name=notes:shared:session:s1", "since") == b"7-1"
    assert await link.run_script(lua_scripts.END_CATCH_UP, "s1", second[1]) == 0
    assert await link.run_script(lua_scripts.END_CATCH_UP, "s1", third[1]) == 1
    assert await link.run_script(lua_scripts.MARK_DELIVERED, "s1", third[1], "8-0") == 0
    assert (await link.run_script(lua_scripts.CLAIM_SESSION, "s1", "fourth"))[0] == b"9-0"


async def test_what_a_worker_says_of_an_earlier_claim_does_not_count_for_its_later_one(
    redis: Any, link: SharedStoreLink
):
    redis.delete(f"p:server:name=notes:shared:lease:{link.worker}")
    redis.hset("p:server:name=notes:shared:session:s1", "delivered", "4-0")
    first = await link.run_script(lua_scripts.CLAIM_SESSION, "s1", "again")
    await link.run_script(lua_scripts.CLAIM_SESSION, "s1", "other")
    second = await link.run_script(lua_scripts.CLAIM_SESSION, "s1", "again")
    assert await link.run_script(lua_scripts.MARK_DELIVERED, "s1", first[1], "8-0") == 0
    assert await link.run_script(lua_scripts.END_CATCH_UP, "s1", first[1]) == 0
    assert await link.run_script(lua_scripts.CLAIM_SESSION, "s1", "again") == second


async def test_a_worker_that_is_cut_off_while_it_begins_goes_on_where_it_began(
    redis: Any, link: SharedStoreLink, monkeypatch: pytest.MonkeyPatch
):
    late, received = (
        SharedStoreLink(f"redis+unix://{redis.connection_pool.connection_kwargs['path']}?prefix=p:", NOTES),
        [],
    )
    real = late._read_streams

    async def fail_once(*args: Any) -> Any:
        monkeypatch.setattr(late, "_read_streams", real)
        assert link.publish_update("t", "x", "d", "first") and await link.wait_until_written(20)
        raise StoreUnavailable("The store cannot be reached")

    late.add_receiver("x", lambda fields, id: received.append(fields["d"]))
    monkeypatch.setattr(late, "_read_streams", fail_once)
    await late.start()
    await until(lambda: received == [b"first"])
    await late.stop()


async def read_everywhere(redis: Any, link: SharedStoreLink, received: list[bytes]) -> None:
    """Have the link read one entry of each of its streams, so that it goes on from there."""
    link.add_receiver("x", lambda fields, id: received.append(fields["d"]))
    await link.run_script(lua_scripts.PUBLISH_UPDATE, "", "", "t", "x", "d", "news")
    await link.run_script(lua_scripts.SEND_MAIL, "", "", link.worker, "t", "x", "d", "mail")
    await link.run_script(lua_scripts.SEND_SIGNAL, "t", "x", "d", "signal")
    await until(lambda: sorted(received) == [b"mail", b"news", b"signal"])
    received.clear()


@asynccontextmanager
async def cut_off(redis: Any, link: SharedStoreLink) -> AsyncIterator[None]:
    """Cut the link's connections. Inside, where nothing may be awaited, it is away; afterwards it is up again."""
    await until(lambda: any("b" in each["flags"] for each in redis.client_list()))  # it waits for something to read
    since = link.up_since
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield
    await until(lambda: link.is_up and link.up_since > since)


async def test_a_store_that_comes_back_empty_and_with_its_clock_behind_is_read_on(redis: Any, link: SharedStoreLink):
    received: list[bytes] = []
    await read_everywhere(redis, link, received)
    lost: list[str] = []
    link.news_lost.append(lambda: lost.append(link.last_read_update_id))
    link.unfinished["work"] = link.last_read_update_id
    box = f"mail:{link.worker}"
    async with cut_off(redis, link):
        redis.flushall()
        for stream in ("news", box):
            redis.xadd(f"p:server:name=notes:shared:{stream}", {"t": "x", "d": f"early {stream[:4]}"}, id="5-0")
    # Those who are told that news is lost read everything again. Mail is nowhere else.
    assert (lost, received) == (["5-0"], [b"early mail"])
    for stream in ("news", "signals", box):
        redis.xadd(f"p:server:name=notes:shared:{stream}", {"t": "x", "d": stream[:4]}, id="6-0")
    await until(lambda: len(received) == 4)
    assert sorted(received) == [b"early mail", b"mail", b"news", b"sign"]
    assert link.last_read_update_id == "6-0" and link.has_read_own_updates
    assert link._settle() == "5-0"
    link.unfinished.clear()
    assert link._settle() == "6-0"


async def test_news_that_a_replica_still_has_when_it_takes_over_is_not_received_twice(
    redis: Any, link: SharedStoreLink
):
    received: list[bytes] = []
    redis.xadd("p:server:name=notes:shared:news", {"t": "x", "d": "old"}, id="5-0")
    await until(lambda: link.last_read_update_id == "5-0")
    news = redis.dump("p:server:name=notes:shared:news")
    await read_everywhere(redis, link, received)
    async with cut_off(redis, link):
        redis.restore("p:server:name=notes:shared:news", 0, news, replace=True)
    redis.xadd("p:server:name=notes:shared:news", {"t": "x", "d": "next"}, id="6-0")
    await until(lambda: bool(received))
    assert received == [b"next"]


async def test_news_that_came_while_a_link_was_away_is_received_even_if_what_was_before_is_trimmed(
    redis: Any, link: SharedStoreLink
):
    received: list[bytes] = []
    await read_everywhere(redis, link, received)
    async with cut_off(redis, link):
        redis.xadd("p:server:name=notes:shared:news", {"t": "x", "d": "next"})
        redis.xdel("p:server:name=notes:shared:news", link.last_read_update_id)
    assert received == [b"next"]


async def test_mail_of_a_store_with_its_clock_behind_is_not_dropped_before_it_is_read(
    redis: Any, link: SharedStoreLink
):
    redis.xadd("p:server:name=notes:shared:mail:absent", {"t": "x"}, id="5-0")
    await link.run_script(lua_scripts.RENEW_LEASE, "absent", TTL, "0-0", "99-0")
    assert redis.xlen("p:server:name=notes:shared:mail:absent") == 1


async def test_a_link_follows_its_address_to_another_primary() -> None:
    primaries = [RedisServer().start()]
    async with balancing(primaries) as address:
        link = SharedStoreLink(address, ServerIdentity("name", "s"))
        await link.start()
        await link._redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        primaries.append(RedisServer().start())
        assert link.publish_update("t", "x") and await link.wait_until_written(10)
        await until(lambda: link.is_up)
        await link.stop()
    for each in primaries:
        each.remove()
