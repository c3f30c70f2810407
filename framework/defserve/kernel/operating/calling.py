"""Operators' tools, called for the user at the control socket: under the rules of every caller, and audited."""

from __future__ import annotations

from typing import Any

from defserve.errors import PeerError, UsageError
from defserve.server.server import Server


async def operate(server: Server, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a tool answers the local user. Raises UsageError with the text of its refusal."""
    async with server.connect() as client:
        try:
            found = await client.call_raw(tool, arguments)
        except PeerError as error:
            raise UsageError(error.message) from None
    if found.get("isError"):
        raise UsageError(str(found["content"][0].get("text")))
    return found["structuredContent"]
