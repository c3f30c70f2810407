"""Proposals that are rejected and withdrawn, as MEW v0.4 has it: the frames, and who may decide."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.client.topic_client import join_topic
from defserve.errors import PeerError, PeerTimeout, UsageError
from defserve.protocols.mcpx.participant import ProposalNotPending
from defserve.protocols.mcpx.proposals import MAX_REASON_LENGTH, MAX_REJECTIONS, Proposal, Proposals
from defserve.protocols.mcpx.topic import ProposalRejected, ProposalWithdrawn, TopicView
from tests.protocols.mcpx.gateways import FULL, Stranger, gateway, stranger
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PROPOSER = ("mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "chat")
WORKER = ("mcp/response:*", "mcp/reject", "mcp/withdraw", "chat")
ADD: dict[str, Any] = {"name": "add", "arguments": {"a": 1, "b": 2}}
PEOPLE: dict[str, Any] = {"agent": PROPOSER, "worker": WORKER, "helper": WORKER, "human": FULL}


async def propose(agent: Stranger, to: str) -> str:
    return await agent.send("mcp/proposal:tools/call:add", {"method": "tools/call", "params": ADD}, to=[to])


async def decide(by: Stranger, kind: str, about: str, **payload: Any) -> None:
    await by.send(kind, payload, correlation_id=about)


# -- the frames we send


async def test_a_decline_is_a_reject_to_the_proposer():
    async with gateway(**PEOPLE) as there, stranger(there, "agent") as agent:
        async with join_topic(there.url, token="human") as human:
            id = await propose(agent, "worker")
            await until(lambda: bool(human.proposals))
            human.decline(human.proposals[0], "unsafe")
            frame = await agent.answer(id)
    assert frame | {"id": "", "ts": ""} == {
        "protocol": "mcpx/v0.1", "id": "", "ts": "", "from": "human", "to": ["agent"],
        "kind": "mcp/reject", "correlation_id": id, "payload": {"reason": "unsafe"},
    }  # fmt: skip


async def test_a_withdrawal_is_told_to_everyone():
    async with gateway(**PEOPLE) as there, stranger(there, "human") as human:
        async with join_topic(there.url, token="agent") as agent:
            proposal = agent.propose("worker", "tools/call", ADD)
            waiting = asyncio.create_task(agent.outcome(proposal))
            await human.until(lambda envelope: envelope["id"] == proposal.id)
            agent.withdraw(proposal)
            frame = await human.answer(proposal.id)
            with pytest.raises(PeerError, match="withdrawn: no_longer_needed"):
                await waiting
            with pytest.raises(ProposalNotPending, match="withdrawn"):
                agent.withdraw(proposal)
    assert (frame["kind"], frame["payload"]) == ("mcp/withdraw", {"reason": "no_longer_needed"})
    assert frame["correlation_id"] == proposal.id and "to" not in frame


async def test_who_gives_up_the_wait_for_an_outcome_leaves_it_to_others():
    async with gateway(**PEOPLE) as there, join_topic(there.url, token="agent") as agent:
        proposal = agent.propose("worker", "tools/call", ADD)
        waiting = asyncio.create_task(agent.outcome(proposal))
        with pytest.raises(PeerTimeout):
            await agent.outcome(proposal, within=0.01)
        agent.withdraw(proposal)
        async with asyncio.timeout(10):
            with pytest.raises(PeerError, match="withdrawn"):
                await waiting


async def test_who_may_neither_reject_nor_withdraw_says_it_in_chat():
    async with gateway(agent=("mcp/proposal:*", "chat"), bob=("chat",)) as there:
        async with join_topic(there.url, token="agent") as agent, join_topic(there.url, token="bob") as bob:
            said, heard = agent.iter_chat(), bob.iter_chat()
            proposal = agent.propose("bob", "tools/call", ADD)
            await until(lambda: bool(bob.proposals))
            bob.decline(bob.proposals[0], "busy")
            assert ((told := await anext(said)).text, told.about) == ("declined: busy", proposal.id)
            agent.withdraw(proposal)
            assert (await anext(heard)).text == "withdrawn: no_longer_needed"


# -- the frames we understand


async def test_a_proposer_learns_of_a_rejection_at_once():
    async with gateway(**PEOPLE) as there, stranger(there, "human") as human:
        async with join_topic(there.url, token="agent") as agent:
            waiting = asyncio.create_task(agent.perform("human", "tools/call", ADD))
            proposal = await human.until(lambda envelope: envelope["kind"].startswith("mcp/proposal"))
            await decide(human, "mcp/reject", proposal["id"], reason="unsafe")
            async with asyncio.timeout(10):
                with pytest.raises(PeerError, match="declined: unsafe") as caught:
                    await waiting
            assert caught.value.data == {"status": "declined", "reason": "unsafe", "rejections": {"human": "unsafe"}}


async def test_a_rejection_by_one_who_is_not_asked_and_could_not_do_it_ends_nothing():
    async with gateway(**PEOPLE) as there, join_topic(there.url, token="agent") as agent:
        async with stranger(there, "helper") as helper, stranger(there, "worker") as worker:
            await until(lambda: {"helper", "worker"} <= set(agent.participants))
            heard = agent.heard()
            proposal = agent.propose("worker", "tools/call", ADD)
            await decide(helper, "mcp/reject", proposal.id)
            first = await anext(heard)
            assert isinstance(first, ProposalRejected) and not first.final and proposal.status == "pending"
            await decide(worker, "mcp/reject", proposal.id, reason="busy")
            second = await anext(heard)
            assert isinstance(second, ProposalRejected) and second.final and second.reason == "busy"
            assert (proposal.status, proposal.rejections) == ("declined", {"helper": "", "worker": "busy"})


async def test_of_several_who_are_asked_all_have_to_reject():
    async with gateway(**PEOPLE) as there, join_topic(there.url, token="agent") as agent:
        async with stranger(there, "helper") as helper, stranger(there, "worker") as worker:
            await until(lambda: {"helper", "worker"} <= set(agent.participants))
            heard = agent.heard()
            proposal = agent.propose(("worker", "helper"), "tools/call", ADD)
            for by, status in ((helper, "pending"), (helper, "pending"), (worker, "declined")):
                await decide(by, "mcp/reject", proposal.id)
                assert isinstance(await anext(heard), ProposalRejected) and proposal.status == status


async def test_nobody_withdraws_the_proposal_of_another():
    async with gateway(**PEOPLE) as there, stranger(there, "agent") as agent:
        async with join_topic(there.url, token="human") as human, stranger(there, "helper") as helper:
            await until(lambda: "helper" in human.participants)
            id = await propose(agent, "worker")
            await until(lambda: bool(human.proposals))
            proposal, heard = human.proposals[0], human.heard()
            with pytest.raises(UsageError, match="agent made this proposal"):
                human.withdraw(proposal)
            await decide(helper, "mcp/withdraw", id)
            await until(lambda: human.topic.misbehaviour.get("helper") == 1)
            assert proposal.status == "pending"
            await decide(agent, "mcp/withdraw", id, reason="other")
            while not isinstance(told := await anext(heard), ProposalWithdrawn):
                pass
            assert (told.reason, proposal.status, human.proposals) == ("other", "withdrawn", [])
            with pytest.raises(ProposalNotPending, match="withdrawn"):
                await human.fulfil(proposal)


@for_each_row(
    ("kind", "payload", "is_about_it"),
    [
        ("mcp/reject", {"reason": "x"}, False),
        ("mcp/withdraw", {"reason": "x"}, False),
        ("mcp/reject", {"reason": 3}, True),
        ("mcp/reject:tools/call:other", {}, True),
        ("mcp/withdraw:prompts/get", {}, True),
    ],
)
async def test_a_decision_that_breaks_a_rule_is_counted_and_changes_nothing(
    kind: str, payload: dict[str, Any], is_about_it: bool
):
    async with gateway(agent=FULL, human=FULL) as there, stranger(there, "agent") as agent:
        async with join_topic(there.url, token="human") as human:
            id = await propose(agent, "human")
            await agent.send(kind, payload, **({"correlation_id": id} if is_about_it else {}))
            await until(lambda: human.topic.misbehaviour.get("agent") == 1)
            assert [proposal.status for proposal in human.proposals] == ["pending"]


def test_what_is_kept_of_rejections_is_bounded():
    known = Proposals()
    proposal = Proposal("p", "agent", (), "tools/call", ADD, created=0.0)
    for number in range(2 * MAX_REJECTIONS):
        known.reject(proposal, f"m{number}", "x" * 10_000, is_approver=False)
    assert len(proposal.rejections) == MAX_REJECTIONS
    assert max(map(len, proposal.rejections.values())) == MAX_REASON_LENGTH
    assert known.reject(proposal, "human", "y" * 10_000, is_approver=True) and len(proposal.reason) == MAX_REASON_LENGTH


def test_a_decision_about_a_proposal_that_we_never_saw_is_nothing():
    view = TopicView()
    view.me = "me"
    frame = b'{"protocol":"mcpx/v0.1","id":"1","from":"a","kind":"mcp/reject","correlation_id":"p","payload":{}}'
    assert view.read_frame(frame) is None and view.misbehaviour == {}
