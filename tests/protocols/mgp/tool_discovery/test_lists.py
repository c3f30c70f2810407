"""MGP §16.2, §16.3, §16.7: what lists show at each level, to each conversation, and when they change."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic_core import to_json
from starlette.testclient import TestClient

from defserve import Server, UsageError
from defserve.errors import PeerError
from defserve.protocols.mgp.meta_tools import format_loaded_tools
from defserve.proxying.items import RemoteTool
from defserve.search import Search, ToolBudget
from defserve.server import AccessPolicy, Entry
from tests.effort import cpu_within
from tests.hostile_schemas import SCHEMAS
from tests.protocols.mgp.callers import ALICE, BOB, speaking
from tests.protocols.mgp.tool_discovery.offices import META, Elsewhere, hum, keyword_only, names, office, structured
from tests.raw import ERAS, HANDSHAKE, STATELESS, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
OWN = ["send_mail", "read_inbox", "read_file", "delete_file", "forecast"]
CHANGED = "notifications/tools/list_changed"
NEED = {"reason": "capability_gap", "context": "post", "requirements": {"capabilities": ["send_mail"]}}


@pytest.mark.req("MGP-16.2", "MGP-16.3")
@pytest.mark.parametrize("version", ERAS)
async def test_each_level_lists_what_it_says(version: str):
    for level, shown in {
        "auto": OWN,
        "L0": OWN,
        "L1": [*META[:3], "forecast"],
        "L2": [*META[:3], "forecast"],
        "L3": [*META, "forecast"],
    }.items():
        server, _ = office(Search(level=level, pinned=["forecast"]))
        async with raw(server, version) as peer:
            assert sorted(await names(peer)) == sorted(shown), level


@pytest.mark.slow
@pytest.mark.parametrize("version", ERAS)
async def test_auto_lists_everything_while_it_fits_and_searches_when_it_does_not(version: str):
    small, _ = office("auto")
    large, _ = office("auto", many=300)
    async with raw(small, version) as peer:
        assert await names(peer) == OWN
    async with raw(large, version) as peer:
        assert await names(peer) == META


@pytest.mark.slow
async def test_auto_counts_only_what_the_caller_may_see():
    policy = AccessPolicy("opt-in", [Entry("tool_grant", "alice", "forecast"), Entry("server_grant", "bob")])
    server, _ = office("auto", many=300, access=policy)
    async with speaking(server, SESSION, who=ALICE) as alice, speaking(server, SESSION, who=BOB) as bob:
        assert await names(alice) == ["forecast"]
        assert await names(bob) == META


async def test_the_categories_of_level_one_are_those_of_visible_tools():
    policy = AccessPolicy("opt-in", [Entry("tool_grant", "alice", "forecast")])
    server, _ = office(Search(level="L1"), access=policy)
    async with speaking(server, SESSION, who=ALICE) as alice:
        (tool,) = [t for t in (await alice.ask("tools/list"))["result"]["tools"] if t["name"] == META[0]]
    assert tool["inputSchema"]["properties"]["filter"]["properties"]["categories"]["items"]["enum"] == [
        "office",
        "weather",
    ]


@pytest.mark.req("MGP-16.7")
@for_each_row("version", HANDSHAKE[1:])
async def test_a_requested_tool_is_listed_in_its_own_conversation_alone(version: str):
    server, _ = office(keyword_only())
    async with raw(server, version) as one, raw(server, version) as other:
        assert await names(one) == await names(other) == META
        await one.call("mgp_tools_request", NEED)
        assert [message["method"] for message in await one.news()] == [CHANGED]
        assert [*META, "send_mail"] == await names(one)
        assert await other.news() == []
        assert await names(other) == META


async def test_a_call_loads_the_tool_and_tells_once():
    server, _ = office(keyword_only())
    async with raw(server, SESSION) as peer:
        await names(peer)
        await peer.call("forecast", {"city": "Bern"})
        await peer.call("forecast", {"city": "Bern"})
        assert [message["method"] for message in await peer.news()] == [CHANGED]
        assert await names(peer) == [*META, "forecast"]
        await peer.call("forecast", {"wrong": 1})
        assert await peer.news() == []


async def test_a_tool_that_was_removed_leaves_the_conversation():
    server, _ = office(keyword_only())
    async with raw(server, SESSION) as peer:
        await peer.call("mgp_tools_request", NEED)
        server.remove_tool("send_mail")
        assert await names(peer) == META
        assert (await structured(peer, "mgp_tools_session", {}))["cached"] == []


@pytest.mark.req("MGP-16.7")
async def test_without_sessions_a_handle_remembers_and_grants_nothing():
    policy = AccessPolicy("opt-out", [Entry("tool_grant", "bob", "send_mail", "deny")])
    server, _ = office(keyword_only(), access=policy)
    async with speaking(server, STATELESS, who=ALICE) as alice, speaking(server, STATELESS, who=BOB) as bob:
        result = await alice.call("mgp_tools_request", NEED)
        handle = {"dev.defserve/tools": result["_meta"]["dev.defserve/tools"]}
        assert await names(alice) == META
        assert await names(alice, **handle) == [*META, "send_mail"]
        assert await names(bob, **handle) == META
        later = await alice.call("forecast", {"city": "Bern"}, _meta=handle)
        both = {"dev.defserve/tools": later["_meta"]["dev.defserve/tools"]}
        assert await names(alice, **both) == [*META, "send_mail", "forecast"]
        # Without a handle nothing is remembered, so nothing is said of it.
        assert "dev.defserve/tools" not in (await alice.call("forecast", {"city": "Bern"}))["_meta"]


@for_each_row("handle", ["", "x", "Ag", 7, [], "A" * 5000, "AeQn7oS1d", "é"])
async def test_a_broken_handle_is_a_clear_error(handle: object):
    server, _ = office(keyword_only())
    async with raw(server, STATELESS) as peer:
        reply = await peer.ask("tools/list", {"_meta": {"dev.defserve/tools": handle}})
        assert reply["error"]["code"] == -32602
        assert "dev.defserve/tools" in reply["error"]["message"]


async def test_a_client_that_searches_by_itself_gets_the_whole_list():
    server, _ = office(Search(level="L3", whole_list_for=["raw"]))
    async with raw(server, SESSION) as peer:
        assert await names(peer) == OWN


def test_a_rest_document_lists_every_tool():
    server, _ = office(keyword_only())
    document = TestClient(server.asgi(rest=True), base_url="http://localhost").get("/openapi.json").json()
    assert {path.rpartition("/")[2] for path in document["paths"]} - {"{tool_name}"} == set(OWN)


@pytest.mark.slow
@pytest.mark.req("MGP-16.3")
@pytest.mark.parametrize("version", ERAS)
async def test_a_thousand_tools_cost_less_than_a_thousand_tokens(version: str):
    server, _ = office("auto", many=1000)
    async with raw(server, version) as peer:
        page = (await peer.ask("tools/list"))["result"]
    assert "nextCursor" not in page
    assert len(to_json(page["tools"])) / 4 <= 1000


def test_a_pinned_name_that_no_tool_has_is_warned_about_at_the_start(caplog: pytest.LogCaptureFixture):
    server, _ = office(Search(level="L3", pinned=["forcast", "send_mail"]))
    assert server.composition
    assert "there is no tool 'forcast' to be pinned\n  fix: did you mean 'forecast'?" in caplog.text
    assert "send_mail" not in caplog.text


def test_pinned_tools_beyond_their_reserve_are_named_at_the_start():
    server, _ = office(Search(level="L3", pinned=["forecast", "send_mail"], budget=ToolBudget(pinned_reserve=10)))
    with pytest.raises(UsageError, match=r"pinned tools cost \d+ tokens \(forecast \d+, send_mail \d+\)"):
        _ = server.composition


def test_the_names_of_the_tools_that_search_are_taken():
    server, _ = office()
    for name in ("mgp_tools_call", "mgp.tools.discover"):
        with pytest.raises(UsageError, match="tool that searches"):
            server.add_tool(hum, name=name)


def test_a_searched_server_cannot_be_mounted_because_its_list_would_not_act():
    parent, child = Server("parent"), Server("child", search="always")
    parent.mount(child, prefix="x")
    with pytest.raises(UsageError, match="tool_discovery"):
        _ = parent.composition


async def test_the_tools_of_mounted_servers_are_found_too():
    parent, child = Server("parent", search=keyword_only()), Server("kitchen")
    child.add_tool(hum, name="cook", description="Prepare a warm meal.")
    parent.mount(child, prefix="k")
    async with raw(parent, SESSION) as peer:
        found = await structured(peer, "mgp_tools_discover", {"query": "warm meal"})
        assert [(tool["name"], tool["server_id"]) for tool in found["tools"]] == [("k_cook", "kitchen")]
        assert (await peer.call("k_cook"))["content"][0]["text"] == "hum"


@for_each_row(
    ("given", "said"),
    [
        ("often", "'auto', 'always', or Search"),
        (True, "'auto', 'always', or Search"),
    ],
)
def test_a_wrong_option_says_what_to_write(given: object, said: str):
    with pytest.raises(UsageError, match=said):
        Server("x", search=given)  # type: ignore[arg-type]


def test_a_server_without_search_imports_nothing_of_it():
    code = (
        "import sys; from defserve import Server; Server('x').composition; "
        "print([m for m in sys.modules if 'defserve.search' in m or 'tool_discovery' in m or m == 'numpy'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@for_each_row(
    "odd",
    [
        {},
        {"description": 7, "inputSchema": [], "title": {}},
        {"description": "x" * 60_000},
        {"inputSchema": {"type": "object", "properties": 3, "required": 4}},
        {"inputSchema": {"properties": {"page": {"enum": 1, "type": 2}, "n": None}, "required": {"a": 1}}},
        {"inputSchema": {"properties": {"page": {"enum": [{"a": 1}, "b" * 999]}}, "required": ["page"]}},
    ],
)
async def test_whatever_another_server_lists_is_found_and_harms_nothing(odd: dict[str, Any]):
    server, _ = office(keyword_only())
    server.add_tool(RemoteTool(Elsewhere(), "frobnicate", {"name": "frobnicate", **odd}))
    async with raw(server, SESSION) as peer:
        result = await peer.call("mgp_tools_discover", {"query": "frobnicate"})
        found = result["structuredContent"]
        assert found["tools"] == [] if found.get("results_cut") else found["tools"][0]["server_id"] == "wiki"
        assert len(result["content"][0]["text"]) < 2_000
        assert (await peer.call("frobnicate"))["content"][0]["text"] == "from elsewhere"


async def test_tools_of_a_server_that_is_down_are_found_and_flagged():
    server, _ = office(keyword_only())
    backend = Elsewhere()
    server.add_tool(RemoteTool(backend, "frobnicate", {"name": "frobnicate"}))
    async with raw(server, SESSION) as peer:
        asked = {"query": "frobnicate", "filter": {"status": "connected"}}
        assert len((await structured(peer, "mgp_tools_discover", asked))["tools"]) == 1
        backend.state = "error"
        server.mcp.tools.registry.notify_watchers()
        assert (await structured(peer, "mgp_tools_discover", asked))["tools"] == []
        (tool,) = (await structured(peer, "mgp_tools_discover", {"query": "frobnicate"}))["tools"]
        assert tool["status"] == "error"


@for_each_row("version", ERAS)
async def test_the_tools_of_a_view_are_listed_for_its_host_and_found_by_no_search(version: str):
    server, _ = office(keyword_only())

    @server.app("ui://office/view")
    def view() -> str:
        return "<p>office</p>"

    @server.tool(app=view, visible_to="app")
    def refresh_office_view() -> str:
        """Refresh the view of the office."""
        return "refreshed"

    async with server.connect(version, apps=True) as client:
        assert [tool["name"] for tool in await client.tools()] == [*META, "refresh_office_view"]
        found = await client.call(META[0], query="refresh the view of the office")
        assert "refresh_office_view" not in str(found)
        assert await client.call("refresh_office_view") == "refreshed"
        with pytest.raises(PeerError, match="Unknown tool: refresh_office_view"):
            await client.call(META[2], name="refresh_office_view", arguments={})
    async with server.connect(version) as plain:
        assert [tool["name"] for tool in await plain.tools()] == META


@for_each_row("name", list(SCHEMAS))
async def test_a_tool_with_any_schema_of_another_server_is_one_short_line(name: str):
    tool = {"name": "far", "description": "x", "security": {"risk_level": "safe"}, "inputSchema": SCHEMAS[name]}
    answer = {"status": "fulfilled", "tools_loaded": [tool], "tools_unavailable": []}
    assert len(format_loaded_tools(answer).splitlines()) == 2
    assert cpu_within(0.25, lambda: format_loaded_tools(answer))
