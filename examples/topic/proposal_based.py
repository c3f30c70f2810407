"""MCPx §9.1: an agent that may only propose, a person who has it done, a worker that does it and knows of nothing.

`python examples/topic/proposal_based.py`
"""

from _stage import Stage, play, present

from defserve.topics import NotCapable, Proposal

SUM = {"name": "add", "arguments": {"a": 20, "b": 22}}


async def proposal_based(stage: Stage) -> None:
    async with stage.enter("human") as human, stage.enter("agent") as agent:
        await present(human, "worker", "agent")
        print("agent may send", ", ".join(agent.capabilities.patterns))

        try:
            await agent.request("worker", "tools/call", SUM)
        except NotCapable as refusal:
            print("agent asks the worker:", refusal.message)

        heard = human.heard()
        proposal = agent.propose("worker", "tools/call", SUM)
        async for event in heard:
            if isinstance(event, Proposal):
                print(f"human sees that {event.proposer} proposes {event.context} to {event.target}: {event.arguments}")
                await human.fulfil(event)
                break

        result = await agent.outcome(proposal)
        print(f"agent hears of the {proposal.status} proposal: {result['content'][0]['text']}")


if __name__ == "__main__":
    play(proposal_based)
