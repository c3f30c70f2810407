"""MCPx §9.4: an agent proposes, a person directs an orchestrator, and in time the orchestrator knows by itself.

The person is scripted: sums of small numbers are fine, others are not. `python examples/topic/delegated_fulfilment.py`
"""

import asyncio
from collections.abc import AsyncIterator

from _stage import HERE, Stage, play, present

from defserve.client import TopicClient
from defserve.errors import PeerError
from defserve.topics import Chat

SMALL = 100


async def delegated_fulfilment(stage: Stage) -> None:
    async with (
        stage.server(HERE / "orchestrator.py", "orchestrator"),
        stage.enter("human") as human,
        stage.enter("agent") as agent,
    ):
        await asyncio.gather(present(agent, "worker", "human", "orchestrator"), present(human, "orchestrator"))
        person = asyncio.create_task(decide(human, human.iter_chat()))
        for a, b in ((1, 50), (20, 22), (40, 1), (30, 30), (1000, 1)):
            await propose(agent, a, b)
        person.cancel()


async def propose(agent: TopicClient, a: int, b: int) -> None:
    """One proposal, until something has become of it."""
    proposal = agent.propose("worker", "tools/call", {"name": "add", "arguments": {"a": a, "b": b}})
    try:
        result = await agent.outcome(proposal, within=20)
        print(f"agent proposed {a} + {b}: {result['content'][0]['text']}")
    except PeerError as error:
        print(f"agent proposed {a} + {b}: {error}")


async def decide(human: TopicClient, said: AsyncIterator[Chat]) -> None:
    """What a person does all day."""
    async for chat in said:
        sign, id, *rest = chat.text.split(" ", 2)
        if sign == "!":
            print(f"human reads: {rest[0]}")
        if sign == "?":
            numbers = [int(word.strip("{},")) for word in rest[0].split() if word.strip("{},").isdecimal()]
            word = "yes" if all(number < SMALL for number in numbers) else "no"
            print(f"human is asked: {rest[0]}, and says {word}")
            human.chat(f"{word} {id}", chat.sender, about=id)


if __name__ == "__main__":
    play(delegated_fulfilment)
