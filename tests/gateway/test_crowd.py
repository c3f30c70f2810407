"""Three servers and two agents in one topic, over real sockets, beside somebody who breaks every rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from defserve import Server
from defserve.client.topic_client import TopicClient, join_topic
from defserve.protocols.mcpx.participant import NotCapable
from defserve.protocols.mcpx.proposals import Proposal
from tests.at_address import fresh
from tests.gateway.topics import Running, envelope, gateway, tool_call
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SERVERS = ("hello", "notes", "shouter")
PEOPLE: dict[str, Any] = {
    **{name: {"token": f"t-{name}", "profile": "response-only"} for name in SERVERS},
    "lead": {"token": "t-lead", "profile": "full"},
    "intern": {"token": "t-intern", "profile": "proposal-only"},
    "rogue": {"token": "t-rogue", "capabilities": ["mcp/request:tools/call:add", "chat"]},
}


class Crowd:
    def __init__(self, running: Running, servers: dict[str, Server], lead: TopicClient, intern: TopicClient) -> None:
        self.running, self.servers, self.lead, self.intern = running, servers, lead, intern

    async def is_well(self) -> None:
        """Everyone answers, to each as it may ask."""
        answers = await asyncio.gather(
            self.lead.call_tool("hello", "add", a=1, b=2),
            self.lead.call_tool("shouter", "shout", text="hi"),
            self.lead.call_tool("notes", "add_note", text="milk"),
            self.lead.request("hello", "ping"),
        )
        assert answers == [3, "HI", "Note added", {}]

    def misbehaviour(self, server: str) -> dict[str, int]:
        """What a server has counted of whom."""
        return self.servers[server].mcpx.carriers[0].topic.misbehaviour


@asynccontextmanager
async def crowd() -> AsyncGenerator[Crowd]:
    shouter = Server("shouter")

    @shouter.tool
    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    servers = {"hello": fresh("hello"), "notes": fresh("notes"), "shouter": shouter}
    limits = {"message": 20_000, "malformed_in_a_row": 100}
    async with gateway(participants=PEOPLE, limits=limits) as running, AsyncExitStack() as stack:
        for name, server in servers.items():
            await stack.enter_async_context(server.join(f"mcpx+{running.topic()}", token=f"t-{name}"))
        lead = await stack.enter_async_context(join_topic(running.topic(), token="t-lead"))
        intern = await stack.enter_async_context(join_topic(running.topic(), token="t-intern"))
        yield Crowd(running, servers, lead, intern)


@pytest.mark.req("MCPX-8.2", "MCPX-3.1.1", "MCPX-3.1.2")
async def test_each_finds_the_others_and_asks_them():
    async with crowd() as those:
        assert set(those.lead.participants) >= set(SERVERS)
        lists = await asyncio.gather(*(those.lead.tools(name) for name in SERVERS))
        assert [tools[0]["name"] for tools in lists] == ["add", "add_note", "shout"]
        await those.is_well()


@pytest.mark.req("MCPX-3.2", "MCPX-3.2.1b", "MCPX-3.2.1c", "MCPX-6.2r")
async def test_who_may_not_ask_proposes_and_learns_what_came_of_it():
    async with crowd() as those:
        with pytest.raises(NotCapable):
            await those.intern.request("hello", "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
        heard = those.lead.heard()
        proposing = asyncio.create_task(those.intern.call_tool("hello", "add", a=20, b=22))
        async for event in heard:
            if isinstance(event, Proposal):
                result = await those.lead.fulfil(event)
                break
        assert result["content"][0]["text"] == (await proposing) == "42"


def _call(name: str, sender: str = "rogue", kind: str = "mcp/request:tools/call:add") -> str:
    return json.dumps(envelope(kind, sender, tool_call(name, a=1, b=2), to=["hello", "notes"]))


@pytest.mark.req("MCPX-4.3", "MCPX-4.3r", "MCPX-8.2")
async def test_a_spoofed_kind_is_refused_by_its_receivers_and_counted():
    async with crowd() as those, those.running.joined("rogue") as rogue:
        await rogue.raw(_call("add_note"))
        refusals = [await rogue.until("mcp/response:tools/call:add") for _ in range(2)]
        assert {refusal["from"] for refusal in refusals} == {"hello", "notes"}
        assert all(refusal["payload"]["error"]["code"] == -32600 for refusal in refusals)
        assert those.misbehaviour("notes") == those.misbehaviour("hello") == {"rogue": 1}
        assert those.misbehaviour("shouter") == {"rogue": 1}
        await rogue.raw(_call("add"))
        answers = {answer["from"]: answer async for answer in _answers(rogue, 2)}
        assert answers["hello"]["payload"]["result"]["content"][0]["text"] == "3"
        await those.is_well()


@for_each_row(
    ("frame", "error"),
    [
        (_call("add", sender="lead"), "forged_sender"),
        (_call("add", kind="mcp/request:tools/call:divide"), "capability_violation"),
        (_call("add", kind="system/welcome"), "reserved_kind"),
        (_call("add").replace("mcpx/v0.1", "mcpx/v0.2"), "wrong_version"),
    ],
)
async def test_what_the_gateway_refuses_reaches_nobody(frame: str, error: str):
    async with crowd() as those, those.running.joined("rogue") as rogue:
        await rogue.raw(frame)
        assert (await rogue.error())["payload"]["error"] == error
        await those.is_well()
        assert those.misbehaviour("hello") == {}


async def test_a_malformed_frame_and_one_that_is_too_long_reach_nobody():
    async with crowd() as those:
        async with those.running.joined("rogue") as rogue:
            await rogue.raw(_call("add")[:-2])
            assert (await rogue.error())["payload"]["error"] == "not_json"
            await those.is_well()
            await rogue.raw(_call("add" * 20_000))
            assert (await rogue.closed())[0] == 1009
        await those.is_well()
        assert those.misbehaviour("hello") == {}


async def _answers(peer: Any, count: int):
    for _ in range(count):
        yield await peer.until("mcp/response:tools/call:add")
