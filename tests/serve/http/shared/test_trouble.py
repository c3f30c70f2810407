"""The store fails in the middle of something: what was begun can be done again, and nobody else suffers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from defserve import Server
from defserve.auth.principals import Principal
from defserve.errors import LimitExceeded
from defserve.serve.http.streams import StreamReader
from defserve.stores.shared import worker_link
from defserve.stores.shared.lua_scripts import CLAIM_SESSION, LOAD_SESSION, TOUCH_SESSION
from defserve.stores.store import StoreUnavailable
from tests.asgi import HANDSHAKE, STATELESS, last, text
from tests.serve.http.shared.group import Client, Group, Worker, held_back, leave, log, logs, session
from tests.waiting import until

pytestmark = pytest.mark.anyio

STRANGER = Principal("stranger")


async def owner(worker: Worker, client: Client) -> str:
    return (await worker.link._redis.hget(f"{worker.link._prefix}session:{client.session}", "owner")).decode()


def failing_once(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    real = getattr(owner, name)

    async def fail(*args: Any) -> Any:
        patch.setattr(owner, name, real)
        raise StoreUnavailable("The store cannot be reached")

    patch.setattr(owner, name, fail)


async def test_a_stranger_who_knows_an_id_moves_nothing_and_stops_nobody(group: Group):
    client = await group.client("one")
    opener, one = session(group["one"], client).opener, group["one"].link.worker
    await group["one"].kill()
    two = logs(group["two"])
    await two.load_session(client.session, STRANGER)
    assert await owner(group["two"], client) == one and not group["two"].known
    await asyncio.gather(two.load_session(client.session, STRANGER), two.load_session(client.session, opener))
    assert group["two"].known == {client.session}
    assert await owner(group["two"], client) == group["two"].link.worker


async def test_a_session_that_could_not_move_in_does_so_the_next_time(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client("one")
    await group["one"].kill()
    failing_once(monkeypatch, group["two"].link, "read_updates_after")
    table = logs(group["two"])
    assert (await client.at("two").begin_call("who").ended()).status == 503
    assert table.list_owned_logs() == []
    assert await client.at("two").call("who") == "two"
    assert table.list_owned_logs() == [log(group["two"], client)]


async def test_a_reader_that_could_not_begin_leaves_its_place(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client("one")
    await client.at("two").call("who")
    session(group["one"], client).conversation.notify("notifications/message", {"data": "early", "level": "info"})
    await log(group["one"], client).wait_until_written()
    failing_once(monkeypatch, StreamReader, "deliver_stored_events")
    assert (await client.at("two").listen().ended()).status == 503
    assert session(group["two"], client).reading == {}
    await log(group["two"], client).wait_until_written()
    stream = client.at("one").listen()
    await stream.until(lambda: bool(stream.messages))
    assert [message["params"]["data"] for message in stream.messages] == ["early"]
    await leave(stream)


async def test_a_process_that_was_thought_dead_reads_what_nobody_told_it(group: Group):
    client = await group.client("one")
    stream = await client.at("two").listen().started()
    two, one = group["two"].link, log(group["one"], client)
    await two._redis.delete(f"{two._prefix}lease:{two.worker}")
    one.conversation.notify("notifications/message", {"data": "missed", "level": "info"})
    await one.wait_until_written()
    await stream.until(lambda: bool(stream.messages))
    await leave(stream)


async def test_a_session_that_cannot_be_refreshed_keeps_no_change_from_others(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    broken, well = await group.client("one"), await group.client("one")
    await well.at("one").ask("resources/subscribe", {"uri": "memo://a"})
    stream = await well.at("one").listen().started()
    table = logs(group["one"])
    real = table._load

    async def load(id: str, principal: Principal) -> None:
        if id == broken.session:
            raise StoreUnavailable("The store cannot be reached")
        await real(id, principal)

    monkeypatch.setattr(table, "_load", load)
    for client in (broken, well):
        log(group["one"], client).is_stale = True
    group["two"].server.resource_updated("memo://a")
    await stream.until(lambda: bool(stream.messages))
    await leave(stream)


async def test_what_cannot_be_queued_is_refused_and_kept_later(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client("one")
    with monkeypatch.context() as patch:
        patch.setattr(worker_link, "QUEUED_BYTES", -1)
        refused = await client.at("one").begin_request("logging/setLevel", {"level": "debug"}).ended()
        assert refused.status == 503 and log(group["one"], client).has_unsaved_changes
    await client.at("one").ask("resources/subscribe", {"uri": "memo://a"})
    await client.knows("two", lambda log: "debug" in str(log.known))


async def test_cancellations_of_calls_elsewhere_do_not_queue_without_end(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client("one")
    one, link = log(group["one"], client), group["one"].link
    for most, is_sent in ((worker_link.QUEUED_BYTES, True), (-1, False)):
        monkeypatch.setattr(worker_link, "QUEUED_BYTES", most)
        one.cancel_elsewhere("unknown", one.session.opener)
        assert link.is_written is not is_sent
        await until(lambda: link.is_written)


async def test_a_result_is_given_although_its_session_cannot_be_kept(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client("one")
    one = log(group["one"], client)

    def too_much() -> dict[str, str]:
        raise LimitExceeded("too much to remember for this session", data={"limit": "session"})

    monkeypatch.setattr(one, "make_record", too_much)
    call = client.at("one").begin_call("wait")
    await call.until(lambda: any(event.id for event in call.events))
    one.mark_dirty()
    group["one"].go.set()
    await call.ended()
    assert text(last(call)) == "one waited"


async def test_what_is_loaded_has_what_was_changed_here_before(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client("one")
    one, link, gate = log(group["one"], client), group["one"].link, asyncio.Event()
    real = link._writes._send

    async def send(batch: Any) -> Any:
        await gate.wait()
        return await real(batch)

    monkeypatch.setattr(link._writes, "_send", send)
    one.credentials["k"] = one.session.opener
    one.update_record(
        ["credential:k", '{"id": "me", "kind": "token", "scopes": [], "claims": {}, "credential": "k"}'], []
    )
    loading = asyncio.create_task(logs(group["one"]).load_session(client.session, one.session.opener))
    for _ in range(3):
        await link.run_script(TOUCH_SESSION, client.session, one.ttl)
    gate.set()
    await loading
    assert "k" in one.credentials


async def some_round_trips(link: Any, session: Any) -> None:
    for _ in range(3):
        await link.run_script(TOUCH_SESSION, session.id, session.ttl)


async def test_a_stream_that_the_store_does_not_know_yet_is_not_ended(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client("one")
    one, link = log(group["one"], client), group["one"].link
    with held_back(monkeypatch, link):
        call = client.at("one").begin_call("wait")
        await until(lambda: bool(one.session.reading))
        for lease_lost in link.lease_lost:
            lease_lost()  # it reads all its streams again
        await some_round_trips(link, one)
        assert not call.complete
    group["one"].go.set()
    await call.ended()
    assert text(last(call)) == "one waited"


@pytest.mark.parametrize("version", [HANDSHAKE[-1], STATELESS])
@pytest.mark.parametrize("tool", ["touch", "touch_later"])
async def test_a_call_that_tells_everybody_something_is_answered_when_the_store_has_it(
    pair: Group, monkeypatch: pytest.MonkeyPatch, version: str, tool: str
):
    def declare(server: Server) -> None:
        @server.tool
        async def touch() -> None:
            server.resource_updated("memo://a")

        @server.tool
        async def touch_later() -> None:
            await asyncio.sleep(0)
            server.resource_updated("memo://a")

    await pair.start("one", declare=declare)
    client, link = await pair.client("one", version=version), pair["one"].link
    with held_back(monkeypatch, link):
        call = client.at("one").begin_call(tool)
        await until(lambda: not link.is_written)
        assert await client.at("one").call("who") == "one"  # others do not wait for it
        assert not call.complete
    assert (await call.ended()).status == 200
    assert link.is_written


async def test_news_that_comes_while_a_session_cannot_be_loaded_is_told_later(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client = await group.client("one")
    stream = await client.at("one").listen().started()
    one, link = log(group["one"], client), group["one"].link

    async def fail(*_: Any) -> None:
        raise StoreUnavailable("The store cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(logs(group["one"]), "_load", fail)
        await client.at("two").ask("resources/subscribe", {"uri": "memo://a"})
        group["two"].server.resource_updated("memo://a")
        await until(lambda: bool(one.missed))
    assert link._settle() < one.missed[0][0]  # if this process dies now, the next one tells it
    link.renewed[-1]()
    await stream.until(lambda: bool(stream.messages))
    assert stream.messages[0]["params"] == {"uri": "memo://a"}
    await until(lambda: not link.behind)
    await leave(stream)


async def test_a_client_that_resumes_has_an_id_to_resume_with_again(group: Group):
    client = await group.client("one")
    first = await client.at("one").listen().started()
    await first.until(lambda: bool(first.events))
    session(group["one"], client).conversation.notify("notifications/message", {"data": "new", "level": "info"})
    await first.until(lambda: bool(first.messages))
    newest = first.events[-1].id
    for seen, has_missed in ((first.events[0].id, True), (newest, False)):
        again = await client.at("two").listen(seen).started()
        await again.until(lambda again=again: bool(again.events))
        assert again.events[0].id == newest and bool(again.events[0].data) is has_missed
        await leave(again)


@contextmanager
def late_replies(patch: pytest.MonkeyPatch, link: Any) -> Generator[list[str]]:
    """Inside, what is read of sessions arrives late. Gives the ids of those that are on their way."""
    gate, real, read = asyncio.Event(), link.run_script, list[str]()

    async def run(script: str, *args: Any) -> Any:
        reply = await real(script, *args)
        if script == LOAD_SESSION and not gate.is_set():
            read.append(args[0])
            await gate.wait()
        return reply

    patch.setattr(link, "run_script", run)
    yield read
    gate.set()


async def have_the_same_news(*workers: Worker) -> None:
    await until(lambda: len({worker.link.handled_news for worker in workers}) == 1)


@pytest.mark.parametrize("is_known", [True, False])
async def test_what_changes_while_a_session_is_loaded_is_known_then(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_known: bool
):
    client, one, two = await group.client("one"), group["one"], group["two"]
    with late_replies(monkeypatch, two.link if not is_known else one.link) as read:
        if is_known:
            stream = await client.at("one").listen().started()
            await client.at("two").ask("logging/setLevel", {"level": "debug"})
        else:
            asking = client.at("two").begin_call("who")
        await until(lambda: bool(read))
        await client.at("two" if is_known else "one").ask("resources/subscribe", {"uri": "memo://a"})
        await have_the_same_news(one, two)
    if is_known:
        two.server.resource_updated("memo://a")
        await stream.until(lambda: bool(stream.messages))
        await leave(stream)
    else:
        await asking.ended()
        assert "memo://a" in str(log(two, client).known)


async def test_a_new_owner_knows_what_was_subscribed_to_before_the_news_that_it_tells(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client, two = await group.client("one"), group["two"]
    three = await group.start("three")
    stream = await client.at("three").listen().started()
    await group["one"].kill()
    gate, real, claims = asyncio.Event(), two.link.run_script, list[str]()

    async def run(script: str, *args: Any) -> Any:
        if script == CLAIM_SESSION:
            claims.append(args[0])
            await gate.wait()
        return await real(script, *args)

    monkeypatch.setattr(two.link, "run_script", run)
    asking = client.at("two").begin_call("who")
    await until(lambda: bool(claims))  # it has read the record
    await client.at("three").ask("resources/subscribe", {"uri": "memo://a"})
    three.server.resource_updated("memo://a")
    await until(lambda: three.link.is_written)
    await have_the_same_news(two, three)
    gate.set()
    await asking.ended()
    await stream.until(lambda: bool(stream.messages))
    await leave(stream)


async def test_a_session_that_cannot_be_loaded_when_nobody_waits_any_more_is_no_complaint(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    client, table, fail = await group.client("one"), logs(group["two"]), asyncio.Event()
    said: list[Any] = []

    async def load(*_: Any) -> None:
        await fail.wait()
        raise StoreUnavailable("The store cannot be reached")

    monkeypatch.setattr(table, "_load", load)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    waiting = asyncio.create_task(table.load_session(client.session, STRANGER))
    await until(lambda: bool(table._loading))
    waiting.cancel()
    await asyncio.wait((waiting,))
    fail.set()
    await until(lambda: not table._loading)
    del waiting
    gc.collect()
    assert said == []
