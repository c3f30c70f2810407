"""An MCPL host and servers that do or do not speak it: what is offered, read, enabled and told."""

from __future__ import annotations

from typing import Any

import pytest

from defserve.client import Client, DeclaredFeatureSet, Mcpl, ScriptedModel
from defserve.client.mcpl.feature_sets import POLICY_META_KEY
from defserve.errors import PeerError, UsageError
from defserve.protocols.mcpl.content import Turn
from tests.client.mcpl.scripted import MEMORY, SETS, LiveServer, Trail, hosting, live_server, stateless_server
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

NAMES = list(SETS)


def updates(server: LiveServer) -> list[dict[str, Any]]:
    return server.asked("featureSets/update")


@pytest.mark.req("MCPL-5.2")
async def test_the_host_offers_what_it_can_do_in_the_servers_shape():
    server = live_server()
    async with hosting(server, Mcpl(model=ScriptedModel("Hi"), audit=[])):
        offered = server.asked("initialize")[0]["capabilities"]["experimental"]["mcpl"]
    assert offered == {
        "version": "0.4",
        "pushEvents": True,
        "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
        "inferenceRequest": {"streaming": True},
        "modelInfo": True,
        "featureSets": True,
        "channels": {"register": True, "publish": True, "observe": True, "lifecycle": True, "streaming": True},
    }


@pytest.mark.req("MCPL-5.2")
@for_each_row("method", ["inference/request", "model/info", "push/event"])
async def test_what_is_not_offered_is_not_answered(method: str):
    server = live_server()
    async with hosting(server, Mcpl(without=["pushEvents"], audit=[])):
        offered = server.asked("initialize")[0]["capabilities"]["experimental"]["mcpl"]
        assert not {"inferenceRequest", "modelInfo", "pushEvents"} & offered.keys()
        assert (await server.ask(method, {}))["error"]["code"] == -32601


async def test_a_client_without_mcpl_offers_nothing_of_it():
    server = live_server()
    async with Client(server, version="2025-11-25") as client:
        assert client.mcpl is None
        assert "experimental" not in server.asked("initialize")[0]["capabilities"]
        assert (await server.push())["error"]["code"] == -32601


@pytest.mark.req("MCPL-3.3")
async def test_a_plain_server_is_sent_nothing_of_mcpl_and_works():
    server = live_server(None, {"tools/call": {"content": [{"type": "text", "text": "done"}]}, "tools/list": {}})
    async with hosting(server) as mcpl:
        assert mcpl.version is None
        turn = Turn(inference_id="inf_1", user_message="Hello")
        assert await mcpl.before_inference(turn) == []
        assert (await mcpl.after_inference(turn, "Hello yourself")).text == "Hello yourself"
        await mcpl.update(disabled=["*"])
        with pytest.raises(PeerError, match="does not speak MCPL"):
            await mcpl.open("discord", {"channel": "#general"})
        with pytest.raises(PeerError, match="does not speak MCPL"):
            await mcpl.publish("discord:#general", "Hi", ack=False)
        assert (await server.push())["error"]["code"] == -32601
    assert {message["method"] for message in server.sent if "method" in message} == {
        "initialize",
        "notifications/initialized",
    }


@for_each_row("version", ["1.0", 4, None])
async def test_a_version_nobody_knows_is_a_plain_server(version: Any):
    async with hosting(live_server({**MEMORY, "version": version})) as mcpl:
        assert mcpl.version is None


@pytest.mark.req("MCPL-5.3")
async def test_the_policy_is_the_first_thing_a_ready_server_hears():
    server = live_server()
    scopes = {"memory.*": {"whitelist": ["/project/**"]}}
    wish = {"enabled": ["memory.retrieval", "memory.extraction"]}
    async with hosting(server, Mcpl(wish, scopes=scopes, audit=[])):
        methods = [message["method"] for message in server.sent]
    assert methods == ["initialize", "notifications/initialized", "featureSets/update"]
    assert updates(server) == [
        {
            "enabled": ["memory.retrieval", "memory.extraction"],
            "disabled": ["memory.consolidation", "memory.proactive"],
            "scopes": {name: {"whitelist": ["/project/**"], "blacklist": []} for name in NAMES},
        }
    ]
    assert "id" not in next(message for message in server.sent if message["method"] == "featureSets/update")


@pytest.mark.req("MCPL-6.3")
@for_each_row(
    ("wish", "enabled"),
    [
        (None, NAMES),
        ([], []),
        (["memory.*"], NAMES),
        (["mem*"], []),
        (["*"], NAMES),
        (["memory.proactive", "other.*"], ["memory.proactive"]),
        ({"disabled": ["memory.proactive"]}, NAMES[:3]),
        ({"enabled": ["memory.*"], "disabled": ["memory.proactive"]}, NAMES[:3]),
        ({"enabled": ["memory.proactive"], "disabled": ["memory.*"]}, ["memory.proactive"]),
        (lambda declared: "inferenceRequest" in declared.uses, ["memory.consolidation"]),
    ],
)
async def test_patterns_and_functions_come_to_names(wish: Any, enabled: list[str]):
    server = live_server()
    async with hosting(server, Mcpl(wish, audit=[])) as mcpl:
        assert [one.name for one in mcpl.feature_sets if mcpl.feature_sets.is_enabled(one.name)] == enabled
    assert updates(server)[0]["enabled"] == enabled
    assert updates(server)[0]["disabled"] == [name for name in NAMES if name not in enabled]


async def test_a_function_that_decides_may_be_async():
    asked: list[DeclaredFeatureSet] = []

    async def decide(declared: DeclaredFeatureSet) -> bool:
        asked.append(declared)
        return declared.scoped

    sets = {"files.edit": {"description": "Edit", "uses": ["tools"], "scoped": True}, **SETS}
    server = live_server({**MEMORY, "featureSets": sets})
    async with hosting(server, Mcpl(decide, audit=[])):
        assert updates(server)[0]["enabled"] == ["files.edit"]
    assert asked[0] == DeclaredFeatureSet("files.edit", "Edit", ("tools",), True, False)


@for_each_row("pattern", ["*", "memory.*", "x" * 1025])
async def test_a_set_that_is_called_like_a_pattern_turns_no_other_on(pattern: str):
    server = live_server({**MEMORY, "featureSets": {**SETS, pattern: {"description": "harmless", "uses": ["tools"]}}})
    async with hosting(server, Mcpl(lambda one: "inferenceRequest" not in one.uses, audit=[])) as mcpl:
        assert not mcpl.feature_sets.is_enabled("memory.consolidation")
        assert [one.name for one in mcpl.feature_sets] == NAMES


async def test_many_sets_that_are_called_like_patterns_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture):
    bad = {f"*{n}": {"description": "harmless"} for n in range(1_000)}
    async with hosting(live_server({**MEMORY, "featureSets": {**bad, **SETS}})) as mcpl:
        assert [one.name for one in mcpl.feature_sets] == NAMES
    (line,) = [record.message for record in caplog.records if "left out" in record.message]
    assert "1000 feature sets" in line and "'*0'" in line


async def test_feature_sets_may_be_declared_as_an_array():
    array = [{"name": name, **described} for name, described in SETS.items()]
    async with (
        hosting(live_server({**MEMORY, "featureSets": array})) as listed,
        hosting(live_server()) as described,
    ):
        assert list(listed.feature_sets) == list(described.feature_sets)


@for_each_row("found", [True, None, "memory", [1, {"description": "nameless"}], {"memory.x": 3}])
async def test_feature_sets_in_no_form_at_all_are_none(found: Any):
    async with hosting(live_server({**MEMORY, "featureSets": found})) as mcpl:
        assert len(mcpl.feature_sets) == 0


async def test_an_update_tells_of_the_sets_it_is_about_and_holds_at_once():
    server = live_server()
    async with hosting(server) as mcpl:
        await mcpl.update(enabled=["memory.proactive"], disabled=["memory.consolidation", "unheard.of"])
        assert updates(server)[1] == {"enabled": ["memory.proactive"], "disabled": ["memory.consolidation"]}
        await mcpl.update(disabled=["memory.*"])
        assert updates(server)[2] == {"enabled": [], "disabled": NAMES}
        await mcpl.update(scopes={"memory.retrieval": {"blacklist": ["**/.env"]}})
        lists = {"whitelist": [], "blacklist": ["**/.env"]}
        assert updates(server)[3] == {"enabled": [], "disabled": [], "scopes": {"memory.retrieval": lists}}
        assert (await server.push())["error"]["code"] == -32001


async def test_sets_that_come_later_are_decided_and_told_and_those_that_go_are_unknown():
    server = live_server()
    async with hosting(server, Mcpl({"disabled": ["memory.semantic"]}, audit=[])) as mcpl:
        added = {
            "memory.semantic": {"description": "Index is ready", "uses": ["pushEvents"]},
            "memory.late": {"description": "Late", "uses": ["pushEvents"]},
        }
        changed = {"added": added, "removed": ["memory.proactive"]}
        server.say({"method": "featureSets/changed", "params": changed})
        await server.told(lambda message: message.get("params", {}).get("enabled") == ["memory.late"])
        assert updates(server)[1] == {"enabled": ["memory.late"], "disabled": ["memory.semantic"]}
        assert "memory.proactive" not in mcpl.feature_sets
        assert (await server.push())["error"]["code"] == -32003
        assert (await server.push(feature_set="memory.semantic"))["error"]["code"] == -32001
        assert (await server.push(feature_set="memory.late"))["result"] == {"accepted": True}


async def test_where_requests_stand_alone_each_brings_the_policy_along():
    server = stateless_server(replies={"context/beforeInference": {"contextInjections": []}})
    async with hosting(server, Mcpl(["memory.retrieval"], audit=[])) as mcpl:
        turn = Turn(inference_id="inf_1")
        await mcpl.before_inference(turn)
        await mcpl.update(disabled=["memory.consolidation"], enabled=["memory.proactive"])
        await mcpl.before_inference(turn)
        policies = [params["_meta"][POLICY_META_KEY] for params in server.asked("context/beforeInference")]
    assert POLICY_META_KEY == "dev.defserve/featureSets"
    assert [policy["enabled"] for policy in policies] == [
        ["memory.retrieval"],
        ["memory.retrieval", "memory.proactive"],
    ]
    assert updates(server) == []
    assert "experimental" in str(server.asked("server/discover")[0])


@pytest.mark.req("MCPL-13.2")
async def test_the_audit_log_tells_who_did_what_and_how_it_ended():
    trail, server = Trail(), live_server()
    async with hosting(server, Mcpl({"disabled": ["memory.extraction"]}, audit=trail, on_event=lambda _: "inf_7")):
        await server.push()
        await server.push(feature_set="memory.retrieval")
        await server.push(feature_set="memory.unheard")
    assert trail.of("featureSets/update")[0]["outcome"] == "success"
    pushed, disabled, unknown = trail.of("push/event")
    assert {**pushed, "timestamp": ""} == {
        "timestamp": "",
        "serverId": "memory",
        "method": "push/event",
        "featureSet": "memory.proactive",
        "inferenceId": "inf_7",
        "outcome": "success",
        "details": {"event_id": "evt_1"},
    }
    assert pushed["timestamp"].startswith("20")
    assert (disabled["outcome"], disabled["featureSet"]) == ("refused", "memory.retrieval")
    assert (unknown["outcome"], unknown["featureSet"]) == ("refused", "memory.unheard")


async def test_a_sink_that_fails_does_not_stop_the_host(caplog: pytest.LogCaptureFixture):
    class Broken:
        def append(self, event: Any, *, durable: bool = False) -> None:
            raise OSError("disk full")

    server = live_server()
    async with hosting(server, Mcpl(audit=Broken())):
        assert (await server.push())["result"]["accepted"] is True
    assert "disk full" in caplog.text


@for_each_row(
    "options",
    [
        {"feature_sets": "memory.*"},
        {"feature_sets": {"enable": ["memory.*"]}},
        {"feature_sets": {"disabled": "memory.*"}},
        {"feature_sets": [3]},
        {"without": ["pushEvent"]},
    ],
)
def test_a_policy_that_is_none_is_refused_when_it_is_made(options: Any):
    with pytest.raises(UsageError):
        Mcpl(**options)
