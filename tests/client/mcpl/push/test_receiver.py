"""Events that servers push to the host: taken once, answered, refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Text
from defserve.client import AnswerWindow, EventAnswer, Mcpl, PushedEvent
from defserve.client.mcpl.push import Inbox
from defserve.client.replies import UnreadItemQueue
from defserve.errors import PeerGone
from tests.client.mcpl.scripted import hosting, live_server
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


async def test_events_wait_to_be_read():
    server = live_server()
    async with hosting(server) as mcpl:
        reply = await server.push("evt_1", origin={"memoryId": "m1"})
        assert reply["result"] == {"accepted": True}
        event = await anext(mcpl.events())
    assert (event.server_id, event.feature_set, event.id) == ("memory", "memory.proactive", "evt_1")
    assert event.content == [Text("Ring ring")]
    assert (event.origin, event.timestamp) == ({"memoryId": "m1"}, "2026-01-23T14:00:00Z")


@for_each_row(
    ("said", "answer"),
    [
        (None, {"accepted": True}),
        (True, {"accepted": True}),
        (False, {"accepted": False, "reason": "declined"}),
        ("inf_xyz", {"accepted": True, "inferenceId": "inf_xyz"}),
        (EventAnswer(False, reason="too late"), {"accepted": False, "reason": "too late"}),
        (EventAnswer(inference_id="inf_1"), {"accepted": True, "inferenceId": "inf_1"}),
    ],
)
@for_each_row("asynchronous", [False, True])
async def test_what_the_handler_says_is_the_answer(said: Any, answer: Any, asynchronous: bool):
    async def later(event: PushedEvent) -> Any:
        return said

    server = live_server()
    async with hosting(server, Mcpl(on_event=later if asynchronous else lambda _: said, audit=[])):
        assert (await server.push())["result"] == answer


@pytest.mark.req("MCPL-6.6")
async def test_a_disabled_set_is_refused_with_its_name():
    server = live_server()
    async with hosting(server, Mcpl(["memory.retrieval"], audit=[])):
        error = (await server.push())["error"]
    assert (error["code"], error["data"]) == (-32001, {"featureSet": "memory.proactive", "canEnable": True})
    assert error["message"].startswith("Feature set not enabled")


@pytest.mark.req("MCPL-6.6")
async def test_an_unknown_set_is_refused():
    server = live_server()
    async with hosting(server):
        assert (await server.push(feature_set="memory.unheard"))["error"]["code"] == -32003


async def test_a_set_that_did_not_say_that_it_pushes_may_not():
    server = live_server()
    async with hosting(server):
        assert (await server.push(feature_set="memory.retrieval"))["error"]["code"] == -32001


@for_each_row(
    "broken",
    [
        {"featureSet": 3},
        {"eventId": None},
        {"eventId": "e" * 2000},
        {"timestamp": 7},
        {"payload": {}},
        {"payload": {"content": [1]}},
    ],
)
async def test_a_broken_event_is_invalid(broken: Any):
    server = live_server()
    async with hosting(server):
        assert (await server.push(**broken))["error"]["code"] == -32602


@pytest.mark.req("MCPL-9.4")
async def test_an_event_that_is_sent_again_counts_once_and_gets_the_same_answer():
    taken: list[str] = []

    def take(event: PushedEvent) -> str:
        taken.append(event.id)
        return f"inf_{len(taken)}"

    server = live_server()
    async with hosting(server, Mcpl(on_event=take, audit=[])):
        replies = [(await server.push(event))["result"]["inferenceId"] for event in ("a", "b", "a", "b", "a")]
    assert taken == ["a", "b"]
    assert replies == ["inf_1", "inf_2", "inf_1", "inf_2", "inf_1"]


@pytest.mark.req("MCPL-9.4")
async def test_an_event_that_is_sent_again_while_it_is_considered_waits_for_the_answer():
    decided, taken = asyncio.Event(), list[str]()

    async def take(event: PushedEvent) -> str:
        taken.append(event.id)
        await decided.wait()
        return "inf_1"

    server = live_server()
    async with hosting(server, Mcpl(on_event=take, audit=[])):
        pushes = [asyncio.create_task(server.push()) for _ in range(3)]
        await server.ask("ping", {})  # once this is answered, all of them have come
        decided.set()
        assert [(await push)["result"]["inferenceId"] for push in pushes] == ["inf_1"] * 3
    assert taken == ["evt_1"]


async def test_an_event_whose_handler_failed_may_be_sent_again():
    said: list[Any] = [RuntimeError("not now"), True]

    def take(event: PushedEvent) -> bool:
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    server = live_server()
    async with hosting(server, Mcpl(on_event=take, audit=[])):
        assert (await server.push())["error"]["code"] == -32603
        assert (await server.push())["result"] == {"accepted": True}


async def test_the_window_of_remembered_events_is_bounded():
    taken: list[str] = []
    server = live_server()
    async with hosting(server, Mcpl(on_event=lambda event: taken.append(event.id), window=2, audit=[])):
        for event in ("a", "b", "c", "b", "a"):
            await server.push(event)
    assert taken == ["a", "b", "c", "a"]


async def test_a_window_that_outlives_a_connection_knows_its_events():
    taken: list[str] = []
    options = Mcpl(on_event=lambda event: taken.append(event.server_id), window=AnswerWindow(), audit=[])
    for name in ("memory", "memory", "another"):
        server = live_server(name=name)
        async with hosting(server, options):
            await server.push()
    assert taken == ["memory", "another"]


async def test_events_that_nobody_reads_are_declined_and_may_come_again():
    server = live_server()
    async with hosting(server) as mcpl:
        mcpl.events()._items = UnreadItemQueue(1)  # pyright: ignore[reportPrivateUsage]
        assert (await server.push("a"))["result"] == {"accepted": True}
        assert (await server.push("b"))["result"]["accepted"] is False
        await anext(mcpl.events())
        assert (await server.push("b"))["result"] == {"accepted": True}


async def test_large_events_that_nobody_reads_are_declined_before_they_fill_the_memory():
    server = live_server()
    async with hosting(server) as mcpl:
        content = {"content": [{"type": "text", "text": "x" * 1_000_000}]}
        taken = [(await server.push(str(number), payload=content))["result"]["accepted"] for number in range(12)]
        assert taken[0] is True and taken[-1] is False
        await anext(mcpl.events())
        assert (await server.push("again", payload=content))["result"]["accepted"] is True


async def test_the_events_end_with_the_client():
    async with hosting(live_server()) as mcpl:
        events = mcpl.events()
    assert [event async for event in events] == []


async def test_the_events_tell_when_the_server_leaves():
    server = live_server()
    async with hosting(server) as mcpl:
        await server.push()
        server.leave(PeerGone("it crashed"))
        events = mcpl.events()
        assert (await anext(events)).id == "evt_1"
        with pytest.raises(PeerGone, match="it crashed"):
            await anext(events)


async def test_an_inbox_is_read_in_order():
    inbox: Inbox[int] = Inbox()
    waiting = asyncio.create_task(anext(inbox))
    await asyncio.sleep(0)
    for number in range(3):
        inbox.put_item(number)
    inbox.end()
    assert not inbox.put_item(3)
    assert [await waiting, *[number async for number in inbox]] == [0, 1, 2]


ONLY_TOOLS: Any = {"heartbeat": {"description": "Beats", "uses": ["tools"]}}


async def test_a_set_that_declares_only_tools_may_push_if_its_server_says_that_it_pushes(
    caplog: pytest.LogCaptureFixture,
):
    server = live_server({"version": "0.4", "pushEvents": True, "featureSets": ONLY_TOOLS})
    async with hosting(server):
        for event in ("e1", "e2"):
            assert (await server.push(event, feature_set="heartbeat"))["result"]["accepted"]
    assert caplog.text.count("does not declare that it uses pushEvents") == 1


async def test_a_set_that_may_not_push_is_told_why():
    server = live_server({"version": "0.4", "featureSets": ONLY_TOOLS})
    async with hosting(server):
        error = (await server.push(feature_set="heartbeat"))["error"]
        assert (error["code"], error["message"]) == (
            -32001,
            "Feature set heartbeat does not declare that it uses pushEvents",
        )
