"""MCPx §9.3: one topic, four profiles. What each may send is in gateway.toml; what it may not is refused.

`python examples/topic/mixed_environment.py`
"""

import asyncio

from _stage import Stage, play, present

from defserve.client import TopicClient
from defserve.topics import NotCapable

SUM = {"name": "add", "arguments": {"a": 2, "b": 3}}


async def mixed_environment(stage: Stage) -> None:
    async with stage.enter("human") as human, stage.enter("agent") as agent, stage.enter("monitor") as monitor:
        await asyncio.gather(*(present(each, "worker") for each in (human, agent, monitor)))
        await present(human, "agent", "monitor")
        for name, held in sorted(human.participants.items()):
            print(f"{name} may send {', '.join(held.patterns)}")

        print("human calls a tool:", await human.call_tool("worker", "add", a=2, b=3))
        print("monitor lists tools:", ", ".join(tool["name"] for tool in await monitor.tools("worker")))
        await attempt(monitor, "calls a tool")
        await attempt(agent, "calls a tool")
        print("agent proposes it instead:", agent.propose("worker", "tools/call", SUM).status)


async def attempt(who: TopicClient, what: str) -> None:
    try:
        await who.request("worker", "tools/call", SUM)
    except NotCapable as refusal:
        print(f"{who.id} {what}: {refusal.message}")


if __name__ == "__main__":
    play(mixed_environment)
