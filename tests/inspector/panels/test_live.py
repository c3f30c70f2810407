"""The verbs of the Live panel, against a server that takes part in turns, in both eras."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server
from defserve.errors import DefserveError, PeerError
from defserve.inspector import live_feed
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.live_feed import MAX_EVENTS, MAX_MESSAGE_LENGTH, MAX_WORDS, LiveFeed, diff_words
from defserve.inspector.panels.live_topics import MAX_PATTERNS
from defserve.inspector.protocol import BadMessage
from defserve.serve.lifespans import connect_in_memory
from tests.inspector.asking import do
from tests.inspector.lively import ALERTS, MEMORY, PRIVACY, WATCH, WATER, lively
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

ERAS = ["handshake", "stateless"]


def inspecting(server: Server, era: str = "handshake") -> Inspection:
    return Inspection(InspectionTarget("it", ("it.py",), lambda: connect_in_memory(server.composition), era))


def of(told: Any, name: str) -> dict[str, Any]:
    return next(each for each in told["sets"] if each["name"] == name)


@for_each_row("era", ERAS)
async def test_a_turn_has_every_injection_at_its_place_and_the_rewritten_answer(era: str):
    async with inspecting(lively(), era) as inspection:
        before = await do(inspection, "live.before", message="Should Alice water the ferns?")
        assert [(each["set"], each["position"]) for each in before["injections"]] == [
            (WATCH, "system"),
            (MEMORY, "beforeUser"),
            (WATCH, "afterUser"),
        ]
        assert before["injections"][1]["metadata"] == {"memoryIds": ["m1", "m7"]}
        assert before["silent"] == ["season.tips"]
        entry = inspection.recorder.get_message(before["seq"])
        assert entry is not None
        assert entry.method == "context/beforeInference"
        after = await do(inspection, "live.after", answer="Alice knows.")
        assert (after["text"], after["rewrites"]) == (
            "A. knows.",
            [
                {
                    "set": PRIVACY,
                    "changes": [("del", "Alice"), ("ins", "A."), ("same", " knows.")],
                    "metadata": {"names": 1},
                }
            ],
        )
        assert (await do(inspection, "live.after", answer="Nobody knows."))["rewrites"] == []


async def test_a_hook_that_fails_is_told_and_the_turn_goes_on():
    async with inspecting(lively()) as inspection:
        await do(inspection, "live.before", message="Is it slow?")
        after = await do(inspection, "live.after", answer="It is broken.")
        assert (after["text"], after["rewrites"]) == ("It is broken.", [])
        assert [each["outcome"] for each in after["problems"]] == ["failure"]
        assert (await do(inspection, "live.after", answer="It is whole."))["problems"] == []


async def test_an_answer_needs_a_turn_and_texts_have_a_limit():
    async with inspecting(lively()) as inspection:
        with pytest.raises(BadMessage, match="no turn"):
            await do(inspection, "live.after", answer="Yes.")
        with pytest.raises(BadMessage, match="characters"):
            await do(inspection, "live.before", message="x" * (MAX_MESSAGE_LENGTH + 1))


@for_each_row("era", ERAS)
async def test_a_set_that_is_off_is_silent_until_it_is_on_again(era: str):
    async with inspecting(lively(), era) as inspection:
        client = await inspection.client()
        told = await do(inspection, "live.switch", sets=[WATCH, ALERTS], on=False)
        assert [each["name"] for each in told["sets"] if not each["enabled"]] == [WATCH, ALERTS]
        before = await do(inspection, "live.before", message="The ferns?")
        assert [each["set"] for each in before["injections"]] == [MEMORY]
        assert "warn" not in [tool["name"] for tool in await client.tools()]
        # Another conversation begins as this one goes on.
        other = await inspection.client(next(each for each in ERAS if each != era))
        assert other.mcpl is not None
        assert not other.mcpl.feature_sets.is_enabled(WATCH)
        told = await do(inspection, "live.switch", sets=[WATCH, ALERTS], on=True)
        assert all(each["enabled"] for each in told["sets"])
        assert other.mcpl.feature_sets.is_enabled(WATCH)
        with pytest.raises(BadMessage):
            await do(inspection, "live.switch", sets="all", on=True)


async def test_events_are_accepted_refused_or_wait_for_the_person():
    async with inspecting(lively()) as inspection:
        client = await inspection.client()
        assert await client.call("warn", text="one") == "accepted"
        await do(inspection, "live.mode", mode="refuse")
        assert await client.call("warn", text="two") == "refused: the inspector refuses events"
        await do(inspection, "live.mode", mode="ask")
        for allow, expected in ((True, "accepted"), (False, "refused: the person at the inspector refused it")):
            waiting = asyncio.create_task(client.call("warn", text="three"))
            await until(lambda: inspection.live.events[-1]["state"] == "waits")
            number = inspection.live.events[-1]["number"]
            assert await do(inspection, "live.decide", number=number, allow=allow) == {"answered": True}
            assert await waiting == expected
            assert await do(inspection, "live.decide", number=number, allow=allow) == {"answered": False}
        # Another mode decides about those that wait.
        waiting = asyncio.create_task(client.call("warn", text="four"))
        await until(lambda: inspection.live.events[-1]["state"] == "waits")
        await do(inspection, "live.mode", mode="accept")
        assert await waiting == "accepted"
        told = await do(inspection, "live.overview")
        assert [each["text"] for each in told["events"]] == ["four", "three", "three", "two", "one"]
        with pytest.raises(BadMessage):
            await do(inspection, "live.mode", mode="perhaps")


async def test_another_mode_decides_about_an_event_that_newer_ones_have_pushed_out_of_the_list():
    async with inspecting(lively()) as inspection:
        await do(inspection, "live.mode", mode="ask")
        waiting = asyncio.create_task((await inspection.client()).call("warn", text="one"))
        await until(lambda: bool(inspection.live.events))
        inspection.live.events.clear()
        await do(inspection, "live.mode", mode="accept")
        async with asyncio.timeout(10):
            assert await waiting == "accepted"


async def test_a_server_that_leaves_no_longer_waits():
    async with inspecting(lively()) as inspection:
        await do(inspection, "live.mode", mode="ask")
        calling = asyncio.create_task((await inspection.client()).call("warn", text="one"))
        await until(lambda: bool(inspection.live.events))
    await asyncio.gather(calling, return_exceptions=True)
    await until(lambda: inspection.live.events[-1]["state"] == "refused")


async def test_what_is_pushed_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_feed, "MAX_WAITING_DECISIONS", 0)
    async with inspecting(lively()) as inspection:
        client = await inspection.client()
        await client.call("warn", text="x" * 100_000)
        assert len(inspection.live.events[-1]["text"]) == live_feed.MAX_TEXT_LENGTH
        await do(inspection, "live.mode", mode="ask")
        assert str(await client.call("warn", text="one too many")).startswith("refused")
    kept = LiveFeed(lambda topic, data: None)
    for number in range(MAX_EVENTS + 5):
        kept.add_message("handshake", "c", "me", str(number))
    assert len(kept.messages) == MAX_EVENTS


async def test_a_scope_on_no_list_waits_for_the_person_and_lists_decide_the_rest():
    async with inspecting(lively()) as inspection:
        client = await inspection.client()
        watering = asyncio.create_task(client.call("water_bed", bed="fern"))
        await until(lambda: bool(inspection.live.asked))
        (asked,) = (await do(inspection, "live.overview"))["asked"]
        assert (asked["set"], asked["label"]) == (WATER, "bed/fern")
        await do(inspection, "live.decide", number=asked["number"], allow=True)
        assert await watering == "fern is watered"
        told = await do(inspection, "live.scopes", set=WATER, allow=["bed/north-*"], block=["bed/roof"])
        assert (of(told, WATER)["allow"], of(told, WATER)["block"]) == (["bed/north-*"], ["bed/roof"])
        assert await client.call("water_bed", bed="north-1") == "north-1 is watered"
        with pytest.raises(Exception, match="forbids"):
            await client.call("water_bed", bed="roof")
        assert inspection.live.asked == {}
        with pytest.raises(BadMessage):
            await do(inspection, "live.scopes", set=WATER, allow=["x"] * (MAX_PATTERNS + 1))


@for_each_row("answer", [{"text": "Moss."}, {"result": {"content": {"type": "text", "text": "Moss."}}}])
async def test_an_inference_that_the_server_asks_for_is_put_to_the_person(answer: dict[str, Any]):
    async with inspecting(lively()) as inspection:
        calling = asyncio.create_task((await inspection.client()).call("advise", bed="fern"))
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = inspection.questions.waiting
        assert question["params"]["systemPrompt"] == "You know gardens."
        assert question["params"]["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": "What grows in fern?"}]}
        ]
        row = inspection.live.events[-1]
        assert (row["kind"], row["text"], row["state"]) == ("inference", "What grows in fern?", "waits")
        inspection.questions.answer_question(question["id"], answer)
        assert await calling == "Moss."
        assert row["state"] == "answered"


async def test_an_inference_that_the_person_refuses_is_refused():
    async with inspecting(lively()) as inspection:
        calling = asyncio.create_task((await inspection.client()).call("advise", bed="fern"))
        await until(lambda: bool(inspection.questions.waiting))
        inspection.questions.answer_question(inspection.questions.waiting[0]["id"], {"refuse": True})
        with pytest.raises(DefserveError):
            await calling
        assert inspection.live.events[-1]["state"] == "refused"


async def test_a_channel_is_a_chat():
    async with inspecting(lively()) as inspection:
        client = await inspection.client()
        assert await client.call("call_roof", text="Vent 2 makes a noise.") is True
        said = await do(inspection, "live.publish", channel="chat:#roof", text="Shall I close it?")
        assert (said["mine"], said["delivered"], said["era"]) == (True, True, "handshake")
        told = await do(inspection, "live.overview")
        assert [(each["who"], each["text"]) for each in told["messages"]] == [
            ("gardener", "Vent 2 makes a noise."),
            ("inspector", "Shall I close it?"),
        ]
        assert [each["label"] for each in told["channels"]] == ["#roof"]
        await do(inspection, "live.close", channel="chat:#roof")
        assert (await do(inspection, "live.overview"))["channels"] == []
        with pytest.raises(PeerError):
            await do(inspection, "live.open", type="no such type")


async def test_the_stateless_era_fetches_events_and_channels():
    async with inspecting(lively(), "stateless") as inspection:
        await (await inspection.client()).call("warn", text="Frost tonight")
        assert len(inspection.live.events) == 0
        assert await do(inspection, "live.collect") == {"found": 1}
        told = await do(inspection, "live.overview")
        assert [each["text"] for each in told["events"]] == ["Frost tonight"]
        assert (told["polls"], [each["id"] for each in told["channels"]]) == (True, ["chat:#roof"])


async def test_a_server_without_mcpl_has_nothing_of_this():
    async with inspecting(Server("plain")) as inspection:
        assert await do(inspection, "live.overview") == {"version": None}
        with pytest.raises(PeerError, match="does not speak MCPL"):
            await do(inspection, "live.before", message="Hi")


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_difference_leads_from_one_text_to_the_other(before: str, after: str):
    steps = list(diff_words(before, after))
    assert "".join(text for kind, text in steps if kind != "ins") == before
    assert "".join(text for kind, text in steps if kind != "del") == after


def test_a_long_text_is_shown_whole():
    long = "word " * MAX_WORDS
    assert list(diff_words(long, long + "x")) == [("ins", long + "x")]


@for_each_row("era", ERAS)
async def test_a_host_of_the_next_version_grants_and_has_no_hooks_after(era: str):
    async with inspecting(lively(), era) as inspection:
        before = await do(inspection, "live.overview")
        assert (before["version"], before["offered"], before["after"], before["granted"]) == ("0.4", "0.4", True, None)
        told = await do(inspection, "live.offer", version="0.5")
        assert (told["version"], told["offered"], told["after"]) == ("0.5", "0.5", False)
        assert "contextHooks.beforeInference.observe" in told["granted"]
        # Without a session the policy travels with each request, and nothing answers it.
        assert told["receipt"] == (None if era == "stateless" else {"accepted": True, "reason": None, "notes": []})
        assert of(told, WATCH)["enabled"] and of(told, WATCH)["missing"] == [] and not of(told, WATER)["scoped"]
        found = await do(inspection, "live.before", message="Are the ferns dry?")
        assert len(found["injections"]) == 3
        assert (await do(inspection, "live.offer", version="0.4"))["version"] == "0.4"
        with pytest.raises(BadMessage, match=r"one of 0\.4, 0\.5"):
            await do(inspection, "live.offer", version="0.6")


async def test_what_was_not_granted_is_told_for_each_set():
    async with inspecting(lively()) as inspection:
        inspection.live.set_offered_version("0.5")
        client = await inspection.client()
        await do(inspection, "live.offer", version="0.5")
        mcpl = (await inspection.client()).mcpl
        assert mcpl is not None and client.mcpl is not mcpl
        mcpl.feature_sets.grants.apply_receipt(False)
        told = await do(inspection, "live.overview")
        assert told["granted"] == [] and "pushEvents" in told["denied"]
        assert "pushEvents" in of(told, ALERTS)["missing"] and not of(told, ALERTS)["enabled"]


async def test_a_channel_is_opened_by_its_type_and_address():
    async with inspecting(lively(), "stateless") as inspection:
        assert (await do(inspection, "live.overview"))["opens"] is False
    async with inspecting(lively(), "handshake") as inspection:
        assert (await do(inspection, "live.overview"))["opens"] is True
        made = await do(inspection, "live.open", type="chat", address='{"name": "shed"}')
        assert made == {"id": "chat:#shed", "label": "#shed", "direction": made["direction"], "type": "chat"}
        told = await do(inspection, "live.overview")
        assert "chat:#shed" in [each["id"] for each in told["channels"]]
        for address in ('{"name": "full"}', "shed", ""):
            with pytest.raises(DefserveError):
                await do(inspection, "live.open", type="chat", address=address)
    async with inspecting(Server("plain")) as inspection:
        assert await do(inspection, "live.overview") == {"version": None}


async def test_a_server_without_channels_is_not_asked_for_them():
    server = Server("quiet")
    server.feature_set("notes", "Remember.")
    async with inspecting(server, "stateless") as inspection:
        await do(inspection, "live.collect")
        assert inspection.recorder.errors == 0
        assert "channels/list" not in {
            each.method for each in inspection.recorder.get_messages(0, inspection.recorder.count)
        }


async def test_a_server_with_channels_is_asked_for_them():
    async with inspecting(lively(), "stateless") as inspection:
        await do(inspection, "live.collect")
        assert "channels/list" in {
            each.method for each in inspection.recorder.get_messages(0, inspection.recorder.count)
        }
