"""`mgp_tools_call` and other spellings: the call of the tool itself, for every rule that concerns the tool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Auth, Context, Limits, Refused
from defserve.auth import StaticTokens
from defserve.auth.principals import Principal
from defserve.proxying.items import RemoteTool
from tests import asgi
from tests.protocols.mgp.callers import code_of, speaking
from tests.protocols.mgp.tool_discovery.offices import META, Elsewhere, hum, keyword_only, office, structured
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw, raw, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]


async def ask(peer: Raw, tool: str, arguments: Any = None, **more: Any) -> Json:
    """A call by way of the tool that calls others."""
    given = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
    return await peer.ask("tools/call", {"name": "mgp_tools_call", "arguments": given, **more})


def told(reply: Json) -> Json:
    """A reply without what differs from call to call."""
    about = {key: value for key, value in reply.items() if key not in ("id", "jsonrpc")}
    for place in (
        about.get("error", {}).get("data"),
        about.get("result", {}).get("_meta", {}).get("dev.defserve/error"),
    ):
        (place or {}).pop("trace_id", None)
    return about


@for_each_row("version", ERAS)
@for_each_row(
    ("tool", "arguments"),
    [
        ("forecast", {"city": "Bern"}),
        ("forecast", {}),
        ("forecast", {"city": 7, "more": 1}),
        ("forecast", None),
        ("read_inbox", None),
        ("read_inbox", {"count": 2}),
        ("no_such_tool", {}),
    ],
)
async def test_the_answer_is_that_of_the_tool(version: str, tool: str, arguments: Json | None):
    server, _ = office(keyword_only())
    async with raw(server, version) as peer:
        given = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
        direct = await peer.ask("tools/call", given)
        assert told(await ask(peer, tool, arguments)) == told(direct)


@for_each_row("spelling", ["mgp_tools_discover", "mgp.tools.discover", "mgp/tools/discover"])
async def test_every_spelling_is_taken(spelling: str):
    server, _ = office(keyword_only())
    async with raw(server, SESSION) as peer:
        assert (await structured(peer, spelling, {"query": "weather"}))["tools"][0]["name"] == "forecast"
        inner = await ask(peer, spelling, {"query": "weather"})
        assert inner["result"]["structuredContent"]["tools"][0]["name"] == "forecast"


@for_each_row(
    ("arguments", "said"),
    [
        (None, "arguments must be an object"),
        ([], "arguments must be an object"),
        ({}, "name must be a string"),
        ({"name": ["x"]}, "name must be a string"),
        ({"name": "forecast", "arguments": "Bern"}, "arguments must be an object"),
        ({"name": "forecast", "extra": 1}, "takes name and arguments, not 'extra'"),
        ({"name": "mgp_tools_call", "arguments": {"name": "forecast"}}, "cannot call itself"),
        ({"name": "mgp.tools.call", "arguments": {"name": "mgp_tools_call"}}, "cannot call itself"),
    ],
)
async def test_a_call_that_names_nothing_is_refused_clearly(arguments: Any, said: str):
    server, _ = office(keyword_only())
    async with raw(server, SESSION) as peer:
        error = (await peer.ask("tools/call", {"name": "mgp_tools_call", "arguments": arguments}))["error"]
        assert (error["code"], said in error["message"]) == (-32602, True), error


@for_each_row("version", ERAS)
async def test_an_authors_wrapper_sees_the_tool_itself(version: str):
    server, _ = office(keyword_only())
    seen: list[tuple[str, Json]] = []

    @server.around("tools/call")
    async def refuse_deleting(call: Any, params: Json, next: Any) -> Any:
        seen.append((params["name"], params["arguments"]))
        assert call.params is params
        if params["name"] == "delete_file":
            raise Refused("not today")
        return await next(call, params)

    async with raw(server, version) as peer:
        assert code_of(await ask(peer, "delete_file", {"path": "a"})) is not None
        await ask(peer, "forecast", {"city": "Bern"})
    assert seen == [("delete_file", {"path": "a"}), ("forecast", {"city": "Bern"})]


@for_each_row("version", ERAS)
async def test_the_audit_names_the_tool_itself(version: str):
    trails: list[list[tuple[Any, ...]]] = []
    for wrapped in (False, True):
        server, trail = office(keyword_only())
        async with raw(server, version) as peer:
            if wrapped:
                await ask(peer, "forecast", {"city": "Bern"})
            else:
                await peer.call("forecast", {"city": "Bern"})
        trails.append(
            [(e["event_type"], e["target"], e["result"], e["details"].get("arguments_hash")) for e in trail.events]
        )
    assert trails[0] == trails[1]
    assert "forecast" in str(trails[0])


async def test_scopes_that_are_missing_hide_the_tool_here_too():
    server, _ = office(keyword_only(), auth=Auth(StaticTokens({"t": "bob"})))
    server.add_tool(hum, name="vault", description="Open the vault.", scopes=["vault:open"])
    for version in ERAS:
        async with speaking(server, version, who=Principal("bob")) as peer:
            assert (await ask(peer, "vault"))["error"]["code"] == -32602
            assert (await structured(peer, "mgp_tools_discover", {"query": "open the vault"}))["tools"] == []
        async with speaking(server, version, who=Principal("ann", frozenset({"vault:open"}))) as peer:
            assert (await ask(peer, "vault"))["result"]["content"][0]["text"] == "hum"


async def test_a_rate_counts_both_roads_as_one():
    server, _ = office(keyword_only(), auth=Auth(StaticTokens({"t": "bob"})), limits=Limits(rate=0.001, burst=2))
    async with speaking(server, SESSION, who=Principal("bob")) as peer:
        replies = [
            await peer.ask("tools/call", {"name": "forecast", "arguments": {"city": "Bern"}}),
            await ask(peer, "forecast", {"city": "Bern"}),
            await ask(peer, "forecast", {"city": "Bern"}),
        ]
    assert [code_of(reply) for reply in replies] == [None, None, "limit_exceeded"]


class Reader(Principal):
    """A key that names the tools it is for."""

    def may_read(self, tool: str) -> bool:
        return tool == "forecast"

    may_invoke = may_read


@for_each_row("version", ERAS)
async def test_a_key_for_one_tool_can_search_and_calls_no_other(version: str):
    server, _ = office(keyword_only(), auth=Auth(StaticTokens({"t": "bob"})))
    async with speaking(server, version, who=Reader("key")) as peer:
        listed = [tool["name"] for tool in (await peer.ask("tools/list"))["result"]["tools"]]
        assert listed == META
        answer = await structured(peer, "mgp_tools_discover", {"query": "weather"})
        assert ([tool["name"] for tool in answer["tools"]], answer["total_available"]) == (["forecast"], 1)
        assert code_of(await ask(peer, "forecast", {"city": "Bern"})) is None
        assert code_of(await ask(peer, "read_file", {"path": "a"})) == -32602


async def test_a_question_names_the_tool_that_will_run():
    server, _ = office(keyword_only(), confirm="always")
    async with raw(server, SESSION, {"elicitation": {}}) as peer:
        id = await peer.begin(
            "tools/call",
            {"name": "mgp_tools_call", "arguments": {"name": "delete_file", "arguments": {"path": "plan.txt"}}},
        )
        await until(lambda: not peer.link._queue.empty())
        (question,) = [message for message in await peer.news() if message.get("method") == "elicitation/create"]
        text = str(question["params"])
        assert "delete_file" in text and "plan.txt" in text and "mgp_tools_call" not in text
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
        assert code_of(await peer.reply_to(id)) is not None


async def test_a_question_of_the_tool_is_answered_in_the_stateless_era():
    server, _ = office(keyword_only())

    @server.tool
    async def order(ctx: Context, dish: str) -> str:
        return f"{dish} for {await ctx.ask('For how many?', int)}"

    async with raw(server, STATELESS, {"elicitation": {}}) as peer:
        first = (await ask(peer, "order", {"dish": "soup"}))["result"]
        assert first["resultType"] == "input_required"
        (key,) = first["inputRequests"]
        answers = {key: {"action": "accept", "content": {"value": 4}}}
        properties = first["inputRequests"][key]["params"]["requestedSchema"]["properties"]
        answers[key]["content"] = {next(iter(properties)): 4}
        again = await ask(peer, "order", {"dish": "soup"}, inputResponses=answers, requestState=first["requestState"])
        assert again["result"]["content"][0]["text"] == "soup for 4"
        # What was asked for one tool answers nothing for another.
        other = await ask(peer, "forecast", {"city": "x"}, inputResponses=answers, requestState=first["requestState"])
        assert "error" in other


async def test_a_tool_with_a_call_under_way_is_not_evicted():
    server, _ = office(keyword_only())
    gate = asyncio.Event()

    @server.tool
    async def wait() -> str:
        """Wait for a long time."""
        await gate.wait()
        return "done"

    async with raw(server, SESSION) as peer:
        await peer.call(
            "mgp_tools_request", {"reason": "preference", "context": "wait", "requirements": {"capabilities": ["wait"]}}
        )
        id = await peer.begin("tools/call", {"name": "wait"})
        kept = await structured(peer, "mgp_tools_evict", {"tools": ["wait"]})
        assert (kept["evicted"], kept["kept"]) == ([], ["wait"])
        gate.set()
        assert (await peer.reply_to(id))["result"]["content"][0]["text"] == "done"
        assert (await structured(peer, "mgp_tools_evict", {"tools": ["wait"]}))["evicted"] == ["wait"]


async def test_a_tool_whose_arguments_go_into_headers_is_called_by_its_own_name():
    server, _ = office(keyword_only())
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"region": region}, "required": ["region"]}

    @server.tool(schema=schema)
    def stock(region: str) -> str:
        return region

    given = {"name": "stock", "arguments": {"region": "eu"}}
    async with asgi.living(server.asgi()) as app:
        web = await asgi.Peer(app, STATELESS, {}).open()
        refused = await web.ask("tools/call", {"name": "mgp_tools_call", "arguments": given})
        assert "its own name" in refused["error"]["message"]
    async with raw(server, STATELESS) as pipe:  # a pipe has no headers
        assert (await ask(pipe, "stock", {"region": "eu"}))["result"]["content"][0]["text"] == "eu"


async def test_a_tool_that_is_for_views_alone_is_not_called_for_a_model():
    server, _ = office(keyword_only())
    listed = {"name": "repaint", "_meta": {"ui": {"visibility": ["app"]}}}
    server.add_tool(RemoteTool(Elsewhere(), "repaint", listed))
    shows_views = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}
    async with raw(server, SESSION, shows_views) as peer:
        unknown, hidden = await ask(peer, "no_such_tool"), await ask(peer, "repaint")
        assert hidden["error"]["code"] == unknown["error"]["code"]
        assert hidden["error"]["message"] == "Unknown tool: repaint"
        assert (await structured(peer, "mgp_tools_discover", {"query": "repaint"}))["tools"] == []
        # The host calls it by its own name, for its view.
        assert (await peer.call("repaint"))["content"][0]["text"] == "from elsewhere"
