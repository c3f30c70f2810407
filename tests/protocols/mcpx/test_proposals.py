"""Proposals: followed, fulfilled, answered, expired; in a topic of real sockets and by the clock."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Server
from defserve.client.topic_client import join_topic
from defserve.errors import PeerError, PeerTimeout, UsageError
from defserve.protocols.mcpx import proposals
from defserve.protocols.mcpx.envelope import GATEWAY_SENDER, Envelope
from defserve.protocols.mcpx.participant import NotCapable, Participant, ProposalNotPending
from defserve.protocols.mcpx.proposals import MAX_BYTES_PER_PROPOSER, MAX_PROPOSALS_PER_PROPOSER, Proposal, Proposals
from tests.protocols.mcpx.gateways import FULL, gateway, stranger
from tests.protocols.mcpx.servers import calculator, call, joined
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PROPOSER = ("mcp/proposal:*", "mcp/response:*", "chat")
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def proposed(id: str = "p1", sender: str = "agent", to: tuple[str, ...] = ("worker",), **params: Any) -> Envelope:
    payload = {"method": "tools/call", "params": params or ADD}
    return Envelope("mcp/proposal:tools/call:add", sender, payload, to=to, id=id)


def request(
    about: str | None = "p1", kind: str = "mcp/request:tools/call:add", to: str = "worker", id: str = "f1"
) -> Envelope:
    return Envelope(kind, "human", {"jsonrpc": "2.0", "id": 1}, to=[to], correlation_id=about, id=id)


def response(about: str = "f1", sender: str = "worker", **body: Any) -> Envelope:
    to = ["human", "agent"]
    return Envelope("mcp/response:tools/call:add", sender, body or {"result": 3}, to=to, correlation_id=about)


# -- the tracker


@pytest.mark.req("MCPX-10.2")
def test_a_proposal_is_recorded_as_the_spec_writes_it():
    clock = Clock()
    clock.now = 1756216800.0
    proposal = Proposals(clock=clock).add(proposed())
    assert proposal is not None and proposal.to_wire() == {
        "proposalId": "p1",
        "proposer": "agent",
        "target": "worker",
        "method": "tools/call",
        "params": ADD,
        "status": "pending",
        "createdAt": "2025-08-26T14:00:00Z",
        "expiresAt": "2025-08-26T14:05:00Z",
    }


@pytest.mark.req("MCPX-10.2")
def test_a_proposal_expires_after_five_minutes():
    clock = Clock()
    tracked = Proposals(clock=clock)
    proposal = tracked.add(proposed())
    assert proposal is not None
    clock.now += 299.9
    assert tracked.get("p1") is proposal and tracked.pending() == [proposal]
    clock.now += 0.1
    assert tracked.get("p1") is None and proposal.status == "expired" and tracked.pending() == []
    assert tracked.record_fulfilment(request()) is None


@pytest.mark.req("MCPX-3.2.1b", "MCPX-3.2.1c")
def test_fulfilment_and_answer_move_a_proposal_on():
    tracked = Proposals(clock=Clock())
    proposal = tracked.add(proposed())
    assert proposal is not None
    assert tracked.record_fulfilment(request()) is proposal
    assert (proposal.status, proposal.fulfiller) == ("fulfilled", "human")
    assert tracked.record_outcome(response(), "agent") is proposal
    assert (proposal.status, proposal.result) == ("completed", 3)
    assert tracked.record_outcome(response(), "agent") is None


def test_a_failure_is_an_outcome():
    tracked = Proposals(clock=Clock())
    proposal = tracked.add(proposed())
    tracked.record_fulfilment(request())
    tracked.record_outcome(response(error={"code": 1, "message": "no"}), "agent")
    assert proposal is not None and proposal.status == "failed" and proposal.error == {"code": 1, "message": "no"}


@for_each_row(
    "other", [request(None), request("p2"), request(kind="mcp/request:tools/call:rm"), request(kind="mcp/request:ping")]
)
def test_a_request_for_something_else_fulfils_nothing(other: Envelope):
    tracked = Proposals(clock=Clock())
    tracked.add(proposed())
    assert tracked.record_fulfilment(other) is None and len(tracked.pending()) == 1


def test_an_answer_of_somebody_who_was_not_asked_is_no_outcome():
    tracked = Proposals(clock=Clock())
    proposal = tracked.add(proposed())
    tracked.record_fulfilment(request())
    assert tracked.record_outcome(response(sender="mallory"), "agent") is None
    assert proposal is not None and proposal.status == "fulfilled"


def test_a_proposer_that_did_not_see_the_fulfilment_knows_its_outcome():
    tracked = Proposals(clock=Clock())
    proposal = tracked.add(proposed())
    assert tracked.record_outcome(response("unseen", "mallory"), "agent") is None
    assert tracked.record_outcome(response("unseen"), "somebody") is None
    assert tracked.record_outcome(response("unseen"), "agent") is proposal


async def test_a_proposal_that_has_expired_has_no_outcome_for_who_asks_late():
    clock = Clock()
    agent = Participant(clock=clock)
    agent.attach_gateway(lambda frame: None)
    agent.receive_frame(
        Envelope("system/welcome", GATEWAY_SENDER, {"you": {"id": "agent", "capabilities": [*PROPOSER]}}).encode()
    )
    proposal = agent.propose("worker", "tools/call", ADD)
    clock.now += 300
    assert agent.proposals == [] and proposal.status == "expired"
    with pytest.raises(PeerTimeout, match="nobody has done what was proposed"):
        await agent.outcome(proposal)


def test_requests_without_end_for_one_proposal_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proposals, "MAX_FULFILMENTS", 3)
    tracked = Proposals(clock=Clock())
    tracked.add(proposed())
    for number in range(5):
        tracked.record_fulfilment(request(id=f"f{number}"))
    assert list(tracked._fulfilments) == ["f2", "f3", "f4"]  # pyright: ignore[reportPrivateUsage]


def test_who_proposes_without_end_loses_its_own_oldest():
    tracked = Proposals(clock=Clock())
    mine = tracked.add(proposed("mine", "ann"))
    for number in range(MAX_PROPOSALS_PER_PROPOSER + 5):
        tracked.add(proposed(f"p{number}", "mallory"))
    assert tracked.get("mine") is mine and tracked.get("p4") is None and tracked.get("p5") is not None


def test_who_proposes_much_loses_its_own_oldest():
    tracked = Proposals(clock=Clock())
    mine = tracked.add(proposed("mine", "ann"))
    for number in range(9):
        tracked.add(proposed(f"p{number}", "mallory", text="x" * (MAX_BYTES_PER_PROPOSER // 8)))
    assert tracked.get("mine") is mine and tracked.get("p1") is None and tracked.get("p8") is not None


def test_an_id_that_is_known_is_not_taken_again():
    tracked = Proposals(clock=Clock())
    assert tracked.add(proposed()) is not None and tracked.add(proposed(sender="mallory")) is None


# -- in a topic


@pytest.mark.req("MCPX-3.2", "MCPX-3.2.1a", "MCPX-3.2.1b", "MCPX-3.2.1c", "MCPX-6.2r")
async def test_who_may_not_ask_proposes_and_both_learn_the_outcome():
    async with gateway(worker=FULL, agent=PROPOSER, human=FULL) as there, joined(calculator(), there):
        async with join_topic(there.url, token="agent") as agent, join_topic(there.url, token="human") as human:
            with pytest.raises(NotCapable, match="tools/call:add"):
                await agent.call("worker", "add", a=1, b=2)
            proposal = agent.propose("worker", "tools/call", ADD)
            await until(lambda: bool(human.proposals))
            result = await human.fulfil(human.proposals[0])
            assert result["content"][0]["text"] == "3"
            assert await agent.outcome(proposal) == result
            assert (proposal.status, proposal.fulfiller) == ("completed", "human")
        by_kind = {heard["kind"].partition(":")[0]: heard for heard in there.heard}
        proposed, asked, answered = (by_kind[f"mcp/{kind}"] for kind in ("proposal", "request", "response"))
        assert "correlation_id" not in proposed and set(proposed["payload"]) == {"method", "params"}
        assert asked["correlation_id"] == proposed["id"] and asked["kind"] == "mcp/request:tools/call:add"
        assert answered["correlation_id"] == asked["id"] and answered["to"] == ["human", "agent"]


async def test_what_may_not_be_asked_is_proposed_without_a_word_of_the_caller():
    server = Server("orchestrator", "1")

    @server.on_proposal
    def decide(proposal: Proposal, participant: Participant) -> bool | None:
        return proposal.context == "add"

    async with gateway(worker=FULL, agent=PROPOSER, boss=FULL) as there, joined(calculator(), there):
        async with joined(server, there, "boss"), join_topic(there.url, token="agent") as agent:
            result = await agent.perform("worker", "tools/call", ADD)
            assert result["content"][0]["text"] == "3"
            assert await agent.call_tool("worker", "add", a=2, b=2) == "4"  # a type it may not ask for


async def test_a_server_may_fulfil_what_it_is_itself_to_do():
    server = calculator()

    @server.on_proposal
    async def decide(proposal: Proposal, participant: Participant) -> bool:
        return proposal.target == participant.id

    async with gateway(worker=FULL, agent=PROPOSER) as there, joined(server, there):
        async with join_topic(there.url, token="agent") as agent:
            result = await agent.perform("worker", "tools/call", ADD)
            assert result["content"][0]["text"] == "3"


async def test_an_orchestrator_declines_and_says_so():
    server, seen = Server("orchestrator", "1"), list[str]()

    @server.on_proposal
    async def pass_on(proposal: Proposal, participant: Participant) -> None:
        seen.append(f"{proposal.proposer} wants {proposal.context} of {proposal.target}")

    @server.on_proposal
    async def refuse(proposal: Proposal, participant: Participant) -> bool:
        return False

    async with gateway(agent=PROPOSER, boss=FULL) as there, joined(server, there, "boss"):
        async with stranger(there, "agent") as agent:
            id = await agent.send("mcp/proposal:tools/call:add", {"method": "tools/call", "params": ADD}, to=["worker"])
            said = await agent.answer(id)
            assert (said["kind"], said["payload"], said["to"]) == ("mcp/reject", {}, ["agent"])
    assert seen == ["agent wants add of worker"]


async def test_a_server_fulfils_a_proposal_without_a_target_by_its_own_tool():
    server = calculator()

    @server.on_proposal
    async def approve(proposal: Proposal, participant: Participant) -> bool:
        return True

    async with gateway(agent=PROPOSER, boss=FULL, ann=FULL) as there, joined(server, there, "boss"):
        async with join_topic(there.url, token="ann"), join_topic(there.url, token="agent") as agent:
            proposal = agent.propose((), "tools/call", ADD)
            assert (await agent.outcome(proposal, within=20))["content"][0]["text"] == "3"


async def test_only_what_is_pending_is_fulfilled():
    async with gateway(worker=FULL, agent=PROPOSER, human=FULL) as there, joined(calculator(), there):
        async with join_topic(there.url, token="agent") as agent, join_topic(there.url, token="human") as human:
            proposal = agent.propose("worker", "tools/call", ADD)
            await until(lambda: bool(human.proposals))
            found = human.proposals[0]
            await human.fulfil(found)
            with pytest.raises(ProposalNotPending, match="completed"):
                await human.fulfil(found)
            with pytest.raises(ProposalNotPending):
                human.decline(found)
            with pytest.raises(NotCapable):
                agent.notify("worker", "notifications/cancelled")
            agent.propose((), "ping")
            await until(lambda: bool(human.proposals))
            with pytest.raises(UsageError, match="to="):
                await human.fulfil(human.proposals[0])
            assert await human.fulfil(human.proposals[0], to="worker") == {}
            assert proposal.status == "completed"


async def test_nobody_fulfils_and_the_wait_ends():
    async with gateway(agent=PROPOSER) as there, join_topic(there.url, token="agent") as agent:
        proposal = agent.propose("worker", "tools/call", ADD)
        with pytest.raises(PeerTimeout):
            await agent.outcome(proposal, within=0.01)


async def test_a_proposal_that_fails_raises_for_both():
    async with gateway(worker=FULL, agent=PROPOSER, human=FULL) as there, joined(calculator(), there):
        async with join_topic(there.url, token="agent") as agent, join_topic(there.url, token="human") as human:
            proposal = agent.propose("worker", "tools/call", call("no_such_tool"))
            await until(lambda: bool(human.proposals))
            with pytest.raises(PeerError, match="no_such_tool"):
                await human.fulfil(human.proposals[0])
            with pytest.raises(PeerError, match="no_such_tool"):
                await agent.outcome(proposal)


async def test_the_proposer_is_told_only_of_what_it_proposed():
    async with gateway(worker=FULL, agent=PROPOSER, human=FULL) as there, joined(calculator(), there):
        async with stranger(there, "agent") as agent, stranger(there, "human") as human:
            id = await agent.send("mcp/proposal:tools/call:add", {"method": "tools/call", "params": ADD}, to=["worker"])
            await human.until(lambda envelope: envelope["id"] == id)
            other = await human.ask("worker", "tools/list", correlation_id=id)
            assert (await human.answer(other))["to"] == ["human"]
