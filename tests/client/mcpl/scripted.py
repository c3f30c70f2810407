"""A scripted server that speaks MCPL, to a host under test."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from defserve.client import Client, Mcpl
from defserve.client.mcpl.peer import McplPeer
from tests.client.pretend import STATELESS, PretendServer
from tests.protocols.mcpl.draft_05 import check_answered_by_host, check_sent_by_host

Json = dict[str, Any]

SETS: Json = {
    "memory.retrieval": {"description": "Retrieve relevant memories", "uses": ["contextHooks.beforeInference"]},
    "memory.extraction": {"description": "Learn from conversations", "uses": ["contextHooks.afterInference"]},
    "memory.consolidation": {"description": "Summarize memories using AI", "uses": ["inferenceRequest"]},
    "memory.proactive": {"description": "Surface reminders proactively", "uses": ["pushEvents"]},
}

MEMORY: Json = {
    "version": "0.4",
    "contextHooks": {"beforeInference": True, "afterInference": {"blocking": False}},
    "inferenceRequest": {"streaming": True},
    "pushEvents": True,
    "featureSets": SETS,
}


class Trail:
    """An audit sink that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[Json] = []

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        self.records.append(dict(event))

    def of(self, method: str) -> list[Json]:
        return [record for record in self.records if record["method"] == method]


class LiveServer(PretendServer):
    """One that can also ask."""

    _questions = 0
    # Every message of a host to a server of 0.5 is held against the schemas of that draft.
    is_05 = False

    async def send(self, message: bytes) -> None:
        found = json.loads(message)
        if self.is_05 and "method" in found:
            check_sent_by_host(found["method"], found.get("params", {}))
        await super().send(message)

    async def ask(self, method: str, params: Any) -> Json:
        """The whole reply of the host."""
        self._questions += 1
        id = f"s{self._questions}"
        self.say({"id": id, "method": method, "params": params})
        reply = await self.told(lambda message: message.get("id") == id)
        if self.is_05:
            check_answered_by_host(method, reply)
        return reply

    async def push(self, event: str = "evt_1", feature_set: str = "memory.proactive", **more: Any) -> Json:
        payload = {"content": [{"type": "text", "text": "Ring ring"}]}
        params = {"featureSet": feature_set, "eventId": event, "timestamp": "2026-01-23T14:00:00Z", "payload": payload}
        return await self.ask("push/event", {**params, **more})


def live_server(block: Json | None = MEMORY, replies: Json | None = None, name: str = "memory") -> LiveServer:
    """A server of the handshake era; a plain one where `block` is None."""

    def initialize(request: Json) -> Json:
        capabilities: Json = {"tools": {}}
        if block is not None:
            capabilities["experimental"] = {"mcpl": block}
        version = request["params"]["protocolVersion"]
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": name, "version": "1"}}

    server = LiveServer({"initialize": initialize, **(replies or {})})
    server.is_05 = block is not None and block.get("version") == "0.5"
    return server


def stateless_server(block: Json = MEMORY, replies: Json | None = None) -> LiveServer:
    discovered = STATELESS["server/discover"]
    described = {**discovered, "capabilities": {"tools": {}, "experimental": {"mcpl": block}}}
    server = LiveServer({**STATELESS, "server/discover": described, **(replies or {})})
    server.is_05 = block.get("version") == "0.5"
    return server


@asynccontextmanager
async def hosting(server: LiveServer, mcpl: Mcpl | None = None, **options: Any) -> AsyncGenerator[McplPeer]:
    """`client.mcpl` of a client of this server."""
    version = "2026-07-28" if "server/discover" in server.replies else "2025-11-25"
    async with Client(server, version=version, mcpl=mcpl or Mcpl(audit=[]), **options) as client:
        assert client.mcpl is not None
        yield client.mcpl
