"""What drivers of FastMCP's client share: a transport by the plan, and answers to a server's questions."""

from __future__ import annotations

from typing import Any

from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from telling import GUEST, PLAN


async def elicited(message: str, response_type: Any, params: Any, context: Any) -> Any:
    # Not an instance: that would answer null to the fields that are left out.
    return {name: value for name, value in GUEST.items() if name in response_type.__annotations__}


async def sampled(messages: Any, params: Any, context: Any) -> str:
    return "short"


def transport(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        return StreamableHttpTransport(url or PLAN["url"], headers=headers or PLAN["headers"])
    if PLAN["transport"] == "sse":
        return SSETransport(PLAN["sse"])
    command, *args = PLAN["command"]
    return StdioTransport(command=command, args=args)
