"""A raw peer that keeps every message the server sends and answers every question it asks."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from defserve import Server
from defserve.serve.lifespans import connect_in_memory
from tests.raw import PREFIX, STATELESS, Json, Raw

OFFER: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}

# What the client says when it is asked; forms are filled in by the type of each field.
SAMPLE = {"role": "assistant", "content": {"type": "text", "text": "short"}, "model": "m", "stopReason": "endTurn"}
FILLED = {"string": "x", "integer": 1, "number": 1.0, "boolean": True}


class Reply(NamedTuple):
    """One message of the server's that answers `method`."""

    method: str
    message: Json


class Recorder(Raw):
    def __init__(self, link: Any, version: str, capabilities: Mapping[str, Any]) -> None:
        super().__init__(link, version, capabilities)
        self.replies: list[Reply] = []
        self.requests: list[Json] = []
        self.notifications: list[Json] = []
        self._methods: dict[int, str] = {}

    def with_meta(self, params: Mapping[str, Any] | None) -> Json:
        dressed = super().with_meta(params)
        if self.version == STATELESS:
            dressed["_meta"][PREFIX + "logLevel"] = "debug"
        return dressed

    async def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        id = await super().begin(method, params)
        self._methods[id] = method
        return id

    async def reply_to(self, id: int) -> Json:
        while True:
            message = await self.receive()
            if message.get("id") == id and "method" not in message:
                return message

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """The reply; one that wants input is given it and followed up."""
        reply = await self.ask(method, params)
        wanting = reply.get("result", {})
        if wanting.get("resultType") != "input_required":
            return reply
        answers = {key: answer(asked) for key, asked in wanting["inputRequests"].items()}
        more = {"inputResponses": answers, "requestState": wanting["requestState"]}
        return await self.request(method, {**(params or {}), **more})

    async def receive(self) -> Json:
        """The next message, kept by its kind."""
        message: Json = json.loads(await self.link.receive())
        if "method" not in message:
            self.replies.append(Reply(self._methods.get(message["id"], ""), message))
        elif "id" in message:
            self.requests.append(message)
            await self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)})
        else:
            self.notifications.append(message)
        return message


def answer(request: Mapping[str, Any]) -> Json:
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
async def recording(server: Server, version: str, capabilities: Mapping[str, Any] = OFFER) -> AsyncGenerator[Recorder]:
    """A recorder whose conversation is open."""
    async with connect_in_memory(server.composition) as link:
        recorder = Recorder(link, version, capabilities)
        await recorder.open()
        yield recorder
