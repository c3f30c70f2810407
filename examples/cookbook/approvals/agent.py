"""An agent that may only propose. It waits until a person has its proposal carried out, or says no."""

import asyncio
import os
import sys
from pathlib import Path

from defserve import ToolError
from defserve.client import join_topic
from defserve.errors import PeerError


async def settle(url: str, token: str, to: str, euros: float) -> str:
    """Have somebody paid, and say what came of it."""
    async with join_topic(url, token=token) as me:
        try:
            return await me.call_tool("payments", "pay", to=to, euros=euros)
        except (PeerError, ToolError) as error:
            return f"not paid: {error}"


if __name__ == "__main__":
    topic = os.environ.get("TOPIC_URL", "ws://127.0.0.1:8100/ws?topic=office")
    print(asyncio.run(settle(topic, Path("agent.token").read_text().strip(), sys.argv[1], float(sys.argv[2]))))
