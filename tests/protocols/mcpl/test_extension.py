from __future__ import annotations

from typing import Any

import pytest

from defserve import Server
from defserve.protocols.mcpl.content import FinishedTurn, Turn
from defserve.protocols.mcpl.policies import POLICY_META_KEY
from tests.protocols.mcpl.hosts import MCPL, MCPL_05, hosting
from tests.raw import ERAS, HANDSHAKE, STATELESS, VERSIONS, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

TURN = {"inferenceId": "i", "conversationId": "c", "turnIndex": 0, "userMessage": "hi", "assistantMessage": "yes"}


def live(**options: Any) -> Server:
    server = Server("live", "1", **options)
    memory = server.feature_set("memory.retrieval", "Retrieve", uses=["pushEvents"])

    @memory.tool
    def recall() -> str:
        return "remembered"

    @memory.before_inference
    async def before(turn: Turn) -> str:
        return "injected"

    @memory.after_inference(blocking=True)
    async def after(turn: FinishedTurn) -> str:
        return turn.assistant_message + "!"

    return server


@pytest.mark.req("MCPL-3.1", "MCPL-5.1")
@for_each_row("version", VERSIONS)
async def test_a_host_that_offers_mcpl_is_told_of_it(version: str):
    async with hosting(live(), version) as host:
        assert host.advertised == {
            "version": "0.4",
            "pushEvents": True,
            "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
            "featureSets": {
                "memory.retrieval": {
                    "description": "Retrieve",
                    "uses": ["pushEvents", "contextHooks.beforeInference", "contextHooks.afterInference", "tools"],
                }
            },
        }
        if version != STATELESS:
            assert host.opening["protocolVersion"] == version


@pytest.mark.req("MCPL-3.2")
@for_each_row("version", VERSIONS)
@for_each_row("mcpl", [None, {"version": "1.0"}, {"version": 4}, {"version": "0.x"}])
async def test_everyone_else_sees_nothing_and_the_tools_work(version: str, mcpl: Any):
    async with hosting(live(), version, mcpl=mcpl) as host:
        assert "mcpl" not in str(host.opening)
        (tool,) = (await host.ask("tools/list"))["result"]["tools"]
        assert "featureSet" not in str(tool)
        assert text_of(await host.call("recall")) == "remembered"
        for method in ("featureSets/update", "context/beforeInference", "context/afterInference"):
            assert (await host.ask(method, TURN))["error"]["code"] == -32601
        await host.tell("featureSets/update", {"disabled": ["*"]})
        await host.tell("context/afterInference", TURN)
        assert text_of(await host.call("recall")) == "remembered"
        assert (host.asked, host.heard) == ([], [])


@for_each_row("capabilities", [{"experimental": []}, {"experimental": {"mcpl": True}}, {"mcpl": dict(MCPL)}])
async def test_a_broken_offer_counts_as_none(capabilities: Any):
    async with hosting(live(), mcpl=None, capabilities=capabilities) as host:
        assert "experimental" not in host.opening["capabilities"]


@for_each_row("version", ERAS)
async def test_tools_name_their_set(version: str):
    async with hosting(live(), version) as host:
        (tool,) = (await host.ask("tools/list"))["result"]["tools"]
        assert tool["_meta"]["featureSet"] == "memory.retrieval"


@pytest.mark.req("MCPL-4.1")
async def test_in_one_conversation_every_stateless_request_speaks_for_itself():
    """An offer counts for the request it comes with, also for hosts that make it only now and then."""
    async with hosting(live(), STATELESS) as host:
        assert (await host.ask("context/beforeInference", TURN))["result"]["featureSet"] == "memory.retrieval"
        offered, host.capabilities = host.capabilities, {}
        assert (await host.ask("context/beforeInference", TURN))["error"]["code"] == -32601
        assert text_of(await host.call("recall", _meta={POLICY_META_KEY: {"disabled": ["*"]}})) == "remembered"
        host.capabilities = offered
        assert (await host.call("recall", _meta={POLICY_META_KEY: {"disabled": ["*"]}}))["isError"]
        assert (await host.ask("context/afterInference", TURN))["result"]["modifiedResponse"] == "yes!"


@for_each_row(
    ("version", "strict", "acts"),
    [
        ("0.4", False, True),
        ("0.4.1-draft", False, True),
        ("0.3", False, True),
        (None, False, True),
        ("0.4", True, False),
    ],
)
async def test_strict_servers_wait_for_the_hosts_word(version: str | None, strict: bool, acts: bool):
    server = live(feature_sets="strict" if strict else "open")
    offered = {"version": version} if version is not None else {}
    async with hosting(server, mcpl=offered) as host:
        assert host.advertised["version"] == "0.4"
        reply = await host.ask("tools/call", {"name": "recall"})
        assert ("result" in reply) is acts
        assert (len((await host.ask("tools/list"))["result"]["tools"]) == 1) is acts
        receipt = (await host.ask("featureSets/update", {"enabled": ["memory.*"]}))["result"]
        assert receipt == {"enabled": ["memory.retrieval"]}
        assert text_of(await host.call("recall")) == "remembered"


@pytest.mark.req("MCPL-05")
@for_each_row("version", ["0.5", "0.5.0-draft", "0.12", "0.99999999999999999999"])
async def test_hosts_of_0_5_grant_before_anything_acts(version: str):
    async with hosting(live(), mcpl={**MCPL_05, "version": version}) as host:
        assert host.advertised["version"] == "0.5"
        assert (await host.ask("tools/call", {"name": "recall"}))["error"]["code"] == -32002
        assert (await host.ask("tools/list"))["result"]["tools"] == []
        assert (await host.grant(enabled=["memory.*"]))["accepted"]
        assert text_of(await host.call("recall")) == "remembered"


@pytest.mark.req("MCPL-6.1")
@for_each_row(("name", "is_array"), [("mcpl-harness", True), ("mcpl-harness-cli", True), ("other", False)])
async def test_a_host_that_wants_an_array_gets_one(name: str, is_array: bool):
    async with hosting(live(), name=name) as host:
        described = host.advertised["featureSets"]
        assert isinstance(described, list) is is_array
        if is_array:
            assert described[0]["name"] == "memory.retrieval" and described[0]["description"] == "Retrieve"


@pytest.mark.req("MCPL-6.7u")
async def test_an_update_is_obeyed_before_the_next_message():
    async with hosting(live()) as host:
        await host.send({"jsonrpc": "2.0", "method": "featureSets/update", "params": {"disabled": ["memory.*"]}})
        error = (await host.ask("tools/call", {"name": "recall"}))["error"]
        assert (error["code"], error["message"]) == (-32001, "Feature set not enabled: memory.retrieval")
        assert error["data"] | {"trace_id": ""} == {
            "featureSet": "memory.retrieval",
            "canEnable": True,
            "error_type": "feature_set_disabled",
            "trace_id": "",
        }
        assert host.heard_of("notifications/tools/list_changed") == [{}]


async def test_two_hosts_have_two_policies():
    server = live()
    async with hosting(server) as one, hosting(server) as other:
        await one.update(disabled=["*"])
        assert "error" in await one.ask("tools/call", {"name": "recall"})
        assert text_of(await other.call("recall")) == "remembered"


@pytest.mark.req("MCPL-8.0")
@for_each_row("version", [HANDSHAKE[0], HANDSHAKE[-1], STATELESS])
async def test_unknown_members_are_ignored(version: str):
    async with hosting(live(), version, mcpl={**MCPL, "telepathy": {"range": 3}}) as host:
        assert text_of(await host.call("recall", checkpoint="x", telepathy=1)) == "remembered"
        assert "result" in await host.ask("context/beforeInference", {**TURN, "telepathy": 1})
