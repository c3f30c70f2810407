"""MCPL over several processes: push, receipts, sources, channels and inference find their host and call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from defserve import Server
from defserve.auth import StaticTokens
from defserve.auth.local_token import LocalTokenVerifier
from defserve.errors import LimitExceeded
from defserve.live import Channel, ReceivedMessage, everyone
from defserve.stores.shared.shared_tables import BEGIN_WORK
from tests.asgi import Exchange, last, text
from tests.protocols.mcpl.hosts import MCPL
from tests.serve.http.shared.group import Client, Group
from tests.waiting import until

pytestmark = pytest.mark.anyio

TOKENS = StaticTokens({"ada": "ada", "bob": "bob"})
SPEAKS = {"experimental": {"mcpl": dict(MCPL)}}


class Live:
    """What a process declares, and what happened in it."""

    def __init__(self, server: Server) -> None:
        self.clock = server.feature_set("clock", "Tick", uses=["pushEvents", "inferenceRequest", "tools"])
        self.chat = server.channels("chat", feature_set=self.clock)
        self.handle_event: list[str] = []
        self.ticks: asyncio.Queue[str] = asyncio.Queue()
        server.tool(self.tick)
        server.tool(self.think)
        self.chat.open(self.open)
        self.chat.close(self.close)
        self.chat.publish(self.publish)

    async def tick(self) -> str:
        return str((await self.clock.push("now")).accepted)  # type: ignore[union-attr]

    async def think(self) -> str:
        stream = self.clock.infer_stream("what?")
        return "|".join([delta async for delta in stream] + [stream.result.content])

    async def open(self, address: dict[str, int]) -> Channel:
        return Channel(f"chat:{address['room']}", address=address)

    async def close(self, channel: Channel) -> None:
        self.handle_event.append(f"closed {channel.id}")

    async def publish(self, channel: Channel, text: str) -> str:
        self.handle_event.append(f"{text} in {channel.address}")
        return "m1"


async def started(group: Group, *names: str) -> tuple[Client, dict[str, Live]]:
    lives: dict[str, Live] = {}
    for name in names:
        await group.start(name, declare=lambda server, name=name: lives.__setitem__(name, Live(server)), auth=TOKENS)
    return await group.client(names[0], token="ada", capabilities=SPEAKS), lives


async def asked(stream: Exchange, method: str) -> dict[str, Any]:
    """The next request of this method; the others are not for this test."""
    while True:
        found = await stream.next()
        if found.get("method") == method:
            return found


async def leave(*streams: Exchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.ended()


async def test_a_receipt_that_reaches_another_process_finds_its_push(pair: Group):
    client, _ = await started(pair, "one", "two")
    call = client.at("one").begin_call("tick")
    event = await asked(call, "push/event")
    assert (await client.at("two").answer(event, {"accepted": True})).status == 202
    await call.ended()
    assert text(last(call)) == "True"


async def test_a_principal_is_reached_from_a_process_that_does_not_know_its_session(pair: Group):
    client, lives = await started(pair, "one", "two")
    stream = await client.at("one").listen().started()
    pushing = asyncio.create_task(lives["two"].clock.push("now", to="ada"))
    event = await asked(stream, "push/event")
    await client.at("one").answer(event, {"accepted": True, "inferenceId": "i1"})
    receipt: Any = await pushing
    assert receipt.accepted and receipt.inference_id == "i1"
    await leave(stream)


async def test_sessions_of_the_local_user_are_found_and_those_that_are_known_are_not_asked_for(
    pair: Group, monkeypatch: pytest.MonkeyPatch
):
    for name in ("one", "two"):
        await pair.start(name, declare=Live, auth=LocalTokenVerifier("key"))
    client = await pair.client("one", token="key", capabilities=SPEAKS)
    logs = pair["two"].app.streamable.logs
    await logs.load_principal_sessions("local")
    assert pair["two"].known == {client.session}
    asked: list[str] = []
    monkeypatch.setattr(logs, "load_session", lambda id, principal: asked.append(id))
    await logs.load_principal_sessions("local")
    assert asked == []


async def test_a_push_goes_on_although_the_sessions_of_its_principal_cannot_be_looked_for(
    pair: Group, monkeypatch: pytest.MonkeyPatch
):
    client, lives = await started(pair, "one")
    stream = await client.at("one").listen().started()

    async def fail(principal: str) -> None:
        raise LimitExceeded("too many sessions", data={"limit": "sessions"})

    monkeypatch.setattr(pair["one"].app.streamable.logs, "load_principal_sessions", fail)
    pushing = asyncio.create_task(lives["one"].clock.push("now", to="ada"))
    await client.at("one").answer(await asked(stream, "push/event"), {"accepted": True})
    receipt: Any = await pushing
    assert receipt.accepted
    await leave(stream)


async def test_an_event_for_everyone_reaches_the_sessions_of_all_processes_once(pair: Group):
    client, lives = await started(pair, "one", "two")
    other = await pair.client("two", token="bob", capabilities=SPEAKS)
    await client.at("two").call("who")  # known in both
    streams = [await client.at("two").listen().started(), await other.at("two").listen().started()]
    pushing = asyncio.create_task(lives["two"].clock.push("now", to=everyone))
    events = [await asked(stream, "push/event") for stream in streams]
    for each, event in zip((client, other), events, strict=True):
        await each.at("one").answer(event, {"accepted": True})
    receipts: Any = await pushing
    assert [receipt.accepted for receipt in receipts] == [True]  # of the sessions that this process owns
    assert events[0]["params"]["eventId"] == events[1]["params"]["eventId"]
    for stream in streams:
        assert [message["method"] for message in stream.messages].count("push/event") == 1
    await leave(*streams)


async def test_an_event_for_everyone_reaches_a_session_whose_process_has_just_died(
    pair: Group, monkeypatch: pytest.MonkeyPatch
):
    client, lives = await started(pair, "one", "two")
    await client.at("two").call("who")  # known in both
    stream = await client.at("two").listen().started()
    await pair["one"].kill()
    assert await lives["two"].clock.push("now", to=everyone) == []
    monkeypatch.setattr("defserve.stores.shared.worker_link.SharedStoreLink.can_trust_leases", True)
    await until(lambda: pair["two"].link.is_written)
    await pair["two"].app.streamable.logs._check_owners()
    event = await asked(stream, "push/event")
    await client.at("two").answer(event, {"accepted": True})
    await leave(stream)


async def test_an_event_for_everyone_that_a_process_has_read_and_not_sent_when_it_dies_is_sent_by_the_next(
    pair: Group, monkeypatch: pytest.MonkeyPatch
):
    client, lives = await started(pair, "one", "two")
    await client.at("two").call("who")  # known in both
    stream = await client.at("two").listen().started()
    link, begun, over = pair["one"].link, asyncio.Event(), asyncio.Event()
    run = link.run_script

    async def run_all_but_pushes(script: str, *args: Any) -> Any:
        if script == BEGIN_WORK:
            begun.set()
            await over.wait()
        return await run(script, *args)

    monkeypatch.setattr(link, "run_script", run_all_but_pushes)
    assert await lives["two"].clock.push("now", id="e1", to=everyone) == []
    await begun.wait()
    await link._renew()  # it says what it has read
    await pair["one"].kill()
    monkeypatch.setattr("defserve.stores.shared.worker_link.SharedStoreLink.can_trust_leases", True)
    await pair["two"].app.streamable.logs._check_owners()
    try:
        event = await asked(stream, "push/event")
        await client.at("two").answer(event, {"accepted": True})
    finally:
        over.set()
        await leave(stream)


async def test_an_event_that_is_lost_because_hosts_do_not_answer_is_logged(
    pair: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    _, lives = await started(pair, "one", "two")
    monkeypatch.setattr("defserve.server.sharing.MAX_TASKS", 0)
    await lives["two"].clock.push("now", to=everyone)
    await until(lambda: "hosts have not answered 0 others" in caplog.text)


async def test_a_channel_opened_in_one_process_is_used_and_closed_in_another(pair: Group):
    client, lives = await started(pair, "one", "two")
    opened = await client.at("one").ask("channels/open", {"type": "chat", "address": {"room": 7}})
    id = opened["result"]["channel"]["id"]
    said = {"conversationId": "c", "channelId": id, "content": [{"type": "text", "text": "hello"}]}
    published = await client.at("two").ask("channels/publish", said)
    assert published["result"] == {"delivered": True, "messageId": "m1"}
    assert lives["two"].handle_event == ["hello in {'room': 7}"]
    # A process that forgets the session closes nothing.
    table = pair["one"].app.streamable.sessions
    table.forget_session(table.find_known_session(client.session))
    listed = await client.at("one").ask("channels/list", {})
    assert [channel["id"] for channel in listed["result"]["channels"]] == [id]
    assert (await client.at("two").ask("channels/close", {"channelId": id}))["result"] == {"closed": True}
    await client.knows("one", lambda log: not any("opened" in name for name in log.known))
    assert "error" in await client.at("one").ask("channels/publish", said)
    assert [each.handle_event for each in lives.values()] == [[], ["hello in {'room': 7}", f"closed {id}"]]


async def test_a_message_reaches_the_host_of_a_channel_from_any_process(pair: Group):
    client, lives = await started(pair, "one", "two")
    stream = await client.at("one").listen().started()
    await client.at("one").ask("channels/open", {"type": "chat", "address": {"room": 7}})
    for to in ("ada", everyone):
        sending = asyncio.create_task(lives["two"].chat.incoming(ReceivedMessage("chat:7", "hi", author="u1"), to=to))
        incoming = await asked(stream, "channels/incoming")
        assert incoming["params"]["messages"][0]["content"] == [{"type": "text", "text": "hi"}]
        id = incoming["params"]["messages"][0]["messageId"]
        results = [{"messageId": id, "accepted": True, "conversationId": "c1"}]
        await client.at("two").answer(incoming, {"results": results})
        receipts = await sending
        assert [receipt.conversation_id for receipt in receipts] == (["c1"] if to == "ada" else [])
    await leave(stream)


async def test_chunks_and_the_answer_of_an_inference_may_come_to_another_process(pair: Group):
    client, _ = await started(pair, "one", "two")
    call = client.at("one").begin_call("think")
    question = await asked(call, "inference/request")
    for index, delta in enumerate(("to", "be")):
        await client.at("two").tell("inference/chunk", {"requestId": question["id"], "index": index, "delta": delta})
    answer = {"content": "tobe", "model": "m", "finishReason": "end_turn", "usage": {}}
    assert (await client.at("two").answer(question, answer)).status == 202
    await call.ended()
    assert text(last(call)) == "to|be|tobe"


def with_source(name: str, running: list[str]) -> Callable[[Server], None]:
    def declare(server: Server) -> None:
        clock = server.feature_set("clock", "Tick")

        async def ticks() -> AsyncIterator[str]:
            running.append(name)
            try:
                await asyncio.Event().wait()
                yield ""
            finally:
                running.remove(name)

        clock.events(ticks)

    return declare


async def test_a_process_that_was_thought_dead_ends_its_sources_when_another_one_has_taken_over(pair: Group):
    running: list[str] = []
    for name in ("one", "two"):
        await pair.start(name, declare=with_source(name, running), auth=TOKENS)
    client = await pair.client("one", token="ada", capabilities=SPEAKS)
    await client.at("two").call("who")  # known in both
    await until(lambda: running == ["one"])
    await pair["one"].lose_lease()
    pair["two"].link.up_since = -math.inf  # it has listened for long enough to judge
    await pair["two"].app.streamable.logs._check_owners()
    await until(lambda: running == ["two"])


async def test_a_source_runs_once_for_a_session_and_moves_on_when_its_process_dies(
    pair: Group, monkeypatch: pytest.MonkeyPatch
):
    running: list[str] = []
    for name in ("one", "two"):
        await pair.start(name, declare=with_source(name, running), auth=TOKENS)
    client = await pair.client("one", token="ada", capabilities=SPEAKS)
    await until(lambda: running == ["one"])
    # A policy that reaches another process holds for the source of the first.
    await client.at("two").tell("featureSets/update", {"enabled": [], "disabled": ["clock"]})
    await until(lambda: running == [])
    await client.at("two").tell("featureSets/update", {"enabled": ["clock"], "disabled": []})
    await until(lambda: running == ["one"])
    await pair["one"].kill()
    # Nobody asks for anything: the other process finds out by itself.
    monkeypatch.setattr("defserve.stores.shared.worker_link.LEASE", 0.01)
    await pair["two"].app.streamable.logs._check_owners()
    await until(lambda: sorted(running) == ["one", "two"])  # the first is dead only for the others


async def test_an_event_that_two_processes_push_is_sent_once_and_both_get_its_receipt(pair: Group):
    client, lives = await started(pair, "one", "two")
    stream = await client.at("one").listen().started()
    pushes = [asyncio.create_task(lives[name].clock.push("now", id="e1", to="ada")) for name in ("one", "two")]
    event = await asked(stream, "push/event")
    await client.at("two").answer(event, {"accepted": True, "inferenceId": "i1"})
    receipts: list[Any] = await asyncio.gather(*pushes)
    assert [receipt.inference_id for receipt in receipts] == ["i1", "i1"]
    # One that starts later has the receipt, too. A host that refuses is asked again.
    again: Any = await lives["two"].clock.push("now", id="e1", to="ada")
    assert again.inference_id == "i1"
    for accepted in (False, True):
        pushing = asyncio.create_task(lives["two"].clock.push("later", id="e2", to="ada"))
        await client.at("one").answer(await asked(stream, "push/event"), {"accepted": accepted})
        receipt: Any = await pushing
        assert receipt.accepted is accepted
    assert [message["method"] for message in stream.messages].count("push/event") == 3
    await leave(stream)


async def test_events_leave_in_their_order_although_the_store_takes_longer_for_one(
    pair: Group, monkeypatch: pytest.MonkeyPatch
):
    client, lives = await started(pair, "one")
    stream = await client.at("one").listen().started()
    link, run = pair["one"].link, pair["one"].link.run_script
    begun: list[str] = []

    async def run_slowly(script: str, *args: Any) -> Any:
        if script == BEGIN_WORK:
            begun.append(args[0])
            await asyncio.sleep(0.05 / len(begun))  # the first one takes longest
        return await run(script, *args)

    monkeypatch.setattr(link, "run_script", run_slowly)
    ids = ["a", "b", None, "c"]
    pushes = [asyncio.create_task(lives["one"].clock.push("now", id=id, to=everyone)) for id in ids]
    events = [await asked(stream, "push/event") for _ in ids]
    heard = [event["params"]["eventId"] for event in events]
    assert heard == ["a", "b", heard[2], "c"] and heard[2].startswith("evt_")
    for event in events:
        await client.at("one").answer(event, {"accepted": True})
    assert [[receipt.accepted for receipt in found] for found in await asyncio.gather(*pushes)] == [[True]] * 4
    await leave(stream)


class Notes(BaseModel):
    lines: list[str] = []


def notebook(server: Server, per: Any) -> None:
    """A tool whose state is one of a session or a principal."""
    notes = server.feature_set("notes", "Notes", uses=["tools"])
    kept = notes.state(Notes, per=per)

    @notes.tool
    async def note(line: str, book: Annotated[Notes, kept]) -> str:
        book.lines.append(line)
        return " ".join(book.lines)


@pytest.mark.parametrize("auth", [TOKENS, None], ids=["known", "stranger"])
@pytest.mark.parametrize("per", ["session", "principal"])
async def test_the_state_of_a_session_is_one_in_all_processes(pair: Group, per: str, auth: StaticTokens | None):
    for name in ("one", "two"):
        declare = partial(notebook, per=per)
        await pair.start(name, declare=declare, options={"store": pair.address}, auth=auth)
    client = await pair.client("one", token="ada" if auth else None)
    said = [await client.at(name).call("note", {"line": name}) for name in ("one", "two", "one")]
    assert said == ["one", "one two", "one two one"]


async def test_the_state_of_a_session_outlives_a_process_that_served_it(pair: Group):
    for name in ("one", "two"):
        await pair.start(name, declare=partial(notebook, per="session"), options={"store": pair.address})
    client = await pair.client("one")
    await client.at("one").call("note", {"line": "one"})
    await client.at("two").call("note", {"line": "two"})
    await pair.stop("one")
    assert await client.at("two").call("note", {"line": "three"}) == "one two three"
