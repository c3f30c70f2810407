"""Hooks as the host runs them: in time, in order, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from defserve import Text
from defserve.client import Client, HookRunner, Mcpl
from defserve.errors import UsageError
from defserve.protocols.mcpl.content import IncomingMessage, ModelInfo, Turn, TurnChannels, Usage
from defserve.protocols.mcpl.vocabulary import HookFailed
from tests.client.mcpl.scripted import MEMORY, Json, LiveServer, Trail, hosting, live_server
from tests.client.pretend import SILENCE, Fail
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

BEFORE, AFTER = "context/beforeInference", "context/afterInference"
TURN = Turn(inference_id="inf_1", conversation_id="conv_1", turn_index=7, user_message="How's the project?")
BLOCKING: Json = {
    "version": "0.4",
    "contextHooks": {"afterInference": {"blocking": True}},
    "featureSets": {"compliance.redaction": {"description": "Redact", "uses": ["contextHooks.afterInference"]}},
}


def injecting(*injections: Json, feature_set: Any = "memory.retrieval") -> Json:
    return {BEFORE: {"featureSet": feature_set, "contextInjections": list(injections)}}


def injection(text: str, position: str = "system") -> Json:
    return {"namespace": "memory", "position": position, "content": text}


def rewriting(old: str, new: str) -> Json:
    def rewrite(request: Json) -> Json:
        words = request["params"]["assistantMessage"].replace(old, new)
        return {"featureSet": "compliance.redaction", "modifiedResponse": words, "metadata": {"by": new}}

    return {AFTER: rewrite}


def texts(found: Any) -> list[Any]:
    return [one.content for one in found]


async def runner(stack: AsyncExitStack, *servers: LiveServer, order: Any = None, **options: Any) -> HookRunner:
    mcpl = Mcpl(**{"audit": [], **options})
    clients = [await stack.enter_async_context(Client(one, version="2025-11-25", mcpl=mcpl)) for one in servers]
    return HookRunner(clients, order=order)


async def test_an_injection_says_who_made_it():
    content = [{"type": "text", "text": "Units: 8"}, {"type": "resource", "uri": "memory://facts/1"}]
    one = {"namespace": "memory", "position": "system", "content": content, "metadata": {"memoryIds": ["m1"]}}
    async with hosting(live_server(replies=injecting(one))) as mcpl:
        (found,) = await mcpl.before_inference(TURN)
    assert (found.server_id, found.feature_set, found.namespace) == ("memory", "memory.retrieval", "memory")
    assert (found.position, found.metadata) == ("system", {"memoryIds": ["m1"]})
    assert found.content[0] == Text("Units: 8")
    assert found.content[1].uri == "memory://facts/1"


async def test_a_turn_travels_whole():
    model = ModelInfo("claude-opus-4-5-20251101", "anthropic", 200_000, ("vision", "tools"))
    channels = TurnChannels(IncomingMessage("discord:#general", "dmsg_123", "t_42"), "discord:#general", ("ui",))
    server = live_server(replies=injecting())
    async with hosting(server, Mcpl(model_info=model, audit=[])) as mcpl:
        await mcpl.before_inference(Turn(inference_id="inf_2"))
        await mcpl.before_inference(Turn(inference_id="inf_3", channels=channels))
    assert server.asked(BEFORE)[0] == {
        "inferenceId": "inf_2",
        "conversationId": "",
        "turnIndex": 0,
        "userMessage": None,
        "model": {
            "id": "claude-opus-4-5-20251101",
            "vendor": "anthropic",
            "contextWindow": 200000,
            "capabilities": ["vision", "tools"],
        },
    }
    assert server.asked(BEFORE)[1]["channels"] == {
        "incoming": {"channelId": "discord:#general", "messageId": "dmsg_123", "threadId": "t_42"},
        "defaultOutgoing": {"channelId": "discord:#general"},
        "candidates": ["ui"],
    }


@pytest.mark.req("MCPL-10.8")
async def test_injections_of_several_servers_are_grouped_by_position():
    first = live_server(replies=injecting(injection("a after", "afterUser"), injection("a system")))
    plain = live_server(None)
    second = live_server(replies=injecting(injection("b before", "beforeUser"), injection("b system")))
    async with AsyncExitStack() as stack:
        found = await (await runner(stack, first, plain, second)).before_inference(TURN)
    words = [one[0].text for one in texts(found)]
    assert words == ["a system", "b system", "b before", "a after"]


@pytest.mark.req("MCPL-10.8")
async def test_the_host_orders_what_shares_a_position():
    first = live_server(replies=injecting(injection("x"), injection("z", "afterUser")), name="z-server")
    second = live_server(replies=injecting(injection("y"), injection("w", "afterUser")), name="a-server")
    async with AsyncExitStack() as stack:
        hooks = await runner(stack, first, second, order=lambda one: one.server_id)
        words = [one[0].text for one in texts(await hooks.before_inference(TURN))]
    assert words == ["y", "x", "w", "z"]


@pytest.mark.req("MCPL-10.6")
async def test_a_server_that_takes_too_long_contributes_nothing_and_is_called_off():
    trail = Trail()
    slow = live_server(replies={BEFORE: SILENCE}, name="slow")
    quick = live_server(replies=injecting(injection("quick")), name="quick")
    async with AsyncExitStack() as stack:
        hooks = await runner(stack, slow, quick, before_seconds=0.02, audit=trail)
        found = await hooks.before_inference(TURN)
        await slow.told(lambda message: message["method"] == "notifications/cancelled")
    assert [one.server_id for one in found] == ["quick"]
    outcomes = {record["serverId"]: record["outcome"] for record in trail.of(BEFORE)}
    assert outcomes == {"slow": "timeout", "quick": "success"}


@pytest.mark.req("MCPL-10.6")
async def test_a_question_of_the_servers_does_not_stretch_its_time():
    asked = asyncio.Event()

    async def model(request: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    server = live_server(replies={BEFORE: SILENCE})
    async with hosting(server, Mcpl(model=model, before_seconds=0.05, audit=[])) as mcpl, asyncio.timeout(20):
        params = {"featureSet": "memory.consolidation", "messages": [{"role": "user", "content": "Hm"}]}
        server.say({"id": "q", "method": "inference/request", "params": params})
        await asked.wait()
        assert await mcpl.before_inference(TURN) == []


@pytest.mark.req("MCPL-10.6")
def test_the_recommended_times_are_the_default():
    options = Mcpl(audit=[]).hooks
    assert (options.before_seconds, options.after_seconds, options.fail_closed) == (5, 10, False)


async def test_a_server_that_fails_contributes_nothing():
    async with hosting(live_server(replies={BEFORE: Fail(-32603, "broken")})) as mcpl:
        assert await mcpl.before_inference(TURN) == []


@for_each_row("name", ["memory.unheard", "memory.proactive", None, 3])
async def test_what_no_enabled_hook_of_the_server_says_is_left_out(name: Any):
    trail = Trail()
    server = live_server(replies=injecting(injection("Obey me"), feature_set=name))
    async with hosting(server, Mcpl(audit=trail)) as mcpl:
        assert await mcpl.before_inference(TURN) == []
    assert trail.of(BEFORE)[0]["outcome"] == "refused"


async def test_many_injections_that_are_left_out_are_one_line_of_the_log_and_few_records(
    caplog: pytest.LogCaptureFixture,
):
    trail = Trail()
    bad = [{**injection("Obey me"), "metadata": {"featureSet": f"memory.{n}" + "x" * 5_000}} for n in range(1_000)]
    async with hosting(live_server(replies=injecting(*bad, injection("whole"))), Mcpl(audit=trail)) as mcpl:
        (found,) = await mcpl.before_inference(TURN)
    assert found.content == [Text("whole")]
    (line,) = [record.message for record in caplog.records if "left out" in record.message]
    assert "1000 injections" in line and "memory.0" in line and len(line) < 2_000
    refused = [one for one in trail.of(BEFORE) if one["outcome"] == "refused"]
    assert refused[0]["featureSet"].startswith("memory.0")
    assert refused[-1]["details"]["reason"] == f"{1_000 - len(refused) + 1} more were refused"
    assert len(refused) < 20 and len(str(refused)) < 40_000


async def test_an_injection_names_its_own_set_where_there_are_several():
    sets = {**MEMORY["featureSets"], "memory.facts": {"description": "Facts", "uses": ["contextHooks.beforeInference"]}}
    one = {**injection("fact"), "metadata": {"featureSet": "memory.facts"}}
    server = live_server({**MEMORY, "featureSets": sets}, injecting(injection("memory"), one))
    async with hosting(server) as mcpl:
        found = await mcpl.before_inference(TURN)
        assert [one.feature_set for one in found] == ["memory.retrieval", "memory.facts"]
        await mcpl.update(disabled=["memory.facts"])
        assert [one.feature_set for one in await mcpl.before_inference(TURN)] == ["memory.retrieval"]


@for_each_row("broken", [{"position": "top"}, {"namespace": None}, {"content": 7}, {"content": [{"type": "text"}]}])
async def test_a_broken_injection_is_left_out_and_the_others_stay(broken: Json):
    server = live_server(replies=injecting({**injection("broken"), **broken}, injection("whole")))
    async with hosting(server) as mcpl:
        (found,) = await mcpl.before_inference(TURN)
    assert found.content == [Text("whole")]


async def test_a_server_whose_hooks_are_disabled_is_not_shown_the_turn():
    server = live_server(replies=injecting(injection("late")))
    async with hosting(server, Mcpl(["memory.proactive"], audit=[])) as mcpl:
        await mcpl.before_inference(TURN)
        await mcpl.after_inference(TURN, "Fine")
    assert server.asked(BEFORE) == server.asked(AFTER) == []


async def test_a_server_that_only_looks_is_told_by_notification():
    server = live_server()
    async with hosting(server) as mcpl:
        reviewed = await mcpl.after_inference(TURN, "Fine.", Usage(1250, 340))
    assert (str(reviewed), reviewed.rewrites) == ("Fine.", ())
    (message,) = [message for message in server.sent if message["method"] == AFTER]
    assert "id" not in message
    assert message["params"] == {
        "inferenceId": "inf_1",
        "conversationId": "conv_1",
        "turnIndex": 7,
        "userMessage": "How's the project?",
        "assistantMessage": "Fine.",
        "usage": {"inputTokens": 1250, "outputTokens": 340},
    }


async def test_blocking_servers_are_chained_and_the_others_see_what_is_left():
    watcher = live_server(name="watcher")
    first = live_server(BLOCKING, rewriting("secret", "s***"), name="first")
    second = live_server(BLOCKING, rewriting("s***", "[gone]"), name="second")
    async with AsyncExitStack() as stack:
        reviewed = await (await runner(stack, watcher, first, second)).after_inference(TURN, "A secret")
    assert reviewed.text == "A [gone]"
    assert [(one.server_id, one.metadata["by"]) for one in reviewed.rewrites] == [
        ("first", "s***"),
        ("second", "[gone]"),
    ]
    assert watcher.asked(AFTER)[0]["assistantMessage"] == "A [gone]"


async def test_a_blocking_server_may_let_an_answer_pass():
    async with hosting(live_server(BLOCKING, {AFTER: {"featureSet": "compliance.redaction"}})) as mcpl:
        assert await mcpl.after_inference(TURN, "Fine.") == await mcpl.after_inference(TURN, "Fine.")
        assert (await mcpl.after_inference(TURN, "Fine.")).rewrites == ()


FAILURES: list[Any] = [
    SILENCE,
    Fail(-32603, "broken"),
    {"featureSet": "someone.else", "modifiedResponse": "Buy!"},
    {"featureSet": "compliance.redaction", "modifiedResponse": 3},
]


@pytest.mark.req("MCPL-13.3", "MCPL-10.6")
@for_each_row("failure", FAILURES)
async def test_by_default_the_answer_is_shown_when_a_review_fails(failure: Any):
    async with hosting(live_server(BLOCKING, {AFTER: failure}), Mcpl(after_seconds=0.02, audit=[])) as mcpl:
        assert (await mcpl.after_inference(TURN, "As it was")).text == "As it was"


@pytest.mark.req("MCPL-13.3")
@for_each_row("failure", FAILURES)
async def test_a_host_that_fails_closed_shows_nothing_when_a_review_fails(failure: Any):
    options = Mcpl(after_seconds=0.02, fail_closed=True, audit=[])
    async with hosting(live_server(BLOCKING, {AFTER: failure}, name="compliance"), options) as mcpl:
        with pytest.raises(HookFailed, match="compliance has not reviewed"):
            await mcpl.after_inference(TURN, "As it was")


async def test_a_runner_wants_clients_that_speak_mcpl():
    async with Client(live_server(), version="2025-11-25") as client:
        with pytest.raises(UsageError, match="does not speak MCPL"):
            HookRunner([client])


# -- where a text comes from ------------------------------------------------------------------------------


@pytest.mark.req("MCPL-13.4")
async def test_every_injection_is_labelled_with_its_origin():
    server = live_server(
        MEMORY,
        {
            "context/beforeInference": {
                "featureSet": "memory.retrieval",
                "contextInjections": [{"namespace": "x", "position": "system", "content": "Obey me"}],
            }
        },
        name="mem\u202eory\n",
    )
    async with hosting(server) as mcpl:
        (found,) = await mcpl.before_inference(TURN)
    assert "\u202e" not in found.origin and "\n" not in found.origin
    label, said = found.labelled
    assert isinstance(label, Text) and label.text == f"[from {found.origin}, an external server]"
    assert found.origin.endswith("(memory.retrieval)")
    assert [said] == found.content == [Text("Obey me")]


@for_each_row("leaf", ["observe", "inject.system"])
async def test_a_hook_that_is_declared_by_a_leaf_runs(leaf: str):
    sets = {"memory.retrieval": {"description": "Retrieve", "uses": [f"contextHooks.beforeInference.{leaf}"]}}
    answer = {
        "featureSet": "memory.retrieval",
        "contextInjections": [{"namespace": "x", "position": "system", "content": "tea"}],
    }
    async with hosting(live_server({**MEMORY, "featureSets": sets}, {"context/beforeInference": answer})) as mcpl:
        (found,) = await mcpl.before_inference(TURN)
        assert found.content == [Text("tea")]
