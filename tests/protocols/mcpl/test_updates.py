"""Policies of 0.5: requests, receipts, notifications, and every road that a grant opens or closes."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve import Context, Refused, Server
from defserve.client import Mcpl
from defserve.errors import PeerError
from defserve.protocols.mcpl.channels.messages import Channel, ReceivedMessage
from defserve.protocols.mcpl.content import FinishedTurn, InferenceEnd, Injection, Turn
from defserve.protocols.mcpl.policies import MAX_POLICY_NAMES, POLICY_META_KEY
from defserve.protocols.mcpl.vocabulary import INJECT_USES, USES_DENIED_BY_DEFAULT
from tests.effort import examples
from tests.protocols.mcpl.draft_05 import PATHS
from tests.protocols.mcpl.hosts import MCPL, MCPL_05, Host, Json, hosting, session_of
from tests.raw import STATELESS, text_of, turns, until
from tests.rows import for_each_row

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-05")]

BEFORE = "contextHooks.beforeInference"
TURN: Json = {"inferenceId": "i", "conversationId": "c", "turnIndex": 0, "userMessage": "hi"}
ROADS = ("memory", "ws", "http")
NUMBERS = itertools.count()


class Everything:
    """A server with a set for each thing that a set may do, and what happened in it."""

    def __init__(self) -> None:
        self.server = server = Server("everything", "1")
        self.handle_event: list[str] = []
        self.tools = server.feature_set("tools.only", "A tool")
        self.push = server.feature_set("push.only", "Pushes", uses=["pushEvents"])
        self.infer = server.feature_set("infer.only", "Infers", uses=["inferenceRequest"], model_info=True)
        self.before = server.feature_set("before.system", "Injects")
        self.ended = server.feature_set("ended.only", "Counts tokens")
        self.chatting = server.feature_set("chat.rooms", "Chats")
        self.chat = server.channels("chat", feature_set=self.chatting)
        self.chat.add(Channel("chat:a"))
        happened = self.handle_event

        @server.tool
        def plain() -> str:
            return "plain"

        @self.tools.tool
        def bound() -> str:
            return "bound"

        @self.before.before_inference(positions=["system"])
        async def inject(turn: Turn) -> str:
            return f"about {turn.user_message}"

        @self.ended.inference_ended
        async def end(end: InferenceEnd) -> None:
            happened.append(f"ended {end.inference_id} {end.phase}")

        @self.push.events
        async def source() -> AsyncGenerator[str]:
            happened.append("source")
            yield "from a source"
            await asyncio.sleep(3600)

        @self.chat.publish
        async def publish(text: str) -> str:
            happened.append(f"published {text}")
            return "m1"

        @self.chat.open
        def open(address: str) -> Channel:
            return Channel(f"chat:{address}", address={"room": address})

        @self.chat.typing
        async def typing(active: bool) -> None:
            happened.append(f"typing {active}")

        @self.chat.acknowledge
        async def acknowledge(message_id: str, intent: str) -> str:
            return intent

        @self.chat.observe
        async def observe(text: str) -> None:
            happened.append(f"observed {text}")

        @server.tool
        async def model(ctx: Context) -> str:
            return (await ctx.model_info()).id

    async def tries(self, host: Host) -> set[str]:
        """What a host can do and be sent now. Every refusal has a code that says why."""
        worked: set[str] = set()
        self.handle_event.clear()
        host.asked.clear()

        async def ask(name: str, method: str, params: Json) -> None:
            reply = await host.ask(method, params)
            if "result" in reply:
                worked.add(name)
            else:
                assert reply["error"]["code"] in (-32001, -32002), reply

        assert text_of(await host.call("plain")) == "plain"
        await ask("tool", "tools/call", {"name": "bound"})
        injected = await host.ask("context/beforeInference", TURN)
        if injected.get("result", {}).get("contextInjections"):
            worked.add("before")
        await ask("open", "channels/open", {"channelId": "chat:a"})
        await ask("list", "channels/list", {})
        hello = {"channelId": "chat:a", "content": "hello"}
        await ask("publish", "channels/publish", hello)
        await ask("acknowledge", "channels/acknowledge", {"channelId": "chat:a", "messageId": "m", "intent": "seen"})
        await host.tell("channels/publish", hello | {"content": "quietly"})
        await host.tell("channels/typing", {"channelId": "chat:a"})
        await host.tell("channels/outgoing/complete", hello)
        await host.tell("inference/lifecycle", {"inferenceId": f"i{next(NUMBERS)}", "phase": "completed"})
        await turns()
        for word in ("published quietly", "typing", "observed", "ended"):
            if any(line.startswith(word) for line in self.handle_event):
                worked.add(word)
        for name, verb in (
            ("push", lambda to: self.push.push("x", to=to)),
            ("infer", lambda to: self.infer.infer("x", to=to)),
            ("incoming", lambda to: self.chat.incoming(ReceivedMessage("chat:a", "x", "u"), to=to)),
        ):
            try:
                await verb(session_of(self.server))
                worked.add(name)
            except (Refused, PeerError):
                pass
        if not (await host.call("model")).get("isError"):
            worked.add("model")
        listed = {tool["name"] for tool in (await host.ask("tools/list"))["result"]["tools"]}
        assert ("bound" in listed) is ("tool" in worked)
        if any(line == "source" for line in self.handle_event):
            worked.add("source")
        return worked


CHAT = {
    f"channels.{leaf}"
    for leaf in ("register", "lifecycle", "publish", "incoming", "streaming", "acknowledge", "typing")
}
# What works → what a host must have granted for it.
NEEDS: dict[str, set[str]] = {
    "tool": {"tools"},
    "before": {f"{BEFORE}.observe", f"{BEFORE}.inject.system"},
    "push": {"pushEvents"},
    "infer": {"inferenceRequest", "modelInfo"},
    "model": {"modelInfo"},
    "ended": {"inferenceLifecycle"},
    **dict.fromkeys(("open", "publish", "acknowledge", "published quietly", "typing", "observed", "incoming"), CHAT),
    "list": {"channels.register"},
}
ANSWERS: Json = {
    "channels/register": {"results": [{"id": "chat:a", "accepted": True}]},
    "channels/incoming": {"results": []},
    "inference/request": {"content": "ok", "model": "m", "finishReason": "end_turn"},
    "model/info": {"id": "m1"},
}


def working(granted: set[str]) -> set[str]:
    return {name for name, needed in NEEDS.items() if needed <= granted}


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(st.lists(st.one_of(st.just(set(PATHS)), st.sets(st.sampled_from(PATHS)), st.just(CHAT)), min_size=1, max_size=3))
def test_exactly_what_is_granted_works(grants: list[set[str]]):
    async def run() -> None:
        everything = Everything()
        async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
            assert await everything.tries(host) == set()
            assert host.asked == []
            for granted in grants:
                reply = await host.ask("featureSets/update", {"effectiveCapabilities": sorted(granted)})
                receipt = reply["result"]
                everything.handle_event.clear()
                await turns()
                assert await everything.tries(host) - {"source"} == working(granted)
                lacking = {
                    one["featureSet"]: set(one["missingCapabilities"]) for one in receipt.get("unavailableFeatures", [])
                }
                for one in everything.server.mcpl.sets:
                    assert lacking.get(one.name, set()) == one.paths - granted
                assert receipt["accepted"] and (receipt.get("mode") == "degraded") is bool(lacking)

    asyncio.run(run())


@for_each_row("road", ROADS)
async def test_before_the_first_policy_nothing_is_sent(road: str):
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS, road=road) as host:
        assert (await host.ask("tools/list"))["result"]["tools"] != []
        await turns()
        assert (host.asked, host.heard, everything.handle_event) == ([], [], [])
        receipt = await host.grant()
        assert receipt == {"accepted": True}
        await host.until_asked("push/event")
        await host.until_asked("channels/register")
        assert host.list_requested_uris("push/event")[0]["payload"]["content"][0]["text"] == "from a source"


async def test_the_receipt_leaves_before_what_it_permits():
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        host.frames.clear()
        await host.grant()
        await host.until_asked("channels/register")
        assert host.frames[0] == "reply" and "notifications/tools/list_changed" in host.frames


async def test_what_is_taken_back_stops():
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        await host.grant()
        everything_works = await everything.tries(host)
        assert everything_works == working(set(PATHS))
        await host.grant("tools")
        assert await everything.tries(host) == {"tool"}
        await host.ask("featureSets/update", {})  # no list of grants means that nothing is granted
        assert await everything.tries(host) == set()


@pytest.mark.slow
@for_each_row(
    "policy",
    [
        {"effectiveCapabilities": "tools"},
        {"effectiveCapabilities": [1]},
        {"effectiveCapabilities": {"tools": True}},
        {"effectiveCapabilities": list(PATHS), "deniedCapabilities": ["channels.typing"]},
        {"effectiveCapabilities": ["channels.*"], "deniedCapabilities": ["channels.typing"]},
        {"effectiveCapabilities": ["channels.typing"], "deniedCapabilities": ["*.*"]},
        {"effectiveCapabilities": list(PATHS), "deniedCapabilities": "none"},
        {"effectiveCapabilities": list(PATHS), "enabled": "all"},
        {"effectiveCapabilities": list(PATHS), "disabled": {}},
        {"effectiveCapabilities": ["x"] * (MAX_POLICY_NAMES + 1)},
        {"effectiveCapabilities": list(PATHS), "disabled": ["x" * 2_000]},
    ],
    ids=lambda policy: str(policy)[:60],
)
async def test_a_malformed_policy_leaves_nothing(policy: Json):
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        await host.grant()
        assert (await host.ask("featureSets/update", policy))["error"]["code"] == -32602
        assert await everything.tries(host) == set()
        await host.grant()
        assert await everything.tries(host) == working(set(PATHS))


WORDS = st.sampled_from([*PATHS, "chat:a", "chat", "start", "*"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | WORDS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=2),
    max_leaves=5,
)
MEMBERS: dict[str, list[str]] = {
    "featureSets/update": ["effectiveCapabilities", "deniedCapabilities", "enabled", "disabled", "scopes"],
    "channels/open": ["channelId", "type", "address", "metadata", "history"],
    "channels/acknowledge": ["channelId", "messageId", "intent", "value"],
    "channels/publish": ["channelId", "content", "stream"],
    "context/beforeInference": ["inferenceId", "turnIndex", "userMessage", "model", "channels"],
    "state/rollback": ["featureSet", "checkpoint"],
    "mcpl/manifest": ["x"],
    "channels/typing": ["channelId", "op", "metadata"],
    "inference/lifecycle": ["inferenceId", "phase", "usage", "model"],
}
MESSAGES = st.sampled_from(sorted(MEMBERS)).flatmap(
    lambda method: st.tuples(
        st.just(method), st.fixed_dictionaries({}, optional=dict.fromkeys(MEMBERS[method], ANYTHING)), st.booleans()
    )
)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.lists(MESSAGES, max_size=8))
def test_whatever_a_host_says_is_answered_and_a_broken_policy_grants_nothing(messages: list[Any]):
    async def run() -> None:
        everything = Everything()
        async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
            await host.grant()
            for method, params, is_request in messages:
                if not is_request or method in ("channels/typing", "inference/lifecycle"):
                    await host.tell(method, params)
                    continue
                reply = await host.ask(method, params)
                if "error" in reply:
                    # Everything but "internal error".
                    assert reply["error"]["code"] in (-32602, -32601, -32001, -32002, -32003, -32017, -32023, -32024)
                    if method == "featureSets/update":
                        assert (await host.ask("tools/call", {"name": "bound"}))["error"]["code"] == -32002
            await host.grant()
            assert text_of(await host.call("bound")) == "bound"

    asyncio.run(run())


async def test_denials_and_unknown_paths_decide_nothing():
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        receipt = await host.grant("tools", "telepathy", "channels", "*", deniedCapabilities=["channels.publish", "x"])
        assert receipt["accepted"]
        # `*` is every path of one segment.
        assert await everything.tries(host) - {"source"} == {"tool", "push", "infer", "model", "ended"}


@for_each_row(
    ("policy", "on"),
    [
        ({}, True),
        ({"enabled": ["tools.only"]}, True),
        ({"enabled": ["tools.*"]}, True),
        ({"enabled": ["*.*"]}, True),
        ({"enabled": ["*"]}, False),
        ({"enabled": []}, False),
        ({"enabled": ["push.only"]}, False),
        ({"disabled": ["tools.only"]}, False),
        ({"disabled": ["tools.*"]}, False),
        ({"enabled": ["tools.only"], "disabled": ["tools.only"]}, False),
        ({"disabled": ["tools"]}, True),
    ],
    ids=str,
)
async def test_names_select_and_subtract(policy: Json, on: bool):
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        receipt = await host.grant(**policy)
        reply = await host.ask("tools/call", {"name": "bound"})
        assert ("result" in reply) is on
        if not on:
            assert (reply["error"]["code"], reply["error"]["data"]["featureSet"]) == (-32001, "tools.only")
        # What a host leaves out itself is no news to it.
        assert receipt == {"accepted": True}


async def test_a_notification_only_disables(caplog: pytest.LogCaptureFixture):
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        await host.update(effectiveCapabilities=list(PATHS), enabled=["tools.only"])
        assert await everything.tries(host) == set()
        assert "effectiveCapabilities, enabled ignored" in caplog.text
        await host.grant()
        await host.update(disabled=["tools.only"])
        assert await everything.tries(host) == working(set(PATHS)) - {"tool"}
        await host.update(enabled=["tools.only"])
        assert "tool" not in await everything.tries(host)
        await host.grant()  # a request says everything anew
        assert "tool" in await everything.tries(host)
        await host.update(disabled=[f"s{n}" for n in range(MAX_POLICY_NAMES)])
        await host.update(disabled=["one more"])
        assert await everything.tries(host) == set()


async def test_a_host_below_0_5_may_send_a_grant():
    everything = Everything()
    async with hosting(everything.server, mcpl=MCPL, answers=ANSWERS) as host:
        assert "tool" in await everything.tries(host)
        receipt = (await host.ask("featureSets/update", {"effectiveCapabilities": ["pushEvents"]}))["result"]
        assert receipt["accepted"] and receipt["mode"] == "degraded"
        assert await everything.tries(host) & {"tool", "push", "publish", "incoming"} == {"push"}
        await host.update(enabled=["tools.only"])  # a notification widens nothing any more
        assert "tool" not in await everything.tries(host)


async def test_two_hosts_of_two_versions_have_two_policies():
    everything = Everything()
    async with (
        hosting(everything.server, mcpl=MCPL, answers=ANSWERS) as old,
        hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as new,
    ):
        assert text_of(await old.call("bound")) == "bound"
        assert (await new.ask("tools/call", {"name": "bound"}))["error"]["code"] == -32002
        await new.grant("tools")
        await old.update(disabled=["*"])
        assert text_of(await new.call("bound")) == "bound"
        assert (await old.ask("tools/call", {"name": "bound"}))["error"]["data"]["canEnable"] is True


# -- without sessions ------------------------------------------------------------------------------------


@for_each_row(
    ("policy", "on"),
    [
        (None, False),
        ({}, False),
        ({"enabled": ["tools.only"]}, False),
        ({"effectiveCapabilities": ["tools"]}, True),
        ({"effectiveCapabilities": ["tools"], "disabled": ["tools.only"]}, False),
        ("everything", False),
    ],
    ids=str,
)
async def test_without_sessions_every_request_brings_its_grant(policy: Any, on: bool):
    async with hosting(Everything().server, STATELESS, mcpl=MCPL_05) as host:
        assert host.advertised["version"] == "0.5"
        meta = {"_meta": {POLICY_META_KEY: policy}} if policy is not None else {}
        for _ in range(2):
            listed = [tool["name"] for tool in (await host.ask("tools/list", meta))["result"]["tools"]]
            result = await host.call("bound", **meta)
            assert ("bound" in listed, result.get("isError") is not True) == (on, on)
            assert (await host.call("bound"))["isError"]
        assert (await host.ask("featureSets/update", {"effectiveCapabilities": list(PATHS)}))["error"]["code"] == -32601
        assert (await host.call("bound"))["isError"]


async def test_without_sessions_a_contradiction_is_malformed():
    async with hosting(Everything().server, STATELESS, mcpl=MCPL_05) as host:
        policy = {"effectiveCapabilities": ["tools"], "deniedCapabilities": ["tools"]}
        reply = await host.ask("tools/call", {"name": "bound", "_meta": {POLICY_META_KEY: policy}})
        assert reply["error"]["code"] == -32602


async def test_without_sessions_hooks_follow_the_grant():
    async with hosting(Everything().server, STATELESS, mcpl=MCPL_05) as host:
        granted = {
            "_meta": {POLICY_META_KEY: {"effectiveCapabilities": [f"{BEFORE}.observe", f"{BEFORE}.inject.system"]}}
        }
        assert (await host.ask("context/beforeInference", TURN | granted))["result"]["contextInjections"]
        assert "error" in await host.ask("context/beforeInference", TURN)


async def test_without_sessions_notifications_bring_their_grant_too():
    everything = Everything()
    async with hosting(everything.server, STATELESS, mcpl=MCPL_05) as host:
        granted = {"_meta": {POLICY_META_KEY: {"effectiveCapabilities": ["inferenceLifecycle"]}}}
        for id, meta in (("i1", {}), ("i2", granted)):
            await host.tell("inference/lifecycle", host.with_meta({"inferenceId": id, "phase": "completed", **meta}))
        await until(lambda: bool(everything.handle_event))
        assert everything.handle_event == ["ended i2 completed"]


# -- what a host cannot run ------------------------------------------------------------------------------


def filtering(*, required: bool, more: bool = False) -> Server:
    server = Server("filter", "1")
    redaction = server.feature_set("compliance.redaction", "Redact")

    @redaction.after_inference(blocking=True, required=required)
    def redact(turn: FinishedTurn) -> str:
        return "redacted"

    if more:

        @redaction.tool
        def rules() -> str:
            return "none"

    return server


async def test_a_filter_that_cannot_run_is_said_to_be_unavailable():
    async with hosting(filtering(required=False), mcpl=MCPL_05) as host:
        assert host.advertised["featureSets"] == {}
        assert await host.grant() == {
            "accepted": True,
            "mode": "degraded",
            "unavailableFeatures": [
                {
                    "featureSet": "compliance.redaction",
                    "missingCapabilities": ["contextHooks.afterInference"],
                    "effect": "disabled",
                }
            ],
        }
        after = await host.ask("context/afterInference", {**TURN, "assistantMessage": "secret"})
        assert after["error"]["code"] == -32601


async def test_the_rest_of_its_set_works():
    async with hosting(filtering(required=False, more=True), mcpl=MCPL_05) as host:
        (unavailable,) = (await host.grant())["unavailableFeatures"]
        assert unavailable["effect"] == "degraded"
        assert text_of(await host.call("rules")) == "none"


async def test_a_required_filter_refuses_a_host_that_cannot_run_it():
    async with hosting(filtering(required=True, more=True), mcpl=MCPL_05) as host:
        receipt = await host.grant()
        assert (receipt["accepted"], receipt["fallback"]) == (False, "mcp-only")
        assert receipt["missingCapabilities"] == ["contextHooks.afterInference"]
        assert "required hook" in receipt["reason"]
        assert (await host.ask("tools/call", {"name": "rules"}))["error"]["code"] == -32002
        assert (await host.grant(disabled=["compliance.*"]))["accepted"]


@for_each_row("enabled", [[], ["other"]])
async def test_a_host_that_was_not_told_of_a_filter_cannot_leave_it_out_by_silence(enabled: list[str]):
    async with hosting(filtering(required=True), mcpl=MCPL_05) as host:
        assert host.advertised["featureSets"] == {}
        assert not (await host.grant(enabled=enabled))["accepted"]
        assert (await host.grant(enabled=enabled, disabled=["compliance.redaction"]))["accepted"]


async def test_a_required_filter_runs_with_hosts_of_0_4():
    async with hosting(filtering(required=True)) as host:
        after = await host.ask("context/afterInference", {**TURN, "assistantMessage": "secret"})
        assert after["result"]["modifiedResponse"] == "redacted"


# -- hooks -----------------------------------------------------------------------------------------------


def injecting() -> Server:
    server = Server("hooks", "1")
    user, system = (server.feature_set(f"inject.{name}", f"Injects {name}") for name in ("user", "system"))
    user.before_inference(positions=["before_user", "after_user"])(_hook("user"))
    system.before_inference(positions=["system"])(_hook("system"))
    return server


def _hook(name: str) -> Any:
    def inject(turn: Turn) -> list[Injection]:
        positions: tuple[Any, ...] = ("system", "before_user", "after_user")
        return [Injection(f"{name} {turn.user_message}", position) for position in positions]

    return inject


@for_each_row(
    ("granted", "injected"),
    [
        (["observe", "inject.system"], [("system", "system hi")]),
        (["observe", "inject.beforeUser", "inject.afterUser"], [("beforeUser", "user hi"), ("afterUser", "user hi")]),
        (["observe", "inject.beforeUser"], []),
        (["inject.system"], []),
    ],
)
async def test_a_hook_injects_where_it_declares_and_the_host_grants(granted: list[str], injected: list[Any]):
    async with hosting(injecting(), mcpl=MCPL_05) as host:
        await host.grant(*(f"{BEFORE}.{leaf}" for leaf in granted))
        result = (await host.ask("context/beforeInference", TURN))["result"]
        assert [(one["position"], one["content"][0]["text"]) for one in result["contextInjections"]] == injected


async def test_a_hook_that_does_not_observe_needs_no_grant_for_it():
    server = Server("hooks", "1")
    one = server.feature_set("inject.blind", "Injects")
    one.before_inference(positions=["system"], observe=False)(_hook("blind"))
    async with hosting(server, mcpl=MCPL_05) as host:
        assert host.advertised["featureSets"]["inject.blind"]["uses"] == [f"{BEFORE}.inject.system"]
        for granted in ([], [f"{BEFORE}.observe"]):
            await host.grant(f"{BEFORE}.inject.system", *granted)
            result = (await host.ask("context/beforeInference", TURN))["result"]
            assert [one["content"][0]["text"] for one in result["contextInjections"]] == ["blind None"]


async def test_a_scoped_tool_runs_with_hosts_that_have_no_scopes():
    server = Server("files", "1")
    files = server.feature_set("files.edit", "Edit files", scoped=True)

    @files.tool(scope=lambda path: path)
    def edit(path: str, ctx: Context) -> str:
        assert ctx.scope is not None
        return ctx.scope.label

    async with hosting(server, mcpl=MCPL_05) as host:
        await host.grant(scopes={"files.edit": {"blacklist": ["**"]}})
        assert "scoped" not in host.advertised["featureSets"]["files.edit"]
        assert text_of(await host.call("edit", {"path": "/a/../b"})) == "/b"
        assert host.asked == []


async def test_that_a_host_sends_no_policy_is_logged_once(caplog: pytest.LogCaptureFixture):
    everything = Everything()
    with caplog.at_level("INFO", "defserve"):
        async with hosting(everything.server, mcpl=MCPL_05) as host:
            for _ in range(3):
                await host.ask("tools/call", {"name": "bound"})
    assert caplog.text.count("no featureSets/update, so no feature set acts") == 1


async def test_a_hook_that_declares_no_positions_asks_for_the_least():
    server = Server("hooks", "1")
    server.feature_set("inject.any", "Injects").before_inference(_hook("any"))
    async with hosting(server, mcpl=MCPL_05) as host:
        uses = host.advertised["featureSets"]["inject.any"]["uses"]
        assert uses == [f"{BEFORE}.{leaf}" for leaf in ("observe", "inject.beforeUser", "inject.afterUser")]
        assert host.advertised["contextHooks"] == {
            "beforeInference": {"observe": True, "inject": {"beforeUser": True, "afterUser": True}}
        }
    async with hosting(server) as old:
        assert old.advertised["featureSets"]["inject.any"]["uses"] == [BEFORE]
        result = (await old.ask("context/beforeInference", TURN))["result"]
        assert [one["position"] for one in result["contextInjections"]] == ["system", "beforeUser", "afterUser"]


@for_each_row(
    ("positions", "old", "new"),
    [(None, "system", "beforeUser"), (["after_user", "system"], "afterUser", "afterUser"), ([], None, None)],
)
async def test_a_text_without_a_position_goes_to_the_first_that_its_hook_has(
    positions: Any, old: str | None, new: str | None
):
    server = Server("hooks", "1")
    one = server.feature_set("inject.any", "Injects")

    @one.before_inference(positions=positions)
    def inject() -> list[Any]:
        return ["text", Injection("as an injection")]

    for mcpl, position in ((MCPL, old), (MCPL_05, new)):
        async with hosting(server, mcpl=mcpl) as host:
            if mcpl is MCPL_05:
                await host.grant(f"{BEFORE}.observe", *(f"{BEFORE}.inject.{leaf}" for leaf in INJECT_USES))
            result = (await host.ask("context/beforeInference", TURN))["result"]
            found = [one["position"] for one in result["contextInjections"]]
            assert found == ([position, position] if position else [])


async def test_the_first_example_of_the_docs_is_on_at_a_host_with_default_settings():
    """Such hosts grant every path but those that reach the system prompt."""
    page = Path(__file__).parents[3] / "docs" / "hooks.md"
    (example, *_) = (
        text for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.S) if "before_inf" in text
    )
    names: dict[str, Any] = {"__name__": "example"}
    exec(example, names)
    usual = [path for path in PATHS if path not in USES_DENIED_BY_DEFAULT]
    async with names["server"].connect("2025-11-25", mcpl=Mcpl(version="0.5", grants=usual)) as client:
        assert not client.mcpl.receipt.unavailable
        (injected,) = await client.mcpl.before_inference(Turn(inference_id="i1", user_message="Tea?"))
        assert (injected.position, injected.content[0].text) == ("beforeUser", "Alice likes tea.")


async def test_an_end_is_told_once_to_hosts_of_both_versions():
    everything = Everything()
    ended = {"inferenceId": "i1", "phase": "completed", "usage": {"inputTokens": 3, "outputTokens": 4}}
    async with hosting(everything.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        await host.grant("inferenceLifecycle")
        await host.tell("inference/lifecycle", {"inferenceId": "i1", "phase": "started"})
        for _ in range(2):
            await host.tell("inference/lifecycle", ended)
        await host.tell("inference/lifecycle", {"inferenceId": "i2", "phase": "aborted"})
        await host.tell("inference/lifecycle", {"inferenceId": "i3", "phase": "evaporated"})
        await host.tell("inference/lifecycle", {"phase": "failed"})
        await until(lambda: len(everything.handle_event) == 2)
        assert everything.handle_event == ["ended i1 completed", "ended i2 aborted"]
    everything.handle_event.clear()
    async with hosting(everything.server, answers=ANSWERS) as old:
        assert old.advertised["contextHooks"]["afterInference"] == {"blocking": False}
        await old.tell("context/afterInference", {**TURN, "assistantMessage": "yes"})
        await until(lambda: "ended i completed" in everything.handle_event)
        await old.ask("context/afterInference", {**TURN, "inferenceId": "j", "assistantMessage": "yes"})
        await until(lambda: "ended j completed" in everything.handle_event)
