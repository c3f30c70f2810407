"""Our participants in a topic of our gateway: servers, an orchestrator that learns, a person, an untrusted agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Server
from defserve.client import TopicClient, join_topic
from defserve.errors import PeerError
from defserve.protocols.mcpx.participant import NotCapable
from defserve.topics import ApprovalRules, Participant, Proposal
from tests.gateway.topics import Running, gateway
from tests.protocols.mcpx.servers import calculator
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PEOPLE: dict[str, Any] = {
    "human": {"token": "t-human", "profile": "full"},
    "boss": {"token": "t-boss", "profile": "full"},
    "agent": {"token": "t-agent", "profile": "proposal-only"},
    "worker": {"token": "t-worker", "profile": "response-only"},
    "files": {"token": "t-files", "profile": "response-only"},
}
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}


def host(there: Running, name: str, **query: str) -> Any:
    return join_topic(there.topic(**query), token=f"t-{name}")


def serve(server: Server, there: Running, name: str, **query: str) -> Any:
    return server.join(f"mcpx+{there.topic(**query)}", token=f"t-{name}")


@pytest.mark.req("MCPX-8.2", "MCPX-9")
@for_each_row("routing", ["all", "directed"])
async def test_a_proposal_is_fulfilled_and_both_learn_the_outcome_in_either_routing(routing: str):
    async with gateway(participants=PEOPLE) as there, serve(calculator(), there, "worker"):
        async with host(there, "agent", routing=routing) as agent, host(there, "human") as human:
            with pytest.raises(NotCapable):
                await agent.request("worker", "tools/call", ADD)
            proposal = agent.propose("worker", "tools/call", ADD)
            await until(lambda: bool(human.proposals))
            result = await human.fulfil(human.proposals[0])
            assert result["content"][0]["text"] == "3" and await agent.outcome(proposal) == result


async def test_the_gateway_refuses_what_a_participant_does_not_check_itself():
    async with gateway(participants=PEOPLE) as there, host(there, "worker"), host(there, "agent") as agent:
        agent.topic.capabilities = agent.capabilities.with_changes(add=["mcp/*"])
        with pytest.raises(PeerError, match="capab") as caught:
            await agent.request("worker", "tools/call", ADD)
        assert caught.value.data["error"] == "capability_violation"


@pytest.mark.req("MCPX-9")
async def test_an_orchestrator_learns_from_a_person_and_then_decides_by_itself():
    rules, boss = ApprovalRules(enough=2), Server("boss", "1")

    @boss.on_proposal
    async def decide(proposal: Proposal, participant: Participant) -> bool | None:
        tool = await participant.tool(proposal.target or "", proposal.context)
        return True if rules.approves(proposal, tool) else None

    async with gateway(participants=PEOPLE) as there, serve(calculator(), there, "worker"), serve(boss, there, "boss"):
        async with host(there, "agent") as agent, host(there, "human") as human:
            for _ in range(2):
                outcome = asyncio.create_task(agent.perform("worker", "tools/call", ADD))
                await until(lambda: bool(human.proposals))
                (proposal,) = human.proposals
                rules.record(proposal, True, by=human.id)
                await human.fulfil(proposal)
                await outcome
            result = await agent.perform("worker", "tools/call", ADD)
            assert result["content"][0]["text"] == "3"
            again = agent.topic.proposals
            assert [proposal.fulfiller for proposal in again] == ["human", "human", "boss"]


async def test_several_servers_and_hosts_share_a_topic():
    files = Server("files", "1")

    @files.tool
    def read(name: str) -> str:
        return f"contents of {name}"

    async with (
        gateway(participants=PEOPLE) as there,
        serve(calculator(), there, "worker"),
        serve(files, there, "files"),
    ):
        async with host(there, "human") as human, host(there, "boss") as boss:
            await until(lambda: set(human.participants) == {"worker", "files", "boss"})
            values = await asyncio.gather(
                *(human.call_tool("worker", "add", a=n, b=n) for n in range(20)),
                *(boss.call_tool("files", "read", name=str(n)) for n in range(20)),
            )
            assert values == [2 * n for n in range(20)] + [f"contents of {n}" for n in range(20)]


async def test_trust_grows_while_connected():
    async with gateway(participants=PEOPLE) as there, serve(calculator(), there, "worker"):
        async with host(there, "agent") as agent:
            await promote(there, agent)
            assert await agent.call_tool("worker", "add", a=1, b=1) == 2


async def promote(there: Running, agent: TopicClient) -> None:
    body = {"add": ["mcp/request:tools/*"], "remove": []}
    status, text = await there.http(
        "POST", f"/admin/participants/{agent.id}/capabilities", body, authorization="Bearer t-root"
    )
    assert status == 200, text
    await until(lambda: agent.may("mcp/request:tools/call:add"))
