"""What travels on which stream, when a response becomes one, and what becomes of readers that leave, stall or idle."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from defserve import Context
from defserve.serve.http import exchange as outbox
from defserve.serve.http import sessions, streamable, streams
from tests.asgi import Peer, Web, last, living, peer, request, text
from tests.raw import ERAS, HANDSHAKE, PREFIX, STATELESS, soon, turns
from tests.serve.web_tools import Tools, is_json, is_stream, settled

pytestmark = pytest.mark.anyio

LATEST = HANDSHAKE[-1]


# JSON until something must stream.


@pytest.mark.parametrize("version", ERAS)
async def test_an_answer_alone_is_json_however_long_it_took(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    exchange = client.begin_call("wait")
    await turns()
    assert exchange.status == 0
    tools.go.set()
    assert is_json(await exchange.ended())


@pytest.mark.parametrize("version", ERAS)
async def test_the_first_message_makes_it_a_stream_at_once(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    exchange = client.begin_call("chat", {"messages": 2}, _meta={PREFIX + "logLevel": "info"})
    await exchange.until(lambda: len(exchange.messages) == 2)
    assert (exchange.status, is_stream(exchange), exchange.complete) == (200, True, False)
    assert exchange.headers["cache-control"] == "no-cache, no-transform"
    assert exchange.headers["x-accel-buffering"] == "no"
    tools.go.set()
    await exchange.ended()
    assert [message.get("method") for message in exchange.messages] == ["notifications/message"] * 2 + [None]
    assert exchange.complete and all(len(block.split(b"data: ")) == 2 for block in exchange.body.split(b"\n\n")[:-1])


async def test_the_stateless_era_has_no_event_ids(tools: Tools, app: Any):
    tools.go.set()
    exchange = Peer(app, STATELESS).begin_call("chat", _meta={PREFIX + "logLevel": "info"})
    await exchange.ended()
    assert is_stream(exchange) and not [event for event in exchange.events if event.id or event.retry]


@pytest.mark.parametrize("version", ERAS)
async def test_a_long_silence_makes_it_a_stream_that_is_kept_alive(
    tools: Tools, app: Any, version: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streamable, "MAX_SILENCE_SECONDS", 0.01)
    monkeypatch.setattr(streamable, "HEAD_SECONDS", 0.01)
    client = await Peer(app, version).open()
    exchange = client.begin_call("wait")
    await exchange.until(lambda: exchange.body.count(b": keep-alive\n\n") >= 2)
    assert is_stream(exchange)
    tools.go.set()
    assert text(last(await exchange.ended())) == "waited"


async def test_an_error_after_the_stream_began_is_its_last_event(tools: Tools, app: Any):
    @tools.server.tool
    async def fail(ctx: Context) -> str:
        ctx.log.info("about to")
        raise ValueError("secret")

    client = await Peer(app).open()
    exchange = await client.begin_call("fail").ended()
    assert is_stream(exchange)
    assert exchange.messages[-1]["result"]["isError"] is True
    assert "secret" not in exchange.body.decode()


# Talking back.


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_question_travels_on_the_stream_of_its_call_and_its_answer_is_posted(app: Any, version: str):
    client = await Peer(app, version, {"elicitation": {}}).open()
    standalone = await client.listen().started()
    exchange = client.begin_call("ask")
    question = await exchange.next()
    assert question["method"] == "elicitation/create"
    accepted = {"action": "accept", "content": {"value": "Ada"}}
    assert (await client.answer(question, accepted)).status == 202
    assert text(last(await exchange.ended())) == "hello Ada"
    assert standalone.messages == []
    standalone.leave()
    await standalone.ended()


async def test_sampling_and_roots_travel_there_too(app: Any):
    client = await Peer(app, LATEST, {"sampling": {}, "roots": {}}).open()
    exchange = client.begin_call("everything")
    question = await exchange.next()
    assert question["method"] == "sampling/createMessage"
    written = {"role": "assistant", "content": {"type": "text", "text": "A line."}, "model": "m"}
    await client.answer(question, written)
    question = await exchange.next()
    assert question["method"] == "roots/list"
    await client.answer(question, {"roots": [{"uri": "file:///work"}]})
    assert text(last(await exchange.ended())) == "A line. file:///work"


async def test_a_broken_answer_fails_its_question_at_once(app: Any):
    client = await Peer(app, LATEST, {"elicitation": {}}).open()
    exchange = client.begin_call("ask")
    question = await exchange.next()
    broken = await client.post({"jsonrpc": "1.0", "id": question["id"], "result": {}}, client.its_headers).ended()
    assert broken.status == 400
    assert last(await exchange.ended())["result"]["isError"] is True


async def test_an_answer_from_another_session_is_not_taken(app: Any):
    mine = await Peer(app, LATEST, {"elicitation": {}}).open()
    other = await Peer(app, LATEST, {"elicitation": {}}).open()
    exchange = mine.begin_call("ask")
    question = await exchange.next()
    await other.answer(question, {"action": "accept", "content": {"value": "Eve"}})
    await turns()
    assert not exchange.complete
    await mine.answer(question, {"action": "accept", "content": {"value": "Ada"}})
    assert text(last(await exchange.ended())) == "hello Ada"


# The stream that belongs to no call.


async def test_news_travel_on_the_stream_of_the_session(tools: Tools, app: Any):
    client = await Peer(app).open()
    stream = await client.listen().started()
    assert (stream.status, is_stream(stream), stream.complete) == (200, True, False)
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    tools.server.resource_updated("memo://a")
    tools.server.remove_tool("region")
    assert [(await stream.next())["method"] for _ in range(2)] == [
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    ]
    stream.leave()
    await stream.ended()


async def test_news_wait_for_the_stream_to_open(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    for _ in range(3):
        tools.server.resource_updated("memo://a")
    stream = client.listen()
    for _ in range(3):
        assert (await stream.next())["method"] == "notifications/resources/updated"
    stream.leave()
    await stream.ended()


async def test_only_so_many_news_wait(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    for _ in range(3 * outbox.MAX_UNREAD_MESSAGES):
        tools.server.resource_updated("memo://a")
    await settled(app)
    stream = client.listen()
    await stream.until(lambda: len(stream.messages) >= outbox.MAX_UNREAD_MESSAGES)
    await turns()
    assert len(stream.messages) == outbox.MAX_UNREAD_MESSAGES
    stream.leave()
    await stream.ended()


async def test_news_that_nobody_read_are_there_for_the_next_reader(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    stream = await client.listen().started()
    stream.stall()
    tools.server.resource_updated("memo://a")
    await settled(app)
    tools.server.remove_tool("region")
    await settled(app)
    stream.leave()
    await stream.ended()
    again = client.listen()
    assert (await again.next())["method"] == "notifications/tools/list_changed"
    again.leave()
    await again.ended()


async def test_a_session_has_one_such_stream_at_a_time(app: Any):
    client = await Peer(app).open()
    first = await client.listen().started()
    assert (await client.listen().ended()).status == 409
    first.leave()
    await first.ended()
    second = await client.listen().started()
    assert second.status == 200
    second.leave()
    await second.ended()


@pytest.mark.parametrize(("accept", "status"), [("application/json", 406), ("text/html", 406)])
async def test_a_stream_is_only_for_who_takes_one(app: Any, accept: str, status: int):
    client = await Peer(app).open()
    assert (await client.listen(accept=accept).ended()).status == status


async def test_the_end_of_the_session_ends_its_streams_and_calls(tools: Tools, app: Any):
    client = await Peer(app).open()
    stream = await client.listen().started()
    calls = [client.begin_call("wait"), client.begin_call("chat")]
    await calls[1].started()
    await tools.begun.wait()
    assert (await client.delete().ended()).status == 204
    for exchange in (stream, *calls):
        assert (await exchange.ended()).complete
    assert tools.cancelled.is_set()


async def test_the_stream_is_kept_alive(app: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streamable, "MAX_SILENCE_SECONDS", 0.01)
    client = await Peer(app).open()
    stream = client.listen()
    await stream.until(lambda: stream.body.count(b": keep-alive\n\n") >= 2)
    stream.leave()
    await stream.ended()


# subscriptions/listen.


async def test_a_subscription_is_acknowledged_first_and_tags_what_it_tells(tools: Tools, app: Any):
    client = Peer(app, STATELESS)
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["memo://a"]}
    stream = client.begin_request("subscriptions/listen", {"notifications": wanted}, id="sub")
    await stream.until(lambda: stream.messages)
    assert is_stream(stream)
    tools.server.resource_updated("memo://a")
    tools.server.remove_tool("region")
    heard = [await stream.next() for _ in range(3)]
    assert [message["method"] for message in heard] == [
        "notifications/subscriptions/acknowledged",
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    ]
    assert {message["params"]["_meta"][PREFIX + "subscriptionId"] for message in heard} == {"sub"}
    assert heard[0]["params"]["notifications"] == wanted
    stream.leave()
    await stream.ended()
    assert not tools.server.mcp.subscriptions._listening


async def test_a_drain_ends_streams_in_good_order(tools: Tools):
    async with living(tools.server.asgi()) as app:
        old, new = await Peer(app).open(), Peer(app, STATELESS)
        standalone = await old.listen().started()
        working = old.begin_call("wait")
        subscribed = new.begin_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=7)
        await subscribed.started()
        await turns()
        app.drain()
        assert (await standalone.ended()).complete
        ending = last(await subscribed.ended())
        assert ending["id"] == 7
        assert ending["result"]["resultType"] == "complete"
        assert ending["result"]["_meta"][PREFIX + "subscriptionId"] == 7
        tools.go.set()
        assert text((await working.ended()).json) == "waited"


async def test_a_stream_that_is_opened_during_a_drain_ends_at_once(tools: Tools):
    async with living(tools.server.asgi()) as app:
        peer = await Peer(app).open()
        first = await peer.listen().started()
        app.drain()
        assert (await first.ended()).complete
        assert (await peer.listen().ended()).complete


# Leaving and cancelling.


async def test_leaving_cancels_a_stateless_call_within_a_quarter_of_a_second(tools: Tools, app: Any):
    exchange = Peer(app, STATELESS).begin_call("wait")
    await tools.begun.wait()
    exchange.leave()
    assert await soon(tools.cancelled.is_set)
    await exchange.ended()
    assert not tools.server.composition.running


async def test_leaving_a_stateless_stream_cancels_too(tools: Tools, app: Any):
    exchange = Peer(app, STATELESS).begin_call("chat", _meta={PREFIX + "logLevel": "info"})
    await exchange.started()
    exchange.leave()
    await exchange.ended()
    await turns()
    assert not tools.server.composition.running


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_leaving_does_not_cancel_a_call_of_a_session(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    exchange = client.begin_call("wait")
    await tools.begun.wait()
    exchange.leave()
    await exchange.ended()
    await turns()
    assert not tools.cancelled.is_set()
    tools.go.set()
    await asyncio.wait_for(tools.finished.wait(), 20)
    assert await client.call("add", {"a": 1, "b": 2}) == "3"


async def test_a_cancelled_call_ends_its_post_without_an_answer(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = client.begin_call("wait", id=7)
    await tools.begun.wait()
    assert (await client.tell("notifications/cancelled", {"requestId": 7})).status == 202
    await exchange.ended()
    assert (exchange.status, exchange.body, tools.cancelled.is_set()) == (202, b"", True)


async def test_a_cancelled_call_ends_its_stream_without_an_answer(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = client.begin_call("chat", id=7)
    await exchange.started()
    await client.tell("notifications/cancelled", {"requestId": 7})
    await exchange.ended()
    assert exchange.complete
    assert [message.get("method") for message in exchange.messages] == ["notifications/message"]


async def test_what_was_said_before_a_cancellation_is_not_taken_for_the_answer(tools: Tools, app: Any):
    @tools.server.tool
    async def blurt(ctx: Context) -> str:
        ctx.log.info("one")
        ctx.session.cancel(ctx.call.id)
        return "never"

    client = await Peer(app).open()
    exchange = await client.begin_call("blurt").ended()
    assert is_stream(exchange)
    assert [message.get("method") for message in exchange.messages] == ["notifications/message"]


# Readers that do not read.


async def test_a_stalled_reader_delays_nobody_else(tools: Tools, app: Any):
    client = await Peer(app).open()
    stalled = client.begin_call("chat", {"messages": 2_000})
    await stalled.started()
    stalled.stall()
    standalone = await client.listen().started()
    standalone.stall()
    async with asyncio.timeout(20):
        for number in range(50):
            assert await client.call("add", {"a": number, "b": 1}) == str(number + 1)
    tools.go.set()
    for exchange in (stalled, standalone):
        exchange.read_on()
    assert text(last(await stalled.ended())) == "chatted"
    standalone.leave()
    await standalone.ended()


async def test_a_slow_reader_gets_the_newest_progress_and_every_result(tools: Tools, app: Any):
    begun = asyncio.Event()

    @tools.server.tool
    async def work(ctx: Context) -> str:
        ctx.log.info("begun")
        await begun.wait()
        for step in range(1, 5_001):
            ctx.progress(step, 5_000)
        return "done"

    client = await Peer(app).open()
    exchange = client.begin_call("work", _meta={"progressToken": "p"})
    await exchange.until(lambda: exchange.messages)
    exchange.stall()
    begun.set()
    await settled(app)
    exchange.read_on()
    await exchange.ended()
    *_, progress, result = exchange.messages
    assert progress["params"]["progress"] == 5_000
    assert text(result) == "done"
    assert len(exchange.messages) < 4 * outbox.SLOW


@pytest.mark.slow
async def test_what_waits_for_a_slow_reader_is_bounded_in_number_and_size(tools: Tools, app: Any):
    begun = asyncio.Event()

    @tools.server.tool
    async def shout(ctx: Context) -> str:
        ctx.log.info("begun")
        await begun.wait()
        for _ in range(1_000):
            ctx.log.info("x" * 10_000)
        return "done"

    client = await Peer(app).open()
    exchange = client.begin_call("shout")
    await exchange.until(lambda: exchange.messages)
    exchange.stall()
    begun.set()
    await settled(app)
    exchange.read_on()
    await exchange.ended()
    assert len(exchange.body) < 2 * outbox.MAX_UNREAD_MESSAGE_BYTES
    assert text(last(exchange)) == "done"


async def test_a_reader_that_stays_stalled_is_given_up(tools: Tools, app: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.serve.http.exchange.MAX_STALL_SECONDS", 0.01)
    client = await Peer(app).open()
    stream = await client.listen().started()
    stream.stall()
    tools.server.remove_tool("region")
    await stream.ended()
    assert not stream.complete


async def test_a_server_that_raises_when_the_client_is_gone_does_no_harm(tools: Tools, app: Any):
    exchange = Peer(app, STATELESS).begin_call("chat", _meta={PREFIX + "logLevel": "info"})
    await exchange.started()

    async def broken(message: Any) -> None:
        raise OSError("gone")

    def everywhere(found: Any) -> None:
        (session,) = tools.server.composition.short_sessions
        (call,) = session.in_flight.values()
        call.envelope.exchange._send = broken
        call.notify("notifications/message", {})

    everywhere(exchange)
    await exchange.ended()
    await turns()
    assert not tools.server.composition.running


# Idle sessions and caps.


@pytest.mark.req("MCP-4.3")
async def test_a_session_that_idles_ends_by_itself():
    tools = Tools(idle=0.04)
    async with peer(tools.server) as client:
        async with asyncio.timeout(20):
            while tools.server.composition.sessions:  # noqa: ASYNC110 (nobody announces the end)
                await asyncio.sleep(0.005)
        assert (await client.begin_request("ping").ended()).status == 404


async def test_an_idle_session_is_over_before_anybody_looks(monkeypatch: pytest.MonkeyPatch):
    clock, tools = Clock(monkeypatch), Tools(idle=100)
    async with peer(tools.server) as client:
        clock.now += 101
        assert (await client.begin_request("ping").ended()).status == 404
        assert not tools.server.composition.sessions


class Clock:
    """Stands in for `time` in the modules that look at the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        for module in (sessions, streams):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("busy", ["listen", "call"])
async def test_a_session_in_use_does_not_idle(busy: str, monkeypatch: pytest.MonkeyPatch):
    clock, tools = Clock(monkeypatch), Tools(idle=100)
    async with peer(tools.server) as client:
        exchange = client.listen() if busy == "listen" else client.begin_call("wait")
        await turns()
        for _ in range(2):
            clock.now += 1_000
            assert (await client.begin_request("ping").ended()).status == 200
        clock.now += 1_000
        tools.go.set()
        exchange.leave()
        await exchange.ended()
        # Its time begins anew when the stream ends.
        clock.now += 99
        assert (await client.begin_request("ping").ended()).status == 200
        clock.now += 101
        assert (await client.begin_request("ping").ended()).status == 404


async def test_too_many_sessions_are_told_to_come_back_later():
    tools = Tools(sessions=2)
    async with living(tools.server.asgi()) as app:
        clients = [await Peer(app).open() for _ in range(2)]
        streams = [await client.listen().started() for client in clients]  # otherwise one of them would give way
        opening = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "t"}}
        refused = await Web(app).post(request("initialize", opening, 9)).ended()
        assert (refused.status, refused.headers["retry-after"], refused.json["id"]) == (503, "1", 9)
        assert await Peer(app, STATELESS).call("add", {"a": 1, "b": 2}) == "3"
        await clients[0].delete().ended()
        await Peer(app).open()
        for stream in streams:
            stream.leave()


async def test_idle_sessions_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch):
    clock, tools = Clock(monkeypatch), Tools(sessions=1, idle=100)
    async with living(tools.server.asgi()) as app:
        await Peer(app).open()
        clock.now += 101
        await Peer(app).open()


# Many at once.


@pytest.mark.slow
@pytest.mark.req("MCP-1")
@pytest.mark.parametrize("sessions", [200, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_many_sessions_never_see_what_is_not_theirs(sessions: int):
    tools = Tools(sessions_per_principal=2_000, in_flight_total=3_000)

    @tools.server.tool
    async def echo(word: str, ctx: Context) -> str:
        ctx.log.info(word)
        await asyncio.sleep(0)
        return f"{word} {await ctx.ask(word, str)}"

    async with living(tools.server.asgi()) as app:

        async def converse(number: int) -> None:
            client = await Peer(app, LATEST, {"elicitation": {}}).open()
            word = f"word-{number}"
            exchange = client.begin_call("echo", {"word": word}, id=1)
            log, question = await exchange.next(), await exchange.next()
            assert log["params"]["data"] == word
            assert question["params"]["message"] == word
            await client.answer(question, {"action": "accept", "content": {"value": f"answer-{number}"}})
            assert text(last(await exchange.ended())) == f"{word} answer-{number}"

        await asyncio.gather(*(converse(number) for number in range(sessions)))


async def test_ids_of_stateless_requests_may_collide(tools: Tools, app: Any):
    client = Peer(app, STATELESS)
    exchanges = [client.begin_call("add", {"a": number, "b": 0}, id=1) for number in range(200)]
    assert [text((await e.ended()).json) for e in exchanges] == [str(number) for number in range(200)]


@pytest.mark.parametrize("version", ERAS)
async def test_a_call_that_waited_is_forgotten_without_the_garbage_collector(app: Any, tools: Tools, version: str):
    waited: list[weakref.ref[Any]] = []

    async def pause(ctx: Context) -> str:
        waited.append(weakref.ref(ctx.call))
        await asyncio.sleep(0)
        return "done"

    tools.server.add_tool(pause)
    client = await Peer(app, version).open()
    gc.collect()
    gc.disable()
    try:
        assert text((await client.begin_call("pause").ended()).json) == "done"
        await turns()
        assert [call() for call in waited] == [None]
    finally:
        gc.enable()
