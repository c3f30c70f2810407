"""MCPL §9: events are sent once, in order, to those they are for, and never for a set that is disabled."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from defserve import Context, Image, Limits, Link, Server, UsageError
from defserve.errors import NoBackChannel, PeerError, PeerGone, PeerTimeout
from defserve.protocols.mcpl.content import Event
from defserve.protocols.mcpl.peers import everyone
from defserve.protocols.mcpl.push import UNDER_WAY
from defserve.protocols.mcpl.vocabulary import FeatureDisabled, UnknownFeatureSet
from tests.effort import examples
from tests.protocols.mcpl.hosts import MCPL, SILENCE, Host, HostError, Json, hosting, session_of
from tests.raw import STATELESS, text_of, turns, until

pytestmark = pytest.mark.anyio

SET = "memory.proactive"

BLOCK = {
    "oneOf": [
        {
            "type": "object",
            "required": ["type", "text"],
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        },
        *(
            {
                "type": "object",
                "properties": {
                    "type": {"const": kind},
                    "data": {"type": "string"},
                    "mimeType": {"type": "string"},
                    "uri": {"type": "string"},
                },
                "oneOf": [{"required": ["type", "data", "mimeType"]}, {"required": ["type", "uri"]}],
            }
            for kind in ("image", "audio")
        ),
        {
            "type": "object",
            "required": ["type", "uri"],
            "properties": {"type": {"const": "resource"}, "uri": {"type": "string"}},
        },
    ]
}
EVENT = Draft202012Validator(
    {
        "type": "object",
        "required": ["featureSet", "eventId", "timestamp", "payload"],
        "additionalProperties": False,
        "properties": {
            "featureSet": {"type": "string"},
            "eventId": {"type": "string", "minLength": 1},
            "timestamp": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z$"},
            "origin": {"type": "object"},
            "payload": {
                "type": "object",
                "required": ["content"],
                "properties": {"content": {"type": "array", "items": BLOCK}},
            },
        },
    }
)


@pytest.fixture
def server() -> Server:
    return Server("memory", "1")


@pytest.fixture
def reminders(server: Server) -> Any:
    made = server.feature_set(SET, "Surface reminders")
    server.mcpl.push.delays = (0.0, 0.0)
    server.mcpl.push.restarts = (0.0,)
    return made


def events(host: Host) -> list[Json]:
    found = host.list_requested_uris("push/event")
    for params in found:
        EVENT.validate(params)
    return found


def texts(host: Host) -> list[str]:
    return [params["payload"]["content"][0]["text"] for params in events(host)]


def in_turn(*answers: Any) -> Any:
    """Answers one after the other; the last one stays."""
    left = list(answers)
    return lambda message: left.pop(0) if len(left) > 1 else left[0]


# -- the wire --------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-9.1", "MCPL-6.5a", "MCPL-B", "MCPL-15")
async def test_an_event_is_the_documents_own(server: Server, reminders: Any):
    async with hosting(server) as host:
        await reminders.push(
            "You mentioned following up with Alice today",
            id="evt_reminder_001",
            timestamp="2026-01-23T14:00:00Z",
            origin={"server": "memory", "memoryId": "mem_followup"},
        )
        assert host.asked == [
            {
                "jsonrpc": "2.0",
                "method": "push/event",
                "id": 1,
                "params": {
                    "featureSet": "memory.proactive",
                    "eventId": "evt_reminder_001",
                    "timestamp": "2026-01-23T14:00:00Z",
                    "origin": {"server": "memory", "memoryId": "mem_followup"},
                    "payload": {"content": [{"type": "text", "text": "You mentioned following up with Alice today"}]},
                },
            }
        ]


@pytest.mark.req("MCPL-9.1", "MCPL-B")
async def test_content_of_every_kind_is_sent_as_blocks(server: Server, reminders: Any):
    async with hosting(server) as host:
        await reminders.push(
            ["See", Image(b"png", mime_type="image/png"), Link("memo://a"), {"type": "image", "uri": "x:y"}]
        )
        (event,) = events(host)
        assert [block["type"] for block in event["payload"]["content"]] == ["text", "image", "resource", "image"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (datetime(2026, 1, 23, 10, 30, tzinfo=UTC), "2026-01-23T10:30:00Z"),
        (datetime(2026, 1, 23, 10, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=2))), "2026-01-23T08:30:00.250Z"),
        ("2026-01-23T10:30:00+01:00", "2026-01-23T09:30:00Z"),
    ],
)
async def test_timestamps_are_utc(server: Server, reminders: Any, given: Any, sent: str):
    async with hosting(server) as host:
        await reminders.push("Now", timestamp=given)
        assert events(host)[0]["timestamp"] == sent


async def test_an_event_without_a_name_gets_one_of_its_own(server: Server, reminders: Any):
    async with hosting(server) as host:
        first, second = await reminders.push("same"), await reminders.push("same")
        assert first.event_id != second.event_id
        assert [event["eventId"] for event in events(host)] == [first.event_id, second.event_id]


@pytest.mark.parametrize(
    "wrong", [{"id": ""}, {"id": 7}, {"origin": "me"}, {"timestamp": "yesterday"}], ids=lambda wrong: str(wrong)
)
async def test_a_broken_event_is_refused_before_anything_is_sent(server: Server, reminders: Any, wrong: Any):
    async with hosting(server) as host:
        with pytest.raises(UsageError):
            await reminders.push("Now", **wrong)
        assert host.asked == []


# -- outcomes --------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-9.3")
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"accepted": True}, (True, None, None)),
        ({"accepted": True, "inferenceId": "inf_xyz", "more": 1}, (True, "inf_xyz", None)),
        ({"accepted": False, "reason": "quiet hours"}, (False, None, "quiet hours")),
        ({}, (False, None, None)),
    ],
)
async def test_the_author_learns_what_the_host_decided(server: Server, reminders: Any, answer: Any, outcome: Any):
    async with hosting(server, answers={"push/event": answer}):
        receipt = await reminders.push("Call Alice", id="evt_1")
        assert (receipt.accepted, receipt.inference_id, receipt.reason) == outcome
        assert receipt.event_id == "evt_1"


@pytest.mark.req("MCPL-6.6")
@pytest.mark.parametrize(
    ("code", "kind"), [(-32001, FeatureDisabled), (-32003, UnknownFeatureSet), (-32601, PeerError), (-32602, PeerError)]
)
async def test_errors_that_will_not_pass_are_raised_at_once(server: Server, reminders: Any, code: int, kind: Any):
    async with hosting(server, answers={"push/event": HostError(code)}) as host:
        with pytest.raises(kind):
            await reminders.push("Call Alice")
        assert len(host.asked) == 1


async def test_an_answer_of_another_shape_is_an_error(server: Server, reminders: Any):
    async with hosting(server, answers={"push/event": [1]}) as host:
        with pytest.raises(PeerError, match="wrong shape"):
            await reminders.push("Call Alice")
        assert len(host.asked) == 1


@pytest.mark.req("MCPL-9.4")
async def test_a_passing_failure_is_tried_again_under_the_same_id(server: Server, reminders: Any):
    answers = in_turn(HostError(-32603), HostError(-32603), {"accepted": True})
    async with hosting(server, answers={"push/event": answers}) as host:
        assert (await reminders.push("Call Alice")).accepted
        first, *others = events(host)
        assert len(others) == 2 and all(other == first for other in others)


@pytest.mark.req("MCPL-9.4")
async def test_silence_is_tried_again_under_the_same_id(reminders: Any):
    server = Server("memory", "1", limits=Limits(callback=0.2))
    made = server.feature_set(SET, "Surface reminders")
    server.mcpl.push.delays = (0.0,)
    async with hosting(server, answers={"push/event": in_turn(SILENCE, {"accepted": True})}) as host:
        assert (await made.push("Call Alice", id="evt_1")).accepted
        assert [event["eventId"] for event in events(host)] == ["evt_1", "evt_1"]
        assert host.heard_of("notifications/cancelled")[0]["requestId"] == host.asked[0]["id"]
    async with hosting(server, answers={"push/event": SILENCE}) as host:
        with pytest.raises(PeerTimeout):
            await made.push("Call Alice", id="evt_2")
        assert len(host.asked) == 2


async def test_a_lasting_failure_reaches_the_author(server: Server, reminders: Any):
    async with hosting(server, answers={"push/event": HostError(-32603, "out of memory")}) as host:
        with pytest.raises(PeerError, match="out of memory"):
            await reminders.push("Call Alice")
        assert len(host.asked) == 3


async def test_a_host_that_leaves_ends_the_wait(server: Server, reminders: Any):
    async with hosting(server, answers={"push/event": SILENCE}) as host:
        pushing = asyncio.create_task(reminders.push("Call Alice"))
        await host.until_asked("push/event")
    with pytest.raises(PeerGone):
        await pushing


async def test_a_host_that_calls_a_repetition_a_duplicate_has_accepted_it(server: Server, reminders: Any):
    server.mcpl.push.delays = (0.0,)
    answers = iter(
        [HostError(-32603), {"accepted": False, "reason": "duplicate"}, {"accepted": False, "reason": "duplicate"}]
    )
    async with hosting(server, answers={"push/event": lambda _: next(answers)}):
        assert (await reminders.push("a", id="e1")).accepted
        assert not (await reminders.push("b", id="e2")).accepted  # this one was not repeated by us


@pytest.mark.req("MCPL-9.4")
async def test_an_event_that_was_accepted_is_not_sent_again(server: Server, reminders: Any):
    async with hosting(server, answers={"push/event": {"accepted": True, "inferenceId": "inf_1"}}) as host:
        first = await reminders.push("Call Alice", id="evt_1")
        assert await reminders.push("Call Alice", id="evt_1") == first
        both = await asyncio.gather(*(reminders.push("Call Bob", id="evt_2") for _ in range(2)))
        assert both[0] == both[1]
        assert [event["eventId"] for event in events(host)] == ["evt_1", "evt_2"]


async def test_an_event_that_was_not_accepted_may_be_sent_again(server: Server, reminders: Any):
    answers = in_turn({"accepted": False, "reason": "busy"}, {"accepted": True})
    async with hosting(server, answers={"push/event": answers}) as host:
        receipts = [await reminders.push("Call Alice", id="evt_1") for _ in range(2)]
        assert [receipt.accepted for receipt in receipts] == [False, True]
        assert len(events(host)) == 2


async def test_another_session_gets_the_same_event(server: Server, reminders: Any):
    async with hosting(server) as first, hosting(server) as second:
        await reminders.push("Lunch", id="evt_1", to=everyone)
        await reminders.push("Lunch", id="evt_1", to=everyone)
        assert texts(first) == texts(second) == ["Lunch"]


async def test_only_so_many_ids_are_remembered(server: Server, reminders: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.protocols.mcpl.push.MAX_RECEIPT_CACHE_BYTES", 3_000)
    async with hosting(server) as host:
        for number in range(20):
            await reminders.push("tick", id=f"evt_{number}")
        await reminders.push("tick", id="evt_19")
        await reminders.push("tick", id="evt_0")
        assert len(host.asked) == 21


# -- order and room --------------------------------------------------------------------------------------


async def test_events_leave_in_the_order_they_were_pushed(server: Server, reminders: Any):
    async with hosting(server) as host:
        await asyncio.gather(*(reminders.push(str(number)) for number in range(3 * UNDER_WAY)))
        assert texts(host) == [str(number) for number in range(3 * UNDER_WAY)]


async def test_only_so_many_are_under_way_and_the_rest_waits(server: Server, reminders: Any):
    go = asyncio.Event()

    def when_told(message: Json) -> Any:
        return {"accepted": True} if go.is_set() else SILENCE

    async with hosting(server, answers={"push/event": when_told}) as host:
        pushing = [asyncio.create_task(reminders.push(str(number))) for number in range(UNDER_WAY + 5)]
        await host.until_asked("push/event", UNDER_WAY)
        await turns()
        assert len(host.asked) == UNDER_WAY
        go.set()
        for message in list(host.asked):
            await host.send({"jsonrpc": "2.0", "id": message["id"], "result": {"accepted": True}})
        assert all(receipt.accepted for receipt in await asyncio.gather(*pushing))
        assert texts(host) == [str(number) for number in range(UNDER_WAY + 5)]


async def test_an_event_pushed_for_an_event_does_not_wait_for_it(server: Server, reminders: Any):
    """A host may run a tool before it answers, and that tool may push."""

    @server.tool
    async def follow_up() -> str:
        return (await reminders.push("second")).event_id

    async def run_tool(message: Json) -> Any:
        if message["params"]["payload"]["content"][0]["text"] == "first":
            asyncio.get_running_loop().create_task(answer_after_tool(message))
            return SILENCE
        return {"accepted": True}

    async def answer_after_tool(message: Json) -> None:
        await host.call("follow_up")
        await host.send({"jsonrpc": "2.0", "id": message["id"], "result": {"accepted": True}})

    async with hosting(server, answers={"push/event": run_tool}) as host:
        assert (await reminders.push("first")).accepted
        assert texts(host) == ["first", "second"]


# -- sources ---------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-9.1", "MCPL-5.1")
async def test_a_source_runs_for_each_session_and_stops_with_it(server: Server, reminders: Any):
    begun: list[Any] = []
    ended: list[Any] = []

    @reminders.events
    async def due(session: Any) -> AsyncIterator[Event | str]:
        begun.append(session)
        try:
            yield "text"
            yield Event("event", id="evt_1", origin={"memoryId": "m1"})
            await asyncio.Event().wait()
        finally:
            ended.append(session)

    async with hosting(server) as host:
        assert host.advertised["pushEvents"] is True
        assert host.advertised["featureSets"][SET]["uses"] == ["pushEvents"]
        await host.until_asked("push/event", 2)
        assert texts(host) == ["text", "event"]
        assert (events(host)[1]["eventId"], events(host)[1]["origin"]) == ("evt_1", {"memoryId": "m1"})
        async with hosting(server) as second:
            await second.until_asked("push/event", 2)
            assert len(begun) == 2
        await turns()
        assert ended == [begun[1]]
    await turns()
    assert ended == [begun[1], begun[0]]


@pytest.mark.req("MCPL-6.7u")
async def test_a_source_stops_when_its_set_is_disabled_and_starts_again(server: Server, reminders: Any):
    begun, ended = [0], [0]
    ticks: asyncio.Queue[str] = asyncio.Queue()

    @reminders.events
    async def due() -> AsyncIterator[str]:
        begun[0] += 1
        try:
            while True:
                yield await ticks.get()
        finally:
            ended[0] += 1

    async with hosting(server) as host:
        ticks.put_nowait("one")
        await host.until_asked("push/event", 1)
        await host.update(disabled=["memory.*"])
        assert (begun, ended) == ([1], [1])
        ticks.put_nowait("two")
        await turns()
        assert texts(host) == ["one"]
        await host.update(enabled=[SET])
        await host.until_asked("push/event", 2)
        assert texts(host) == ["one", "two"]
        server.mcpl.remove(SET)
        await turns()
        assert (begun, ended) == ([2], [2])


async def test_a_source_waits_for_a_strict_server_to_be_told(reminders: Any):
    server = Server("memory", "1", feature_sets="strict")
    made = server.feature_set(SET, "Surface reminders")

    @made.events
    async def due() -> AsyncIterator[str]:
        yield "now"

    async with hosting(server) as host:
        await turns()
        assert host.asked == []
        await host.update(enabled=[SET])
        await host.until_asked("push/event")


async def test_a_source_that_crashes_is_started_again_and_counts_once(
    server: Server, reminders: Any, caplog: pytest.LogCaptureFixture
):
    runs = [0]

    @reminders.events
    async def due() -> AsyncIterator[Event]:
        runs[0] += 1
        yield Event("one", id="evt_1")
        if runs[0] < 3:
            raise RuntimeError("the calendar is gone")
        yield Event("two", id="evt_2")

    with caplog.at_level(logging.ERROR, "defserve"):
        async with hosting(server) as host:
            await host.until_asked("push/event", 2)
            assert texts(host) == ["one", "two"] and runs == [3]
    assert caplog.text.count("RuntimeError: the calendar is gone") == 2 and "events due crashed" in caplog.text


async def test_an_event_that_cannot_be_delivered_does_not_end_its_source(server: Server, reminders: Any):
    @reminders.events
    async def due() -> AsyncIterator[str]:
        yield "bad"
        yield "good"

    async with hosting(server, answers={"push/event": in_turn(HostError(-32602), {"accepted": True})}) as host:
        await host.until_asked("push/event", 2)
        assert texts(host) == ["bad", "good"]


async def test_events_of_a_source_per_server_go_to_everyone(server: Server, reminders: Any):
    ticks: asyncio.Queue[str] = asyncio.Queue()
    ended = asyncio.Event()

    @reminders.events(per="server")
    async def due() -> AsyncIterator[str]:
        try:
            while True:
                yield await ticks.get()
        finally:
            ended.set()

    async with hosting(server) as first, hosting(server) as second:
        await second.update(disabled=[SET])
        ticks.put_nowait("one")
        await first.until_asked("push/event", 1)
        await second.update(enabled=[SET])
        ticks.put_nowait("two")
        await second.until_asked("push/event", 1)
        assert texts(first) == ["one", "two"] and texts(second) == ["two"]
    assert ended.is_set()


async def test_an_event_of_a_source_for_all_may_be_for_one(server: Server):
    posted = server.feature_set(SET, "Surface reminders", inbox=True)
    go = asyncio.Event()

    @posted.events(per="server")
    async def due() -> AsyncIterator[Event]:
        await go.wait()
        yield Event("for Alice", id="evt_1", to="alice")
        yield Event("for you", id="evt_2", to="local")
        yield Event("for all", id="evt_3")

    async with hosting(server) as host, hosting(server, mcpl=None) as plain:
        go.set()
        await host.until_asked("push/event", 2)
        assert texts(host) == ["for you", "for all"]
        assert ids(await read(plain)) == ["evt_2", "evt_3"]


async def test_a_host_that_is_silent_holds_nobody_up(server: Server, reminders: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.protocols.mcpl.push.SOURCE_WAIT_SECONDS", 0.01)
    monkeypatch.setattr("defserve.protocols.mcpl.push.BACKLOG", 20)
    go = asyncio.Event()

    @reminders.events(per="server")
    async def due() -> AsyncIterator[str]:
        await go.wait()
        for number in range(50):
            yield str(number)

    async with hosting(server, answers={"push/event": SILENCE}) as silent, hosting(server) as host:
        go.set()
        await host.until_asked("push/event", 50)
        assert texts(host) == [str(number) for number in range(50)]
        assert texts(silent) == [str(number) for number in range(20)]


async def test_what_a_source_says_besides_is_for_its_session(server: Server):
    reminders = server.feature_set(SET, "Surface reminders", uses=["inferenceRequest"])
    heard: list[str] = []

    @reminders.events
    async def due() -> AsyncIterator[str]:
        heard.append(str(await reminders.infer("Who are you?")))
        yield "done"

    async with (
        hosting(server, answers={"inference/request": {"content": "first"}}) as first,
        hosting(server, answers={"inference/request": {"content": "second"}}) as second,
    ):
        await first.until_asked("push/event")
        await second.until_asked("push/event")
    assert sorted(heard) == ["first", "second"]


async def test_a_source_may_be_declared_while_serving(server: Server, reminders: Any):
    async with hosting(server) as host:

        @reminders.events
        async def due() -> AsyncIterator[str]:
            yield "late"

        await host.until_asked("push/event")
        with pytest.raises(UsageError, match="after the server has started"):
            reminders.events(per="server")(due)


def test_a_function_that_is_not_a_source_is_refused(reminders: Any):
    async def plain() -> None: ...

    async def needy(a: int, b: int) -> AsyncIterator[str]:
        yield "never"

    with pytest.raises(UsageError, match="not an async generator"):
        reminders.events(plain)
    with pytest.raises(UsageError, match="takes 2 arguments"):
        reminders.events(needy)
    with pytest.raises(UsageError, match="per='host'"):
        reminders.events(per="host")(needy)


# -- disabled sets ---------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-6.7u")
async def test_a_retry_stops_when_the_set_is_disabled_meanwhile(server: Server, reminders: Any):
    server.mcpl.push.delays = (0.3,) * 3
    async with hosting(server, answers={"push/event": HostError(-32603)}) as host:
        pushing = asyncio.create_task(reminders.push("Call Alice"))
        await host.until_asked("push/event")
        await host.update(disabled=[SET])
        with pytest.raises(FeatureDisabled):
            await pushing
        assert len(host.asked) == 1


NAMES = ("memory.proactive", "memory.deep.store", "files", "files.edit")
PATTERNS = (*NAMES, "memory.*", "memory.deep.*", "files.*", "*")


def covers(pattern: str, name: str) -> bool:
    return pattern in ("*", name) or (pattern.endswith(".*") and name.startswith(pattern[:-1]))


class Model:
    """What a host wants of each set: its latest word counts; of words said at once the most specific, then no."""

    def __init__(self, strict: bool) -> None:
        self.enabled = dict.fromkeys(NAMES, not strict)

    def update(self, enabled: list[str], disabled: list[str]) -> None:
        words = [(pattern, True) for pattern in enabled] + [(pattern, False) for pattern in disabled]
        for name in NAMES:
            about = [(pattern == name, len(pattern), not word) for pattern, word in words if covers(pattern, name)]
            if about:
                self.enabled[name] = not max(about)[2]


patterns = st.lists(st.sampled_from(PATTERNS), max_size=2)
steps = st.lists(
    st.one_of(
        st.tuples(patterns, patterns),
        st.sampled_from(NAMES),
    ),
    max_size=12,
)


@pytest.mark.req("MCPL-6.7u", "MCPL-6.3")
@settings(max_examples=examples(20))
@given(steps=steps, strict=st.booleans(), as_request=st.booleans())
def test_no_message_of_a_disabled_set_ever_leaves(steps: list[Any], strict: bool, as_request: bool):
    asyncio.run(_walk(steps, strict, as_request))


async def _walk(steps: list[Any], strict: bool, as_request: bool) -> None:
    server = Server("memory", "1", feature_sets="strict" if strict else "open")
    sets = {name: server.feature_set(name, "Something") for name in NAMES}
    model, sent = Model(strict), list[str]()
    async with hosting(server, answers={"inference/request": {"content": "x"}}) as host:
        session = session_of(server)
        for step in steps:
            if isinstance(step, tuple):
                policy = {"enabled": step[0], "disabled": step[1]}
                await (host.ask if as_request else host.tell)("featureSets/update", policy)
                model.update(*step)
                continue
            for verb in (sets[step].push, sets[step].infer):
                try:
                    await verb("something", to=session)
                    sent.append(step)
                    assert model.enabled[step]
                except FeatureDisabled:
                    assert not model.enabled[step]
        assert [message["params"]["featureSet"] for message in host.asked] == sent


# -- without a road back ---------------------------------------------------------------------------------


@pytest.fixture
def posted(server: Server) -> Any:
    return server.feature_set(SET, "Surface reminders", inbox=True)


async def read(host: Host, uri: str = f"inbox://{SET}") -> Json:
    reply = await host.ask("resources/read", {"uri": uri})
    assert "result" in reply, reply
    (found,) = reply["result"]["contents"]
    assert found["mimeType"] == "application/json"
    kept = json.loads(found["text"])
    for event in kept["events"]:
        EVENT.validate(event)
    return kept


def ids(kept: Json) -> list[str]:
    return [event["eventId"] for event in kept["events"]]


async def test_events_for_a_host_that_cannot_be_called_wait_in_an_inbox(server: Server, posted: Any):
    @server.tool
    async def remind(ctx: Context, id: str) -> str:
        assert ctx.can("push")
        receipt = await posted.push("Call Alice", id=id)
        return f"{receipt.accepted} {receipt.inbox}"

    async with hosting(server, STATELESS) as host:
        assert text_of(await host.call("remind", {"id": "evt_1"})) == f"True inbox://{SET}"
        first = await read(host)
        assert ids(first) == ["evt_1"] and first["missed"] is False
        await host.call("remind", {"id": "evt_2"})
        assert ids(await read(host, f"inbox://{SET}?after={first['cursor']}")) == ["evt_2"]
        assert ids(await read(host)) == ["evt_1", "evt_2"]
        assert host.asked == []


async def test_subscribers_of_an_inbox_are_told(server: Server, posted: Any):
    async with hosting(server, mcpl=None) as host, hosting(server, mcpl=None) as other:
        await host.ask("resources/subscribe", {"uri": f"inbox://{SET}"})
        await posted.push("Lunch", id="evt_1", to=everyone)
        await posted.push("For Alice", id="evt_2", to="alice")
        await turns()
        assert host.heard_of("notifications/resources/updated") == [{"uri": f"inbox://{SET}"}]
        assert other.heard == []
        assert ids(await read(host)) == ["evt_1"]


async def test_a_host_that_is_sent_the_events_has_no_inbox(server: Server, posted: Any):
    async with hosting(server) as live, hosting(server, mcpl=None) as plain:
        receipts = await posted.push("Lunch", id="evt_1", to=everyone)
        assert [receipt.inbox for receipt in receipts] == [None, f"inbox://{SET}"]
        assert texts(live) == ["Lunch"] and ids(await read(plain)) == ["evt_1"]
        assert (await live.ask("resources/list"))["result"]["resources"] == []
        assert "error" in await live.ask("resources/read", {"uri": f"inbox://{SET}"})
        assert [one["uri"] for one in (await plain.ask("resources/list"))["result"]["resources"]] == [f"inbox://{SET}"]


async def test_an_inbox_of_a_disabled_set_is_not_there(server: Server, posted: Any):
    async with hosting(server, mcpl={**MCPL, "pushEvents": False}) as host:
        assert (await posted.push("Lunch", id="evt_1", to=session_of(server))).inbox
        assert ids(await read(host)) == ["evt_1"]
        await host.update(disabled=[SET])
        assert "error" in await host.ask("resources/read", {"uri": f"inbox://{SET}"})
        with pytest.raises(FeatureDisabled):
            await posted.push("Lunch", to=session_of(server))


async def test_an_inbox_is_bounded_and_says_what_is_missing(server: Server, posted: Any):
    async with hosting(server, mcpl=None) as host:
        for number in range(300):
            await posted.push("tick", id=f"evt_{number}", to="local")
        kept = await read(host)
        assert len(kept["events"]) == 256 and kept["missed"] is True
        assert ids(kept)[-1] == "evt_299"
        assert (await read(host, f"inbox://{SET}?after=100"))["missed"] is False


async def test_nobody_is_meant_outside_of_a_call(server: Server, posted: Any):
    async with hosting(server, mcpl=None):
        with pytest.raises(NoBackChannel):
            await posted.push("Call Alice")


async def test_a_removed_set_takes_its_inbox_along(server: Server, posted: Any):
    async with hosting(server, mcpl=None) as host:
        await posted.push("Lunch", to=everyone)
        server.mcpl.remove(SET)
        assert "error" in await host.ask("resources/read", {"uri": f"inbox://{SET}"})


# -- claude/channel --------------------------------------------------------------------------------------

CHANNEL = {"experimental": {"claude/channel": {}}}


@pytest.mark.parametrize("who", [{"capabilities": CHANNEL}, {"name": "claude-code"}], ids=["offers", "is known"])
async def test_an_opted_in_set_reaches_hosts_of_claude_channels(server: Server, who: Any):
    alerts = server.feature_set("alerts", "Alerts", claude_channel=True)
    async with hosting(server, mcpl=None, **who) as host:
        assert host.opening["capabilities"]["experimental"] == {"claude/channel": {}}
        receipt = await alerts.push(
            ["Disk full", Link("memo://disk")],
            id="evt_1",
            timestamp="2026-01-23T14:00:00Z",
            origin={"host": "a", "x-y": 1},
        )
        assert receipt.accepted
        await turns()
        meta = {"event_id": "evt_1", "feature_set": "alerts", "timestamp": "2026-01-23T14:00:00Z", "host": "a"}
        content = "Disk full\n[resource: memo://disk]"
        assert host.heard_of("notifications/claude/channel") == [{"content": content, "meta": meta}]


async def test_an_event_takes_one_road_only(server: Server):
    alerts = server.feature_set("alerts", "Alerts", claude_channel=True)
    async with hosting(server, capabilities=CHANNEL) as host:
        await alerts.push("Disk full")
        assert texts(host) == ["Disk full"]
        assert host.heard_of("notifications/claude/channel") == []


async def test_without_opting_in_there_are_no_claude_channels(server: Server, reminders: Any):
    async with hosting(server, mcpl=None, capabilities=CHANNEL) as host:
        assert "experimental" not in host.opening["capabilities"]
        with pytest.raises(NoBackChannel):
            await reminders.push("Call Alice")
        assert host.heard == []


async def test_events_until_the_last_session_is_closed(server: Server, reminders: Any):
    """What is left of a source is cleaned up even where its session is never told goodbye."""
    ended = asyncio.Event()

    @reminders.events
    async def due() -> AsyncIterator[str]:
        try:
            yield "one"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with hosting(server) as host:
        await host.until_asked("push/event")
        assert not ended.is_set()
        session_of(server).close()
        await until(ended.is_set)


def test_ids_of_others_are_not_taken_for_those_that_are_made_here():
    from defserve.protocols.mcpl.content import is_generated_event_id, new_event_id

    assert is_generated_event_id(new_event_id())
    assert not is_generated_event_id("evt_1NG8Du2eZvKYlo2CUI79vXWy")  # as a payment service writes them
