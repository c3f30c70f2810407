"""Streams outlive their connections: a client that comes back with the last id it saw goes on where it was."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from defserve import Context, Limits, Server
from defserve.serve.http import session_log
from tests.asgi import Exchange, Peer, last, living, text
from tests.raw import HANDSHAKE, PREFIX, STATELESS, turns, until

pytestmark = pytest.mark.anyio

LATEST = HANDSHAKE[-1]


class Tools:
    """The server under test. `steps` lets `count` go on, by so many messages."""

    def __init__(self, shared: str | None = None, **limits: Any) -> None:
        self.server = Server("web", "1", limits=Limits(**limits), shared=shared, secret="s" * 32)
        self.steps: asyncio.Queue[int] = asyncio.Queue()
        self.finished = 0
        self.server.tool(self.count)
        self.server.tool(self.poll)
        self.server.resource("memo://a")(self.memo)

    async def count(self, total: int, ctx: Context) -> str:
        """Log the numbers up to `total`, in steps."""
        number = 0
        while number < total:
            for _ in range(min(await self.steps.get(), total - number)):
                ctx.log.info(str(number))
                number += 1
        self.finished += 1
        return f"{total} counted"

    async def poll(self, ctx: Context, before: int = 0) -> str:
        """Send the client away, and answer it when it is back or not."""
        for number in range(before):
            ctx.log.info(f"before {number}")
        ctx.drop_connection()
        ctx.log.info("after")
        await self.steps.get()
        return "polled"

    async def memo(self) -> str:
        return "a"


@pytest.fixture
def tools(shared: str | None) -> Tools:
    return Tools(shared)


@pytest.fixture
async def app(tools: Tools) -> AsyncIterator[Any]:
    async with living(tools.server.asgi()) as app:
        yield app


def data(exchange: Exchange) -> list[str]:
    return [m["params"]["data"] for m in exchange.messages if m.get("method") == "notifications/message"]


async def leave(exchange: Exchange) -> None:
    exchange.leave()
    await exchange.ended()


async def next_of(exchange: Exchange, count: int) -> None:
    await exchange.until(lambda: len(data(exchange)) >= count)


# Coming back.


@pytest.mark.req("MCP-3.2")
@pytest.mark.parametrize("version", [v for v in HANDSHAKE if v >= "2025-03-26"])
async def test_a_client_that_comes_back_gets_what_it_missed_and_the_rest(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    first = client.begin_call("count", {"total": 6})
    tools.steps.put_nowait(2)
    await next_of(first, 2)
    seen = first.events[-1].id
    await leave(first)
    tools.steps.put_nowait(2)
    await turns()
    second = client.listen(seen)
    await next_of(second, 2)
    tools.steps.put_nowait(2)
    await second.ended()
    assert data(first) + data(second) == ["0", "1", "2", "3", "4", "5"]
    assert text(last(second)) == "6 counted"
    assert second.complete


async def test_the_result_is_kept_for_who_left(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = client.begin_call("count", {"total": 2})
    tools.steps.put_nowait(1)
    await next_of(exchange, 1)
    seen = exchange.events[-1].id
    await leave(exchange)
    tools.steps.put_nowait(1)
    await until(lambda: tools.finished == 1)
    await turns()
    for _ in range(2):  # an answer that got lost on its way can be asked for again
        again = await client.listen(seen).ended()
        assert (data(again), text(last(again)), again.complete) == (["1"], "2 counted", True)


async def test_a_stream_goes_on_from_any_of_its_events(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = client.begin_call("count", {"total": 5})
    tools.steps.put_nowait(5)
    await exchange.ended()
    ids = [event.id for event in exchange.events]
    assert len(set(ids)) == len(ids) == 7  # the first has no data
    for place, id in enumerate(ids):
        again = await client.listen(id).ended()
        assert [event.id for event in again.events] == ids[place + 1 :]


async def test_only_the_stream_of_the_id_is_replayed(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    standalone = client.listen()
    mine, other = client.begin_call("count", {"total": 1}), client.begin_call("count", {"total": 1})
    tools.server.resource_updated("memo://a")
    for _ in range(2):
        tools.steps.put_nowait(1)
    await mine.ended()
    await other.ended()
    await standalone.next()
    again = await client.listen(mine.events[0].id).ended()
    assert [event.data for event in again.events] == [event.data for event in mine.events[1:]]
    await leave(standalone)


async def test_the_stream_of_the_session_goes_on_too(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    first = client.listen()
    tools.server.resource_updated("memo://a")
    await first.next()
    seen = first.events[-1].id
    await leave(first)
    for _ in range(2):
        tools.server.resource_updated("memo://a")
    second = client.listen(seen)
    await second.until(lambda: len(second.messages) == 2)
    tools.server.resource_updated("memo://a")
    await second.until(lambda: len(second.messages) == 3)
    await leave(second)


async def test_who_comes_back_before_we_know_that_it_left_takes_the_stream_over(tools: Tools, app: Any):
    client = await Peer(app).open()
    first = client.begin_call("count", {"total": 4})
    tools.steps.put_nowait(2)
    await next_of(first, 2)
    second = await client.listen(first.events[-1].id).started()
    assert (await first.ended()).complete
    tools.steps.put_nowait(2)
    await second.ended()
    assert data(first) + data(second) == ["0", "1", "2", "3"]
    assert text(last(second)) == "4 counted"


# Ids that are not ours.


@pytest.mark.parametrize("id", ["", "x", "0-1-1", "ffffffffffff-1-1", "call-1", "1", "\x00"])
async def test_an_unknown_id_is_not_found(tools: Tools, app: Any, id: str):
    client = await Peer(app).open()
    tools.steps.put_nowait(1)
    await client.begin_call("count", {"total": 1}).ended()
    assert (await client.listen(id).ended()).status == 404


async def test_an_id_of_the_future_is_not_found(tools: Tools, app: Any):
    client = await Peer(app).open()
    tools.steps.put_nowait(1)
    exchange = await client.begin_call("count", {"total": 1}).ended()
    name, _, _ = str(exchange.events[-1].id).rpartition("-")
    for id in (f"{name}-999", f"{name}9-0", f"{name}-1-1"):
        assert (await client.listen(id).ended()).status == 404


@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.7"])
async def test_an_id_of_another_session_is_not_found(tools: Tools, app: Any, address: str):
    mine = await Peer(app).open()
    tools.steps.put_nowait(1)
    exchange = await mine.begin_call("count", {"total": 1}).ended()
    other = Peer(app)
    other.address = address
    await other.open()
    assert (await other.listen(exchange.events[0].id).ended()).status == 404


async def test_after_the_end_of_the_session_nothing_is_kept(tools: Tools, app: Any):
    client = await Peer(app).open()
    tools.steps.put_nowait(1)
    exchange = await client.begin_call("count", {"total": 1}).ended()
    await client.delete().ended()
    assert (await client.listen(exchange.events[0].id).ended()).status == 404


# Priming and polling (SEP-1699).


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_stream_begins_with_an_empty_event_where_clients_know_it(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    tools.steps.put_nowait(1)
    exchange = await client.begin_call("count", {"total": 1}).ended()
    first = exchange.events[0]
    if version == LATEST:
        assert (first.data, bool(first.id), int(first.retry or 0) > 0) == ("", True, True)
    else:
        assert all(event.data and event.retry is None for event in exchange.events)
    assert all(event.id for event in exchange.events)


async def test_who_came_back_and_is_cut_off_again_has_an_id_to_come_back_with(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = client.begin_call("count", {"total": 1})
    for _ in range(3):
        await exchange.until(lambda cut=exchange: bool(cut.events))
        (primed,) = exchange.events
        assert (primed.data, bool(primed.id)) == ("", True)
        await leave(exchange)
        exchange = client.listen(primed.id)
    tools.steps.put_nowait(1)
    await exchange.ended()
    assert (data(exchange), text(last(exchange))) == (["0"], "1 counted")


@pytest.mark.parametrize("before", [0, 3])
async def test_a_call_may_send_its_client_away_to_poll(tools: Tools, app: Any, before: int):
    client = await Peer(app).open()
    exchange = await client.begin_call("poll", {"before": before}).ended()
    assert (exchange.status, exchange.complete) == (200, True)
    assert exchange.events[0].retry and not exchange.events[0].data
    assert data(exchange) == [f"before {number}" for number in range(before)]
    polling = client.listen(exchange.events[-1].id)
    await next_of(polling, 1)
    tools.steps.put_nowait(1)
    await polling.ended()
    assert (data(polling), text(last(polling))) == (["after"], "polled")


async def test_a_client_may_poll_after_the_answer_is_there(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = await client.begin_call("poll").ended()
    tools.steps.put_nowait(1)
    await turns()
    polling = await client.listen(exchange.events[-1].id).ended()
    assert (data(polling), text(last(polling))) == (["after"], "polled")


@pytest.mark.parametrize("version", [*(v for v in HANDSHAKE if v != LATEST), STATELESS])
async def test_where_no_client_polls_none_is_sent_away(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    tools.steps.put_nowait(1)
    assert await client.call("poll") == "polled"


async def test_in_memory_there_is_no_connection_to_drop(tools: Tools):
    async with tools.server.connect() as client:
        tools.steps.put_nowait(1)
        assert await client.call("poll") == "polled"


async def test_a_thread_may_send_its_client_away(tools: Tools, app: Any):
    @tools.server.tool
    def threaded(ctx: Context) -> str:
        ctx.drop_connection()
        return "from a thread"

    client = await Peer(app).open()
    exchange = await client.begin_call("threaded").ended()
    if exchange.events[-1].data:  # the answer was faster
        assert text(last(exchange)) == "from a thread"
    else:
        polling = await client.listen(exchange.events[-1].id).ended()
        assert text(last(polling)) == "from a thread"


# In bulk.


async def test_a_thousand_events_survive_random_drops(tools: Tools, app: Any):
    dice = random.Random(3)
    client = await Peer(app).open()
    exchange = client.begin_call("count", {"total": 1_000})
    seen: list[str] = []
    drops = 0
    while True:
        start = len(seen)
        tools.steps.put_nowait(dice.randint(1, 60))
        await exchange.until(lambda e=exchange: e.complete or data(e))
        for _ in range(dice.randint(0, 5)):
            await asyncio.sleep(0)
        # Whatever arrived whole by now was seen; the client leaves in the middle of the rest.
        taken = len(data(exchange)) if exchange.complete else dice.randint(1, len(data(exchange)))
        seen += data(exchange)[:taken]
        if exchange.complete:
            break
        id = [event.id for event in exchange.events if event.data][taken - 1]
        exchange.leave()
        if dice.random() < 0.5:
            await exchange.ended()
        drops += 1
        assert len(seen) > start
        exchange = client.listen(id)
        tools.steps.put_nowait(dice.randint(1, 20))
    assert seen == [str(number) for number in range(1_000)]
    assert text(last(exchange)) == "1000 counted"
    assert drops > 20


@pytest.mark.slow
async def test_answers_nobody_came_back_for_are_bounded_in_memory(monkeypatch: pytest.MonkeyPatch):
    most = 10
    monkeypatch.setattr(session_log, "MAX_UNREAD_MESSAGES", most)
    tools = Tools()
    async with living(tools.server.asgi()) as app:
        client = await Peer(app).open()
        (web,) = app.streamable.sessions
        ids: list[str | None] = []
        for _ in range(most + 80):
            exchange = client.begin_call("poll")
            ids.append((await exchange.ended()).events[0].id)
            tools.steps.put_nowait(1)
            await until(lambda: not web.streams)
        assert len(web.log.events._streams) <= most + 70
        assert (await client.listen(ids[0]).ended()).status == 404
        assert text(last(await client.listen(ids[-most]).ended())) == "polled"


@pytest.mark.slow
@pytest.mark.parametrize("hundreds", [2, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.parametrize("version", [LATEST, STATELESS])
async def test_hundreds_of_clients_that_leave_anywhere_leave_nothing_behind(version: str, hundreds: int):
    dice = random.Random(7)
    tools = Tools(sessions_per_principal=2_000, in_flight_total=5_000)
    async with living(tools.server.asgi()) as app:
        warm = await Peer(app, version).open()
        tools.steps.put_nowait(1)
        await warm.call("count", {"total": 1}, _meta={PREFIX + "logLevel": "info"})
        if warm.session:
            await warm.delete().ended()
        await turns()
        tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        watched: list[weakref.ref[Any]] = []

        async def visit() -> None:
            client = await Peer(app, version).open()
            exchange = client.begin_call("count", {"total": 3}, _meta={PREFIX + "logLevel": "info"})
            for _ in range(dice.randint(0, 6)):
                await asyncio.sleep(0)
            exchange.leave()
            await exchange.ended()
            if client.session is not None:
                assert (await client.delete().ended()).status == 204

        for _ in range(hundreds):
            tools.steps.put_nowait(dice.randint(0, 3))
            await asyncio.gather(*(visit() for _ in range(100)))
        composition = tools.server.composition
        watched += [weakref.ref(session) for session in composition.sessions | composition.short_sessions]
        await turns()
        gc.collect()
        assert not composition.sessions and not composition.short_sessions and not composition.running
        assert len(app.streamable.sessions) == 0
        assert not [ref for ref in watched if ref() is not None]
        assert len(asyncio.all_tasks()) <= tasks
        assert len(os.listdir("/proc/self/fd")) <= files
