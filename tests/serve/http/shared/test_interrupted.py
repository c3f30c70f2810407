"""What dies with a process: only its calls. Who comes back for one is told, exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.asgi import Exchange
from tests.serve.http.shared.group import Client, Group

pytestmark = pytest.mark.anyio

SOON = 0.05


@pytest.fixture(autouse=True)
def no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no lease is dead at once, not only some seconds after the store was reached."""
    monkeypatch.setattr("defserve.stores.shared.worker_link.SharedStoreLink.can_trust_leases", True)
    monkeypatch.setattr("defserve.serve.http.redis_log.LOOK_SECONDS", SOON)


async def begun(group: Group, client: Client) -> Exchange:
    """A call of process one, of which the client has seen an event."""
    call = client.at("one").begin_call("count", {"total": 9}, id="c")
    group["one"].steps.put_nowait(1)
    await call.until(lambda: bool(call.messages))
    return call


def errors(exchange: Exchange) -> list[Any]:
    return [message.get("error", {}).get("message", message) for message in exchange.messages]


TOLD = ["the process that ran this call died; send it again"]


async def test_who_resumes_a_call_of_a_dead_process_is_told_once(group: Group):
    client = await group.client()
    call = await begun(group, client)
    seen = call.events[-1].id
    await group["one"].kill()
    await group.start("three")
    told = [client.at(name).listen(seen) for name in ("two", "three", "two")]
    results = [await exchange.ended() for exchange in told]
    assert all(errors(exchange) in ([], TOLD) for exchange in results)  # who is replaced need not have it
    last = await client.at("two").listen(seen).ended()
    assert errors(last) == TOLD
    assert last.messages[0]["id"] == "c"
    ids = {event.id for exchange in (*results, last) for event in exchange.events if event.data}
    assert ids == {last.events[-1].id}
    call.leave()


async def test_who_reads_a_call_when_its_process_dies_is_told(group: Group):
    client = await group.client()
    call = await begun(group, client)
    reading = await client.at("two").listen(call.events[-1].id).started()
    await asyncio.sleep(2 * SOON)
    assert errors(reading) == []  # it lives
    await group["one"].kill()
    await reading.ended()
    assert errors(reading) == TOLD


async def test_a_process_that_was_thought_dead_answers_no_second_time(group: Group):
    client = await group.client()
    call = await begun(group, client)
    seen = call.events[-1].id
    one = group["one"]
    await one.lose_lease()
    told = await client.at("two").listen(seen).ended()
    one.steps.put_nowait(9)  # it lives, and ends its call
    await call.ended()
    again = await client.at("two").listen(seen).ended()
    assert errors(told) == errors(again) == TOLD
    assert [message["id"] for message in call.messages if "id" in message] in ([], ["c"])
    assert "counted" not in call.body.decode()


async def test_the_session_goes_on_without_the_process_that_opened_it(group: Group):
    client = await group.client()
    await group["one"].kill()
    assert await client.at("two").call("who") == "two"
    await group.start("three")
    assert await client.at("three").call("who") == "three"


async def test_a_process_that_ends_tells_who_comes_back_for_its_calls(group: Group):
    client = await group.client()
    call = await begun(group, client)
    seen = call.events[-1].id
    reading = await client.at("two").listen(seen).started()
    await group.stop("one")
    await reading.ended()
    assert errors(reading) == TOLD
    assert await client.at("two").call("who") == "two"


async def test_questions_that_were_answered_elsewhere_take_no_room_for_ever(group: Group):
    client = await group.client(capabilities={"elicitation": {}})
    call = client.at("one").begin_call("asks")
    question = await call.next()
    name, _, place = str(call.events[-1].id).rpartition("-")
    link = group["two"].link
    stream = f"{link._prefix}stream:{client.session}:{name}"
    assert await link._redis.hexists(stream, f"q:{place}")
    await client.at("two").answer(question, {"action": "accept", "content": {"value": "Ada"}})
    assert not await link._redis.hexists(stream, f"q:{place}")
    await call.ended()
