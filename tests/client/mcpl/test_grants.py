"""The host with servers of 0.5: claims, grants, the policy and its receipt, and what they open and close."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve import Text, UsageError
from defserve.client import Mcpl, ScriptedModel
from defserve.client.mcpl.feature_sets import collect_claimed_paths
from defserve.client.mcpl.peer import ManifestFollower
from defserve.errors import PeerTimeout
from defserve.protocols.mcpl.content import ModelInfo, Turn, Usage
from defserve.protocols.mcpl.manifest import compute_manifest_revision
from defserve.protocols.mcpl.policies import POLICY_META_KEY
from defserve.protocols.mcpl.vocabulary import CAPABILITY_PATHS, CapabilityDenied, FeatureDisabled
from tests.client.mcpl.scripted import MEMORY, Json, LiveServer, Trail, hosting, live_server, stateless_server
from tests.client.pretend import SILENCE, Fail
from tests.effort import examples
from tests.raw import until
from tests.rows import for_each_row

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-05")]

BEFORE = "contextHooks.beforeInference"
SETS: Json = {
    "memory.retrieval": {"description": "Retrieve", "uses": [f"{BEFORE}.observe", f"{BEFORE}.inject.system"]},
    "memory.proactive": {"description": "Remind", "uses": ["pushEvents"]},
    "memory.think": {"description": "Think", "uses": ["inferenceRequest"]},
    "memory.usage": {"description": "Count", "uses": ["inferenceLifecycle"]},
    "chat.rooms": {"description": "Chat", "uses": ["channels.register", "channels.incoming", "channels.publish"]},
}
BLOCK: Json = {
    "version": "0.5",
    "pushEvents": True,
    "contextHooks": {"beforeInference": {"observe": True, "inject": {"system": True}}},
    "inferenceRequest": {},
    "inferenceLifecycle": True,
    "modelInfo": True,
    "channels": True,
    "featureSets": SETS,
}
CLAIMED = sorted(
    {path for path in CAPABILITY_PATHS if path.startswith("channels.")}
    | {"tools", "pushEvents", "inferenceRequest", "inferenceLifecycle", "modelInfo"}
    | {f"{BEFORE}.observe", f"{BEFORE}.inject.system"}
)
TURN = Turn(inference_id="inf_1", conversation_id="c", turn_index=2, user_message="Tea?")
ROOM: Json = {"id": "chat:a", "type": "chat", "label": "A", "direction": "bidirectional"}
MESSAGE: Json = {"channelId": "chat:a", "messageId": "m1", "author": {"id": "u"}, "content": "hi", "tags": ["chat:dm"]}


ACCEPTED: Json = {"accepted": True}


def host(**options: Any) -> Mcpl:
    model: Any = ScriptedModel("Hello", info=ModelInfo("m1"))
    return Mcpl(**{"version": "0.5", "model": model, "audit": [], **options})


def server_05(receipt: Any = ACCEPTED, block: Json = BLOCK, **replies: Any) -> LiveServer:
    answers = {name.replace("_", "/"): reply for name, reply in replies.items()}
    return live_server(block, {"featureSets/update": receipt, **answers})


def policies(server: LiveServer) -> list[Json]:
    return [message for message in server.sent if message.get("method") == "featureSets/update"]


# -- claims ----------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    # The order of a set, and the address of an object, differ from process to process.
    return "silence" if value is SILENCE else str(sorted(value) if isinstance(value, set) else value)


@for_each_row(
    ("block", "claimed"),
    [
        ({}, set[str]()),
        ({"pushEvents": True, "modelInfo": False, "tools": True}, {"pushEvents"}),
        ({"inferenceRequest": {}}, {"inferenceRequest"}),
        ({"inferenceRequest": True}, {"inferenceRequest", "inferenceRequest.streaming"}),
        ({"inferenceRequest": {"streaming": True}}, {"inferenceRequest", "inferenceRequest.streaming"}),
        ({"channels": {"publish": True, "typing": 1, "telepathy": True}}, {"channels.publish"}),
        ({"channels": True}, {path for path in CAPABILITY_PATHS if path.startswith("channels.")}),
        ({"contextHooks": {"beforeInference": True}}, {path for path in CAPABILITY_PATHS if path.startswith(BEFORE)}),
        ({"contextHooks": True}, {path for path in CAPABILITY_PATHS if path.startswith(BEFORE)}),
        (
            {"contextHooks": {"beforeInference": {"inject": True}}},
            {path for path in CAPABILITY_PATHS if ".inject." in path},
        ),
        ({"pushEvents": {}, "channels": [], "contextHooks": "yes"}, set[str]()),
    ],
    ids=shown,
)
def test_what_a_server_claims(block: Json, claimed: set[str]):
    assert collect_claimed_paths(block, {}) == claimed
    assert collect_claimed_paths(block, {"tools": {}}) == claimed | {"tools"}


@for_each_row("grants", [["telepathy"], "tools", ["channels"]])
def test_grants_that_name_nothing_are_refused(grants: Any):
    with pytest.raises(UsageError, match="names no capability"):
        Mcpl(grants=grants)


# -- the policy ------------------------------------------------------------------------------------------


async def test_the_policy_is_a_request_with_everything_in_it():
    server = server_05()
    async with hosting(server, host()) as mcpl:
        (policy,) = policies(server)
        assert "id" in policy
        assert policy["params"] == {
            "effectiveCapabilities": CLAIMED,
            "deniedCapabilities": [],
            "enabled": list(SETS),
            "disabled": [],
        }
        methods = [message.get("method") for message in server.sent]
        assert methods.index("notifications/initialized") < methods.index("featureSets/update")
        assert mcpl.receipt is not None and mcpl.receipt.accepted
        assert all(mcpl.feature_sets.is_enabled(name) for name in SETS)


async def test_what_is_not_wished_is_denied():
    server = server_05()
    async with hosting(server, host(grants=["tools", "channels.*"], feature_sets={"disabled": ["chat.*"]})) as mcpl:
        (policy,) = policies(server)
        assert policy["params"]["effectiveCapabilities"] == [path for path in CLAIMED if path.startswith(("ch", "to"))]
        assert not set(policy["params"]["effectiveCapabilities"]) & set(policy["params"]["deniedCapabilities"])
        assert policy["params"]["disabled"] == ["chat.rooms"]
        assert not any(mcpl.feature_sets.is_enabled(name) for name in SETS)


async def test_a_host_grants_only_what_it_can_do():
    server = server_05()
    async with hosting(server, host(model=None, without=["pushEvents", "stateUpdate"])):
        granted = policies(server)[0]["params"]["effectiveCapabilities"]
    assert not {"pushEvents", "inferenceRequest", "modelInfo"} & set(granted)


async def test_the_offer_is_that_of_0_5():
    server = server_05()
    async with hosting(server, host()):
        pass
    (opening,) = [message for message in server.sent if message.get("method") == "initialize"]
    offered = opening["params"]["capabilities"]["experimental"]["mcpl"]
    assert offered["version"] == "0.5" and "afterInference" not in str(offered) and "observe" not in offered["channels"]
    assert collect_claimed_paths(offered, {}) == set(CAPABILITY_PATHS) - {"tools"}


async def test_a_server_of_0_4_is_treated_as_one():
    server = live_server(MEMORY)
    async with hosting(server, host()) as mcpl:
        assert mcpl.version == "0.4"
        (policy,) = policies(server)
        assert "id" not in policy and set(policy["params"]) == {"enabled", "disabled"}
        assert (await server.push())["result"]["accepted"]


async def test_a_server_that_insists_on_0_5_gets_a_policy_from_a_host_of_0_4():
    server = server_05()
    async with hosting(server, Mcpl(audit=[])):
        assert "effectiveCapabilities" in policies(server)[0]["params"]


@pytest.mark.parametrize(
    "receipt",
    [
        {"accepted": False, "fallback": "mcp-only", "reason": "too little"},
        {"accepted": False, "fallback": "close"},
        {"accepted": "yes"},
        {"mode": "full"},
        [],
        Fail(-32601, "Method not found"),
        Fail(-32602, "malformed"),
        SILENCE,
    ],
    ids=shown,
)
async def test_without_acceptance_nothing_counts(receipt: Any, caplog: pytest.LogCaptureFixture):
    server = server_05(receipt)
    async with hosting(server, host(policy_seconds=0.2)) as mcpl:
        assert "only MCP is left" in caplog.text
        assert not any(mcpl.feature_sets.is_enabled(name) for name in SETS)
        reply = await server.push()
        assert (reply["error"]["code"], reply["error"]["data"]) == (-32002, {"capability": "pushEvents"})
        assert await mcpl.before_inference(TURN) == []
    assert server.asked("context/beforeInference") == []


async def test_a_receipt_says_what_is_unavailable():
    unavailable = [{"featureSet": "memory.think", "missingCapabilities": ["x"], "effect": "disabled"}, "y"]
    server = server_05({"accepted": True, "mode": "degraded", "unavailableFeatures": unavailable, "notes": ["n"]})
    async with hosting(server, host()) as mcpl:
        assert mcpl.receipt is not None
        assert (mcpl.receipt.unavailable, mcpl.receipt.notes) == ({"memory.think": ("x",)}, ("n",))


async def test_what_comes_before_the_receipt_waits_for_it():
    event = {"featureSet": "memory.proactive", "eventId": "e", "timestamp": "t", "payload": {"content": "x"}}

    def receipt(request: Json) -> Json:
        server.say({"id": "early", "method": "push/event", "params": event})
        return {"accepted": True}

    server = server_05(receipt)
    async with hosting(server, host()):
        reply = await server.told(lambda message: message.get("id") == "early")
        assert reply["result"] == {"accepted": True}


async def test_narrowing_counts_before_the_server_answers_and_widening_after():
    server = server_05()
    async with hosting(server, host()) as mcpl:
        enabled: list[bool] = []

        def receipt(request: Json) -> Json:
            enabled.append(mcpl.feature_sets.is_enabled("memory.proactive"))
            return {"accepted": True}

        server.replies["featureSets/update"] = receipt
        await mcpl.update(disabled=["memory.proactive"])
        assert (await server.push())["error"]["code"] == -32001
        await mcpl.update(enabled=["memory.proactive"])
        assert enabled == [False, False]
        assert (await server.push())["result"]["accepted"]
        assert policies(server)[-1]["params"]["enabled"] == list(SETS)


# -- what is refused -------------------------------------------------------------------------------------


@for_each_row(
    ("method", "params", "path"),
    [
        ("push/event", {"featureSet": "memory.proactive", "eventId": "e"}, "pushEvents"),
        ("inference/request", {"featureSet": "memory.think", "messages": []}, "inferenceRequest"),
        ("model/info", {}, "modelInfo"),
        ("channels/register", {"channels": [ROOM]}, "channels.register"),
        ("channels/changed", {"added": [ROOM]}, "channels.register"),
        ("channels/list", {}, "channels.register"),
        ("channels/incoming", {"messages": [MESSAGE]}, "channels.incoming"),
    ],
)
async def test_what_is_not_granted_is_refused(method: str, params: Json, path: str):
    trail = Trail()
    server = server_05()
    async with hosting(server, host(grants=["tools"], audit=[trail])):
        reply = await server.ask(method, params)
    assert (reply["error"]["code"], reply["error"]["data"]) == (-32002, {"capability": path})
    assert trail.of(method)[-1]["outcome"] == "refused"


async def test_what_is_gone_is_unknown():
    server = server_05()
    async with hosting(server, host()):
        asked = {"featureSet": "memory.proactive", "scope": {"label": "x"}}
        assert (await server.ask("scope/elevate", asked))["error"]["code"] == -32601


@for_each_row(
    ("feature_set", "code"),
    [("memory.unknown", -32003), ("memory.usage", -32001), ("off", -32001), ("broken", -32002), ("empty", -32001)],
)
async def test_a_set_must_have_declared_what_it_does(feature_set: str, code: int):
    more: Json = {
        "off": {"description": "Off", "uses": ["pushEvents"]},
        "broken": {"description": "Old names", "uses": ["pushEvents", BEFORE]},
        "empty": {"description": "Empty", "uses": []},
    }
    server = server_05(block={**BLOCK, "featureSets": SETS | more})
    async with hosting(server, host(feature_sets={"disabled": ["off"]})):
        error = (await server.push(feature_set=feature_set))["error"]
        assert error["code"] == code and "canEnable" not in error["data"]
        assert policies(server)[0]["params"]["disabled"] == ["off", "broken", "empty"]


async def test_uses_of_the_other_draft_do_not_spoil_a_set(caplog: pytest.LogCaptureFixture):
    sets: Json = {"notes": {"description": "Notes", "uses": ["pushEvents", "stateUpdate"]}}
    server = server_05(block={**BLOCK, "featureSets": sets})
    async with hosting(server, host()):
        assert (await server.push(feature_set="notes"))["result"]["accepted"]
    assert "stateUpdate is not a use" in caplog.text


async def test_many_sets_of_the_other_draft_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture):
    sets: Json = {f"notes{n}": {"description": "Notes", "uses": ["stateUpdate"] * 100} for n in range(100)}
    async with hosting(server_05(block={**BLOCK, "featureSets": sets}), host()):
        pass
    (line,) = [record.message for record in caplog.records if "is not a use" in record.message]
    assert len(line) < 200 and "notes0" in line


# -- hooks -----------------------------------------------------------------------------------------------


def injections(*positions: str, **more: Any) -> Json:
    return {
        "featureSet": "memory.retrieval",
        "contextInjections": [
            {"namespace": "memory", "position": position, "content": f"at {position}", **more} for position in positions
        ],
    }


async def test_injections_are_judged_by_position():
    server = server_05(context_beforeInference=injections("system", "beforeUser"))
    async with hosting(server, host()) as mcpl:
        (found,) = await mcpl.before_inference(TURN)
    assert (found.position, found.feature_set, found.server_id) == ("system", "memory.retrieval", "memory")
    assert server.asked("context/beforeInference")[0]["userMessage"] == "Tea?"


async def test_the_grant_of_the_moment_counts():
    server = server_05()
    async with hosting(server, host()) as mcpl:
        changing: list[asyncio.Task[None]] = []

        def answer(request: Json) -> Any:
            async def change() -> None:
                await mcpl.update(disabled=["memory.retrieval"])
                server.say({"id": request["id"], "result": injections("system")})

            changing.append(asyncio.create_task(change()))
            return SILENCE

        server.replies["context/beforeInference"] = answer
        assert await mcpl.before_inference(TURN) == []
        await changing[0]


async def test_without_observe_the_text_is_withheld():
    sets: Json = {"inject": {"description": "Injects", "uses": [f"{BEFORE}.inject.system"]}}
    server = server_05(block={**BLOCK, "featureSets": sets}, context_beforeInference=injections("system"))
    async with hosting(server, host(grants=[f"{BEFORE}.inject.system"])) as mcpl:
        (found,) = await mcpl.before_inference(TURN)
        assert found.feature_set == ""  # a name that nobody declared is no label
    assert server.asked("context/beforeInference")[0]["userMessage"] is None


async def test_the_life_of_an_inference_is_told():
    server = server_05(context_beforeInference=injections())
    async with hosting(server, host()) as mcpl:
        await mcpl.before_inference(TURN)
        assert str(await mcpl.after_inference(TURN, "Yes.", Usage(3, 4))) == "Yes."
        await mcpl.inference_ended(TURN, "failed")
    about: Json = {"inferenceId": "inf_1", "conversationId": "c", "turnIndex": 2}
    model = {"model": {"id": "m1", "vendor": "", "capabilities": []}}
    assert server.asked("inference/lifecycle") == [
        {**about, "phase": "started", **model},
        {**about, "phase": "completed", "usage": {"inputTokens": 3, "outputTokens": 4}, **model},
        {**about, "phase": "failed", **model},
    ]
    assert server.asked("context/afterInference") == []


async def test_the_life_of_an_inference_is_told_to_nobody_else():
    for server, options in ((server_05(), {"grants": ["tools"]}), (live_server(MEMORY), {})):
        async with hosting(server, host(**options)) as mcpl:
            await mcpl.before_inference(TURN)
            await mcpl.after_inference(TURN, "Yes.")
        assert server.asked("inference/lifecycle") == []


# -- events and channels ---------------------------------------------------------------------------------


async def test_tags_are_closed_by_the_host():
    server = server_05()
    async with hosting(server, host()) as mcpl:
        await server.push(tags=["chat:mention", "chat:ambient", "plain", 5])
        assert (await anext(mcpl.events())).tags == ("chat:mention", "chat:addressed")


async def test_channels_are_judged_one_by_one():
    server = server_05()
    async with hosting(server, host(scopes={"chat.rooms": {"blacklist": ["chat:b"]}})) as mcpl:
        other = {**ROOM, "id": "chat:b"}
        assert (await server.ask("channels/register", {"channels": [other]}))["result"] == {
            "results": [{"id": "chat:b", "accepted": False, "reason": "capability_denied"}],
            "registered": [],
        }
        change = {"added": [ROOM, other], "updated": [], "removed": []}
        results = (await server.ask("channels/changed", change))["result"]["results"]
        assert [one["accepted"] for one in results] == [True, False]
        taken = (await server.ask("channels/incoming", {"messages": [MESSAGE]}))["result"]["results"]
        assert taken == [{"messageId": "m1", "accepted": True}]
        assert (await anext(mcpl.messages())).tags == ("chat:dm", "chat:addressed", "chat:private")


async def test_incoming_messages_may_come_without_an_id():
    server = server_05()
    async with hosting(server, host()) as mcpl:
        await server.ask("channels/register", {"channels": [ROOM]})
        server.say({"method": "channels/incoming", "params": {"messages": [MESSAGE]}})
        assert (await anext(mcpl.messages())).id == "m1"


async def test_a_channel_is_opened_by_its_id_with_its_history():
    broken = {"content": "no id"}
    result = {"channel": ROOM, "history": [MESSAGE, broken, "x"], "historyTruncated": True}
    server = server_05(channels_open=result)
    async with hosting(server, host()) as mcpl:
        opened: Any = await mcpl.open(None, id="chat:a", history={"limit": 5})
    assert server.asked("channels/open") == [{"channelId": "chat:a", "history": {"limit": 5}}]
    assert ([one.id for one in opened.history], opened.history_truncated) == (["m1"], True)
    assert opened.history[0].content == [Text("hi")]


async def test_a_long_history_that_cannot_be_read_is_few_records():
    trail = Trail()
    server = server_05(channels_open={"channel": ROOM, "history": [{"content": "no id"}] * 1_000})
    async with hosting(server, host(audit=trail)) as mcpl:
        await mcpl.open(None, id="chat:a", history={"limit": 5})
    *refused, _ = trail.of("channels/open")
    assert {one["outcome"] for one in refused} == {"refused"} and len(refused) < 20


async def test_typing_and_acknowledgements():
    sets = {"chat.rooms": {"description": "Chat", "uses": ["channels.typing", "channels.acknowledge"]}}
    answer = {"acknowledged": True, "representation": ":eyes:"}
    server = server_05(block={**BLOCK, "featureSets": sets}, channels_acknowledge=answer)
    async with hosting(server, host()) as mcpl:
        await mcpl.typing("chat:a", metadata={"topic": "t"})
        await mcpl.typing("chat:a", active=False)
        done = await mcpl.acknowledge("chat:a", "m1", "seen", "👀")
        assert (done.acknowledged, done.representation) == (True, ":eyes:")
    assert server.asked("channels/typing") == [
        {"channelId": "chat:a", "op": "start", "metadata": {"topic": "t"}},
        {"channelId": "chat:a", "op": "stop"},
    ]
    assert server.asked("channels/acknowledge") == [
        {"channelId": "chat:a", "messageId": "m1", "intent": "seen", "value": "👀"}
    ]


async def test_a_host_does_not_use_what_it_has_not_granted():
    server = server_05()
    async with hosting(server, host(grants=["tools"])) as mcpl:
        with pytest.raises(CapabilityDenied):
            await mcpl.publish("chat:a", "hi")
        with pytest.raises(CapabilityDenied):
            await mcpl.open("chat", {})
        with pytest.raises(CapabilityDenied):
            await mcpl.close("chat:a")
        with pytest.raises(FeatureDisabled):
            await mcpl.acknowledge("chat:a", "m1", "seen")
        await mcpl.typing("chat:a")
        async with mcpl.outgoing("chat:a", inference_id="i", conversation_id="c") as out:
            await out.chunk("x")
    assert [message["method"] for message in server.sent if message.get("method", "").startswith("channels")] == []


# -- the manifest ----------------------------------------------------------------------------------------


def renewed(**changes: Any) -> Json:
    manifest = {**BLOCK, **changes}
    return {**manifest, "revision": compute_manifest_revision(manifest)}


async def test_a_changed_manifest_is_fetched_and_followed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ManifestFollower, "pause", 0.0)
    late = {"late": {"description": "Late", "uses": ["pushEvents"]}}
    server = server_05()
    async with hosting(server, host()) as mcpl:
        server.replies["mcpl/manifest"] = renewed(featureSets=SETS | late)
        server.say({"method": "mcpl/manifestChanged", "params": {"revision": "x", "domains": ["featureSets"]}})
        await until(lambda: mcpl.feature_sets.is_enabled("late"))
        assert (await server.push(feature_set="late"))["result"]["accepted"]
        server.replies["mcpl/manifest"] = renewed(featureSets=SETS, pushEvents=False)
        server.say({"method": "mcpl/manifestChanged", "params": {"revision": "y", "domains": []}})
        await until(lambda: len(policies(server)) == 3)
        assert (await server.push("e2"))["error"]["code"] == -32002
        assert "late" not in mcpl.feature_sets
        assert "pushEvents" not in policies(server)[-1]["params"]["effectiveCapabilities"]


@pytest.mark.parametrize("answer", [Fail(-32601), {"featureSets": "none"}, {"version": "0.5"}], ids=str)
async def test_a_manifest_that_cannot_be_read_changes_nothing(answer: Any, caplog: pytest.LogCaptureFixture):
    server = server_05(mcpl_manifest=answer)
    async with hosting(server, host()):
        server.say({"method": "mcpl/manifestChanged", "params": {"revision": "x", "domains": []}})
        await until(lambda: "stays as it was" in caplog.text)
        assert (await server.push())["result"]["accepted"]


async def test_a_server_that_never_gives_its_changed_manifest_stops_no_deadline():
    server = server_05(mcpl_manifest=SILENCE)
    server.replies["tools/list"] = SILENCE
    async with hosting(server, host()) as mcpl, asyncio.timeout(10):
        server.say({"method": "mcpl/manifestChanged", "params": {"revision": "x", "domains": []}})
        await until(lambda: bool(server.asked("mcpl/manifest")))
        with pytest.raises(PeerTimeout):
            await mcpl._client.request("tools/list", timeout=0.05)  # pyright: ignore[reportPrivateUsage]


async def test_notices_are_not_a_flood(caplog: pytest.LogCaptureFixture):
    server = server_05(mcpl_manifest={**BLOCK, "revision": "sha256:wrong"})
    with caplog.at_level(logging.WARNING):
        async with hosting(server, host()):
            for _ in range(20):
                server.say({"method": "mcpl/manifestChanged", "params": {"revision": "x", "domains": []}})
            await until(lambda: bool(server.asked("mcpl/manifest")))
            assert (await server.push())["result"]["accepted"]
            assert len(server.asked("mcpl/manifest")) == 1
    assert "does not fit its content" in caplog.text


# -- without sessions ------------------------------------------------------------------------------------


async def test_without_sessions_every_request_carries_the_grant():
    server = stateless_server(BLOCK, {"context/beforeInference": injections("system")})
    async with hosting(server, host()) as mcpl:
        assert len(await mcpl.before_inference(TURN)) == 1
    (asked,) = server.asked("context/beforeInference")
    assert asked["_meta"][POLICY_META_KEY]["effectiveCapabilities"] == CLAIMED
    assert policies(server) == []


# -- anything --------------------------------------------------------------------------------------------


WORDS = st.sampled_from([*SETS, *CAPABILITY_PATHS, "chat:a", "c1", "text"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | WORDS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3) | WORDS, below, max_size=2),
    max_leaves=5,
)
MEMBERS: dict[str, list[str]] = {
    "push/event": ["featureSet", "eventId", "timestamp", "payload", "origin", "tags"],
    "inference/request": ["featureSet", "messages", "stream", "preferences", "conversationId"],
    "model/info": ["x"],
    "channels/register": ["channels"],
    "channels/changed": ["added", "removed", "updated"],
    "channels/incoming": ["messages"],
    "channels/list": ["x"],
    "state/update": ["featureSet", "checkpoint", "parent", "data", "patch"],
    "state/get": ["featureSet"],
    "mcpl/manifestChanged": ["revision", "domains"],
}
MESSAGES = st.sampled_from(sorted(MEMBERS)).flatmap(
    lambda method: st.tuples(
        st.just(method), st.fixed_dictionaries({}, optional=dict.fromkeys(MEMBERS[method], ANYTHING)), st.booleans()
    )
)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.lists(MESSAGES, max_size=8), ANYTHING, ANYTHING)
def test_whatever_a_server_says_is_answered(messages: list[Any], block: Any, receipt: Any):
    async def run() -> None:
        # Whatever it claims and answers, a server cannot break the host; what it says well still counts.
        strange = server_05(receipt, {**BLOCK, "featureSets": block, "channels": block, "contextHooks": block})
        async with hosting(strange, host()) as mcpl:
            await mcpl.before_inference(TURN)
        server = server_05(mcpl_manifest=block)
        server.is_05 = False  # what is broken is answered with what it was called
        async with hosting(server, host()):
            for method, params, is_request in messages:
                if not is_request or method == "mcpl/manifestChanged":
                    server.say({"method": method, "params": params})
                    continue
                reply = await server.ask(method, params)
                if "error" in reply:
                    assert reply["error"]["code"] in (-32602, -32001, -32002, -32003, -32006, -32017)
            assert (await server.push("the last"))["result"]["accepted"] or block

    asyncio.run(run())
