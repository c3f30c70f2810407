"""A raw connection to a server in memory: sends what a test says, keeps every message the server sends."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from defserve import Server
from defserve.host import Link
from defserve.runner.memory import serving

STATELESS = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}

# What the client says when it is asked; forms are filled in by the type of each field.
SAMPLE = {"role": "assistant", "content": {"type": "text", "text": "short"}, "model": "m", "stopReason": "endTurn"}
FILLED = {"string": "x", "integer": 1, "number": 1.0, "boolean": True}


class Reply(NamedTuple):
    """One message of the server's that answers `method`."""

    method: str
    message: dict[str, Any]


class Recorder:
    """One client of one version, in either era. Questions of the server's are answered on the way."""

    def __init__(self, link: Link, version: str, capabilities: Mapping[str, Any] = CAPABILITIES) -> None:
        self.link, self.version, self.capabilities = link, version, dict(capabilities)
        self.replies: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.notifications: list[dict[str, Any]] = []
        self._methods: dict[int, str] = {}

    @property
    def stateless(self) -> bool:
        return self.version == STATELESS

    async def open(self) -> dict[str, Any]:
        """`initialize` and `initialized`, or `server/discover`."""
        if self.stateless:
            return await self.request("server/discover")
        info = {"name": "recorder", "version": "1"}
        offer = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": info}
        opened = await self.request("initialize", offer)
        await self.send({"method": "notifications/initialized"})
        return opened

    async def request(self, method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        """The reply, after everything that came before it was kept. Input-required results are followed up."""
        id = await self.begin(method, params, **meta)
        reply = await self.until(id)
        wanting = reply.get("result", {})
        if wanting.get("resultType") != "input_required":
            return reply
        answers = {key: answer(asked) for key, asked in wanting["inputRequests"].items()}
        more = {"inputResponses": answers, "requestState": wanting["requestState"]}
        return await self.request(method, {**(params or {}), **more}, **meta)

    async def begin(self, method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> int:
        """Send a request without waiting; its id."""
        id = len(self._methods) + 1
        self._methods[id] = method
        if self.stateless:
            envelope = {"protocolVersion": self.version, "clientCapabilities": self.capabilities, "logLevel": "debug"}
            meta = {**{PREFIX + key: value for key, value in envelope.items()}, **meta}
        message: dict[str, Any] = {"id": id, "method": method, "params": {**(params or {})}}
        if meta:
            message["params"]["_meta"] = meta
        await self.send(message)
        return id

    async def send(self, message: Mapping[str, Any]) -> None:
        await self.link.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def until(self, id: int) -> dict[str, Any]:
        """Keep what comes until the reply to `id` has come."""
        while True:
            message = await self.receive()
            if message.get("id") == id and "method" not in message:
                return message

    async def receive(self) -> dict[str, Any]:
        raw = await self.link.receive()
        assert raw is not None, "the server has gone"
        message: dict[str, Any] = json.loads(raw)
        if "method" not in message:
            self.replies.append(Reply(self._methods.get(message.get("id", 0), ""), message))
        elif "id" in message:
            self.requests.append(message)
            await self.send({"id": message["id"], "result": answer(message)})
        else:
            self.notifications.append(message)
        return message


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The result of one question of the server's."""
    if request["method"] == "sampling/createMessage":
        return SAMPLE
    if request["method"] == "roots/list":
        return {"roots": [{"uri": "file:///home"}]}
    fields = request["params"].get("requestedSchema", {}).get("properties", {})
    content = {name: _filled(field) for name, field in fields.items()}
    return {"action": "accept", "content": content} if content else {"action": "accept"}


def _filled(field: Mapping[str, Any]) -> Any:
    choices = field.get("enum") or [option["const"] for option in field.get("oneOf", ())]
    return choices[0] if choices else FILLED[field["type"]]


@asynccontextmanager
async def recording(
    server: Server, version: str, capabilities: Mapping[str, Any] = CAPABILITIES
) -> AsyncGenerator[Recorder]:
    async with serving(server.composition) as link:
        yield Recorder(link, version, capabilities)
