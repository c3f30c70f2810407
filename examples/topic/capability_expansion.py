"""MCPx §9.2: an agent works well for a while, and an administrator lets it do more.

`python examples/topic/capability_expansion.py`
"""

import asyncio
import json
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from _stage import Stage, play, present

from defserve.topics import Presence, Welcome


async def capability_expansion(stage: Stage) -> None:
    async with stage.enter("human") as human, stage.enter("agent") as agent:
        await present(agent, "worker", "human")
        watching = asyncio.create_task(notice(human.heard(), Presence))
        welcomed = asyncio.create_task(notice(agent.heard(), Welcome))

        change = await asyncio.to_thread(promote, stage, "agent", ["mcp/request:tools/*"])
        await asyncio.gather(watching, welcomed)
        print("administrator:", ", ".join(change["oldCapabilities"]), "→", ", ".join(change["newCapabilities"]))
        print("agent was welcomed again and may send", ", ".join(agent.capabilities.patterns))
        print("human sees that it may send", ", ".join(human.participants["agent"].patterns))
        print("agent asks the worker itself:", await agent.call_tool("worker", "add", a=20, b=22))


def promote(stage: Stage, participant: str, add: list[str]) -> dict[str, list[str]]:
    """`POST /admin/participants/{id}/capabilities`, as any HTTP client can."""
    url = f"http://{urlsplit(stage.gateway).netloc}/admin/participants/{participant}/capabilities"
    headers = {"Authorization": f"Bearer {stage.token('administrator')}"}
    with urlopen(Request(url, json.dumps({"add": add}).encode(), headers), timeout=10) as response:
        return json.load(response)


async def notice(heard, kind) -> None:
    """Until something of a kind happens."""
    async for event in heard:
        if isinstance(event, kind):
            return


if __name__ == "__main__":
    play(capability_expansion)
