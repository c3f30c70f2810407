"""Hosts that speak MGP, and scripted servers for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from defserve.client import Client, Mgp, RemoteServer
from tests.at_address import at_address
from tests.client.mgp import guarded
from tests.client.pretend import PretendServer
from tests.forking.spawning import spawn

ERAS = ["2025-11-25", "2026-07-28"]
KEY = "K" * 43
SCRIPT = Path(guarded.__file__)
DONE = {"content": [{"type": "text", "text": "done"}]}


def trusting(**options: Any) -> Mgp:
    """A host that lets everything pass that a person could let pass."""
    return Mgp(**{"approval": "auto_approve", "confirm": lambda *_: True, "audit": [], **options})


@asynccontextmanager
async def connected(road: str, version: str | None = None, **options: Any) -> AsyncGenerator[Client]:
    if road == "memory":
        async with guarded.server.connect(version, **options) as client:
            yield client
    elif road == "stdio":
        link = await spawn(SCRIPT)
        async with Client(link, version=version, timeout=20, **options) as client:
            yield client
    else:
        # A stranger's yes counts for nothing, so this client shows who it is.
        async with at_address(guarded.server, key=KEY) as url:
            async with RemoteServer(url, token=KEY).connect(version, **options) as client:
                yield client


def mgp_block(**more: Any) -> dict[str, Any]:
    return {"version": "0.2.0", "extensions": ["security"], "server_id": "pretend.mgp", **more}


def speaking(block: dict[str, Any], replies: dict[str, Any] | None = None) -> PretendServer:
    """A server that answers `initialize` with this block."""

    def initialize(request: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}, "mgp": block},
            "serverInfo": {"name": "pretend", "version": "1"},
        }

    return PretendServer({"initialize": initialize, "tools/list": {"tools": []}, **(replies or {})})


def plain(*tools: dict[str, Any]) -> PretendServer:
    return PretendServer({"tools/list": {"tools": list(tools)}, "tools/call": DONE})


def tool(name: str, *arguments: str, **more: Any) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}, **more}


class Trail:
    """A sink that keeps what it is given."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def append(self, event: Any, *, durable: bool = False) -> None:
        self.events.append(event)


def risky(risk: str, required: bool | None = None, *permissions: str) -> dict[str, Any]:
    block: dict[str, Any] = {"risk_level": risk, "permissions_required": list(permissions)}
    return tool("act", "x", security=block | ({} if required is None else {"confirmation_required": required}))
