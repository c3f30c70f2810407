"""MGP §16.4 to §16.8: searching, requesting, and the tools a conversation has loaded."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from defserve import Limits
from defserve.binding import explicit_schema
from defserve.search import Search, ToolBudget
from defserve.server import AccessPolicy, Entry
from tests.protocols.mgp.callers import ALICE, BOB, speaking
from tests.protocols.mgp.tool_discovery.offices import hum, keyword_only, names, office, structured
from tests.raw import ERAS, HANDSHAKE, Json, Raw, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]


def need(*capabilities: str, **more: Any) -> Json:
    return {
        "reason": "capability_gap",
        "context": "a task",
        "requirements": {"capabilities": list(capabilities), **more},
    }


async def found(peer: Raw, query: str, **more: Any) -> list[str]:
    return [tool["name"] for tool in (await structured(peer, "mgp_tools_discover", {"query": query, **more}))["tools"]]


@pytest.mark.req("MGP-16.5", "MGP-16.4")
@for_each_row("version", ERAS)
async def test_a_search_answers_with_schemas_scores_totals_and_time(version: str):
    server, _ = office()
    async with speaking(server, version, ("tool_discovery",)) as peer:
        reply = await peer.ask("mgp/tools/discover", {"query": "send an email", "strategy": "keyword"})
    result = reply["result"]
    best = result["tools"][0]
    assert (best["name"], best["server_id"]) == ("send_mail", "office")
    assert best["inputSchema"]["required"] == ["to", "text"]
    assert best["security"]["risk_level"] == "moderate"
    assert 0 < best["relevance_score"] <= 1
    assert (result["total_available"], result["search_strategy"]) == (5, "keyword")
    assert result["query_time_ms"] >= 0


async def test_loading_what_checks_arguments_does_not_count_as_checking_them(monkeypatch: pytest.MonkeyPatch):
    """jsonschema compiles grammars when it is imported: seconds on a busy machine."""
    made = explicit_schema._get_validator  # pyright: ignore[reportPrivateUsage]

    def load_slowly(*about: Any) -> Any:
        time.sleep(0.2)
        return made(*about)

    server, _ = office(limits=Limits(validation=0.1))
    async with speaking(server, SESSION, ("tool_discovery",)) as peer:
        monkeypatch.setattr(explicit_schema, "_get_validator", load_slowly)
        assert (await found(peer, "send an email"))[0] == "send_mail"


async def test_methods_need_the_extension_and_a_server_that_is_searched():
    server, _ = office()
    plain, _ = office(None)
    async with speaking(server, SESSION, ("audit",)) as peer:
        assert (await peer.ask("mgp/tools/discover", {"query": "x"}))["error"]["code"] == -32601
    async with speaking(plain, SESSION, ("tool_discovery", "audit")) as peer:
        assert peer.opening["capabilities"]["mgp"]["extensions"] == ["audit"]
        assert (await peer.ask("mgp/tools/discover", {"query": "x"}))["error"]["code"] == -32601


@pytest.mark.req("MGP-16.4")
async def test_filters_hold_for_every_strategy():
    server, _ = office()
    async with raw(server, SESSION) as peer:
        for strategy in ("keyword", "semantic", "category", "hybrid"):
            within = await found(peer, "read", strategy=strategy, filter={"categories": ["mail"]}, max_results=20)
            assert set(within) <= {"send_mail", "read_inbox"}, strategy
            safe = await found(
                peer, "file", strategy=strategy, filter={"categories": ["files"], "risk_level_max": "safe"}
            )
            assert safe == ["read_file"], strategy
        assert await found(peer, "", strategy="category", filter={"categories": ["mail.in"]}) == ["read_inbox"]
        assert await found(peer, "mail", filter={"status": "error"}) == []


async def test_a_tool_that_declares_nothing_is_not_safe():
    server, _ = office(keyword_only())
    server.add_tool(hum, name="claims", description="Says that it reads.", annotations={"readOnlyHint": True})
    async with raw(server, SESSION) as peer:
        assert await found(peer, "claims") == ["claims"]
        assert await found(peer, "claims", filter={"risk_level_max": "safe"}) == []


async def test_nothing_rather_than_five_wrong_ones():
    server, _ = office()
    async with raw(server, SESSION) as peer:
        result = await peer.call("mgp_tools_discover", {"query": "zygote xylophone"})
    assert result["structuredContent"]["tools"] == []
    assert result["content"][0]["text"].startswith("No tool fits")


@pytest.mark.req("MGP-16.5")
async def test_whoever_may_not_use_a_tool_learns_nothing_of_it():
    """Neither by results, counts and scores, nor by another road: the same answer as if it did not exist."""
    policy = AccessPolicy("opt-out", [Entry("tool_grant", "alice", "delete_file", "deny")])
    server, _ = office(keyword_only(), access=policy)
    without, _ = office(keyword_only(), access=policy)
    without.remove_tool("delete_file")
    asked = [
        ("mgp_tools_discover", {"query": "remove a file for ever", "max_results": 20}),
        ("mgp_tools_discover", {"query": "", "strategy": "category", "filter": {"categories": ["files"]}}),
        ("mgp_tools_request", need("delete_file", "remove for ever")),
        ("mgp_tools_evict", {"tools": ["delete_file"]}),
        ("mgp_tools_session", {}),
    ]
    for version in ERAS:
        answers: list[list[Json]] = []
        for one in (server, without):
            async with speaking(one, version, who=ALICE) as peer:
                answers.append([{**await structured(peer, *each), "query_time_ms": 0} for each in asked])
        assert answers[0] == answers[1]
    async with speaking(server, SESSION, who=BOB) as peer:
        assert (await found(peer, "remove a file for ever"))[0] == "delete_file"


@pytest.mark.req("MGP-16.6", "MGP-16.6s")
@for_each_row("version", ERAS)
async def test_a_request_says_what_it_could_load(version: str):
    server, trail = office(keyword_only(), permissions="config_only")
    async with speaking(server, version, ("tool_discovery", "permissions")) as peer:
        for capabilities, status, loaded in [
            (["send_mail"], "fulfilled", ["send_mail"]),
            (["weather", "flying"], "partial", ["forecast"]),
            (["flying"], "unavailable", []),
            (["delete_file"], "pending_approval", []),
            (["delete_file", "weather"], "partial", ["forecast"]),
        ]:
            result = (await peer.ask("mgp/tools/request", need(*capabilities)))["result"]
            assert (result["status"], [tool["name"] for tool in result["tools_loaded"]]) == (status, loaded)
        assert result["tools_unavailable"][0]["permissions_missing"] == ["filesystem.write"]
    assert ("dev.defserve.tool_pending", {"permissions": ["filesystem.write"]}) in trail.told(
        "dev.defserve.tool_pending"
    )


async def test_a_tool_that_waits_for_approval_is_listed_once_it_is_granted():
    server, _ = office(keyword_only(), permissions="config_only")
    async with speaking(server, SESSION, ("tool_discovery", "permissions")) as peer:
        assert (await peer.ask("mgp/tools/request", need("delete_file")))["result"]["status"] == "pending_approval"
        assert "delete_file" not in await names(peer)
        await peer.ask("mgp/permission/grant", {"grants": {"filesystem.write": "approved"}})
        assert "delete_file" in await names(peer)


async def test_a_denied_permission_does_not_wait_for_approval():
    server, _ = office(keyword_only(), permissions="deny_all")
    async with raw(server, SESSION) as peer:
        result = await structured(peer, "mgp_tools_request", need("delete_file"))
    assert (result["status"], result["tools_unavailable"][0]["reason"]) == (
        "unavailable",
        "delete_file does it, but filesystem.write is denied",
    )


async def test_a_preferred_risk_leaves_out_what_is_above_it():
    server, _ = office(keyword_only())
    async with raw(server, SESSION) as peer:
        result = await structured(peer, "mgp_tools_request", need("file", preferred_risk_level="safe"))
    assert [tool["name"] for tool in result["tools_loaded"]] == ["read_file"]


@pytest.mark.req("MGP-16.7", "MGP-16.8")
async def test_the_least_recently_used_make_room_and_the_pinned_stay():
    measured = office(keyword_only())[0].mgp.tool_discovery.catalogue
    costs = sorted(measured.find_by_name(tool).tokens for tool in ("forecast", "send_mail", "read_file"))
    budget = ToolBudget(cache_limit=sum(costs[1:]))  # room for any two of them, not for three
    server, _ = office(keyword_only(pinned=["read_inbox"], budget=budget))
    async with speaking(server, SESSION, ("tool_discovery",)) as peer:
        await names(peer)
        for tool, arguments in [
            ("forecast", {"city": "Bern"}),
            ("send_mail", {"to": "bo", "text": "hi"}),
            ("read_inbox", {}),
            ("forecast", {"city": "Bern"}),
            ("read_file", {"path": "a"}),
        ]:
            await peer.call(tool, arguments)
        session = (await peer.ask("mgp/tools/session"))["result"]
        assert (session["pinned"], session["cached"]) == (["read_inbox"], ["forecast", "read_file"])
        assert 0 < session["total_tokens"] <= session["max_tokens"] == 8000
        # What was evicted can be called, and is loaded again.
        assert not (await peer.call("send_mail", {"to": "bo", "text": "hi"})).get("isError")
        assert (await peer.ask("mgp/tools/session"))["result"]["cached"] == ["read_file", "send_mail"]


@pytest.mark.req("MGP-16.7")
@for_each_row("version", ERAS)
async def test_evicting_frees_what_was_loaded_and_names_what_stays(version: str):
    server, _ = office(keyword_only(pinned=["forecast"]))
    async with speaking(server, version, ("tool_discovery",)) as peer:
        loaded = (await peer.ask("mgp/tools/request", need("send_mail", "read_file")))["result"]
        meta = {"_meta": loaded["_meta"]} if version != SESSION else {}
        result = (await peer.ask("mgp/tools/session/evict", {"tools": ["send_mail", "forecast", "nothing"], **meta}))[
            "result"
        ]
    assert (result["evicted"], result["kept"], result["remaining_count"]) == (["send_mail"], ["forecast", "nothing"], 1)
    assert 0 < result["freed_tokens"] < loaded["context_tokens_added"]


@pytest.mark.req("MGP-16.8")
async def test_results_that_do_not_fit_are_cut_and_counted():
    server, _ = office(keyword_only(budget=ToolBudget(discovery_reserve=100)), many=30)
    async with raw(server, SESSION) as peer:
        result = await peer.call("mgp_tools_discover", {"query": "start the machine", "max_results": 20})
    answer = result["structuredContent"]
    assert len(answer["tools"]) + answer["results_cut"] == 20
    assert answer["results_cut"] > 10
    assert f"{answer['results_cut']} more did not fit" in result["content"][0]["text"]


@pytest.mark.slow
@for_each_row(
    ("method", "params", "said"),
    [
        ("discover", {}, "query"),
        ("discover", {"query": 1}, "query"),
        ("discover", {"query": "  "}, "query must say"),
        ("discover", {"query": "x" * 2001}, "2000 characters"),
        ("discover", {"query": "x", "strategy": "magic"}, "keyword, semantic, category, hybrid"),
        ("discover", {"query": "x", "strategy": ["keyword"]}, "keyword, semantic, category, hybrid"),
        ("discover", {"query": "x", "strategy": "category"}, "filter.categories"),
        ("discover", {"query": "x", "max_results": 0}, "1 to 20"),
        ("discover", {"query": "x", "max_results": True}, "1 to 20"),
        ("discover", {"query": "x", "filter": []}, "filter must be an object"),
        ("discover", {"query": "x", "filter": {"categories": "mail"}}, "filter.categories"),
        ("discover", {"query": "x", "filter": {"categories": ["a"] * 65}}, "at most 64"),
        ("discover", {"query": "x", "filter": {"categories": ["a" * 201]}}, "1 to 200"),
        ("discover", {"query": "x", "filter": {"risk_level_max": "none"}}, "safe, moderate, dangerous"),
        ("discover", {"query": "x", "filter": {"status": "sleepy"}}, "filter.status"),
        ("request", {"reason": "boredom", "context": "x", "requirements": {}}, "capability_gap"),
        ("request", {"reason": "preference", "requirements": {}}, "context"),
        ("request", {"reason": "preference", "context": "x"}, "requirements"),
        ("request", {"reason": "preference", "context": "", "requirements": {}}, "what is needed"),
        ("request", {"reason": "preference", "context": "x", "requirements": {"capabilities": [1]}}, "capabilities"),
        ("request", {"reason": "preference", "context": "x", "requirements": {}, "task_trace_id": 3}, "task_trace_id"),
        ("session/evict", {}, "tools"),
        ("session/evict", {"tools": "forecast"}, "tools"),
    ],
)
async def test_bad_params_say_which_and_why(method: str, params: Json, said: str):
    server, _ = office(keyword_only())
    async with speaking(server, SESSION, ("tool_discovery",)) as peer:
        error = (await peer.ask(f"mgp/tools/{method}", params))["error"]
        assert (error["code"], said in error["message"]) == (-32602, True), error
        assert await names(peer)


class Failing:
    """An embedder of somebody whose service is down."""

    def embed(self, texts: Any) -> Any:
        raise OSError("no connection")


async def test_an_embedder_that_fails_leaves_keywords_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    pytest.importorskip("numpy")
    server, _ = office(Search(level="L3", embedder=Failing()))
    server.mgp.tool_discovery._vectors.wait_until_loaded(30)
    with caplog.at_level(logging.WARNING, "defserve"):
        async with raw(server, SESSION) as peer:
            for _ in range(3):
                answer = await structured(peer, "mgp_tools_discover", {"query": "send an email"})
                assert (answer["tools"][0]["name"], answer["fallback_strategy"]) == ("send_mail", "keyword")
    assert [record.getMessage() for record in caplog.records] == ["tools are searched by keywords alone: no connection"]
