"""A stream can be resumed in any process. Nothing of it is lost or doubled, and its order is kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.asgi import Exchange, last, text
from tests.serve.http.shared.group import Group
from tests.serve.web_tools import settled

pytestmark = pytest.mark.anyio


def data(*exchanges: Exchange) -> list[str]:
    found = [m for exchange in exchanges for m in exchange.messages]
    return [m["params"]["data"] for m in found if m.get("method") == "notifications/message"]


async def leave(exchange: Exchange) -> None:
    exchange.leave()
    await exchange.ended()


@pytest.mark.parametrize("elsewhere", ["one", "two"])
async def test_a_client_goes_on_reading_in_any_process(group: Group, elsewhere: str):
    client = await group.client()
    first = client.at("one").begin_call("count", {"total": 6})
    group["one"].steps.put_nowait(2)
    await first.until(lambda: len(data(first)) == 2)
    seen = first.events[-1].id
    await leave(first)
    group["one"].steps.put_nowait(2)
    second = client.at(elsewhere).listen(seen)
    await second.until(lambda: len(data(second)) == 2)
    group["one"].steps.put_nowait(2)
    await second.ended()
    assert data(first, second) == ["0", "1", "2", "3", "4", "5"]
    assert text(last(second)) == "6 counted"
    assert second.complete
    again = await client.at(elsewhere).listen(seen).ended()
    assert [event.id for event in again.events] == [event.id for event in second.events if event.data]
    assert (await client.at(elsewhere).listen(again.events[-1].id).ended()).status == 204  # it has all


async def test_a_stream_moves_from_process_to_process_while_it_is_written(group: Group):
    client = await group.client()
    exchanges = [client.at("one").begin_call("count", {"total": 40})]
    for turn in range(20):
        group["one"].steps.put_nowait(2)
        exchange = exchanges[-1]
        await exchange.until(lambda exchange=exchange: bool(data(exchange)))
        seen = exchange.events[-1].id
        following = client.at(("one", "two")[turn % 2]).listen(seen)
        await exchange.ended()  # a stream has one reader: the newest
        # What came after the client has looked is read by both; a client knows it by its id.
        body = exchange.body.decode()
        at = body.index(f"id: {seen}\n")
        exchange.body = body[: body.index("\n\n", at) + 2].encode()
        exchanges.append(following)
    await exchanges[-1].ended()
    assert data(*exchanges) == [str(number) for number in range(40)]
    assert text(last(exchanges[-1])) == "40 counted"


async def test_a_call_whose_client_hangs_up_at_once_can_be_resumed_elsewhere(group: Group):
    client = await group.client()
    call = client.at("one").begin_call("wait")
    await call.until(lambda: any(event.id for event in call.events))
    assert call.messages == []  # an id to come back with, and nothing else
    seen = call.events[-1].id
    await leave(call)
    rest = client.at("two").listen(seen)
    await rest.started()
    group["one"].go.set()
    await rest.ended()
    assert text(last(rest)) == "one waited"


async def test_the_session_s_own_stream_has_events_of_all_processes(group: Group):
    client = await group.client()
    await client.at("two").call("who")
    first = client.at("one").listen()
    await first.started()
    sessions = {name: next(iter(group[name].app.streamable.sessions)).conversation for name in ("one", "two")}
    for turn in range(10):
        for name in ("one", "two"):
            sessions[name].notify("notifications/message", {"data": f"{name} {turn}", "level": "info"})
    await first.until(lambda: len(data(first)) == 20)
    assert [d for d in data(first) if d.startswith("one")] == [f"one {turn}" for turn in range(10)]
    assert [d for d in data(first) if d.startswith("two")] == [f"two {turn}" for turn in range(10)]
    seen = first.events[10].id  # the first has an id and no data
    replayed = client.at("two").listen(seen)
    await replayed.until(lambda: len(data(replayed)) == 10)
    assert data(replayed) == data(first)[10:]
    await first.ended()  # it was replaced
    await leave(replayed)


async def test_what_waits_for_a_client_is_read_once_wherever_it_comes(group: Group):
    client = await group.client()
    await client.at("two").call("who")
    session = next(iter(group["one"].app.streamable.sessions)).conversation
    session.notify("notifications/message", {"data": "early", "level": "info"})
    first = client.at("two").listen()
    await first.until(lambda: data(first) == ["early"])
    taken = await client.at("one").listen().ended()
    assert taken.status == 409
    await leave(first)
    await settled(group["two"].app)
    session.notify("notifications/message", {"data": "late", "level": "info"})
    second = client.at("one").listen()
    await second.until(lambda: bool(data(second)))
    assert data(second) == ["late"]
    await leave(second)
    await asyncio.sleep(0)


async def test_unknown_places_of_a_stream_are_not_found(group: Group):
    client = await group.client()
    call = client.at("one").begin_call("count", {"total": 1})
    group["one"].steps.put_nowait(1)
    await call.ended()
    name = str(call.events[-1].id).rpartition("-")[0]
    for id in (f"{name}-999", f"{name}x-1", "s-1", "nonsense", "x" * 1000, f"{name}-1-1", "../a-1"):
        assert (await client.at("two").listen(id).ended()).status == 404, id
    other = await group.client()
    assert (await other.at("two").listen(call.events[-1].id).ended()).status == 404
