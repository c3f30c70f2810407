"""A peer that speaks raw messages to a server in memory, in any protocol version: nothing is hidden or tidied up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from defserve import Server
from defserve.serve.lifespans import connect_in_memory
from tests.waiting import until as until

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = "2026-07-28"
VERSIONS = (*HANDSHAKE, STATELESS)
ERAS = (HANDSHAKE[-1], STATELESS)

PREFIX = "io.modelcontextprotocol/"

Json = dict[str, Any]


class Raw:
    """Sends dicts and gives back dicts. Messages that are not the awaited reply gather in `heard`."""

    def __init__(self, link: Any, version: str, capabilities: Mapping[str, Any]) -> None:
        self.link, self.version, self.capabilities = link, version, dict(capabilities)
        self.heard: list[Json] = []
        self.opening: Json = {}
        self._last_id = 0

    async def open(self) -> None:
        """Shake hands, or ask for a description where there is no handshake."""
        if self.version == STATELESS:
            self.opening = (await self.ask("server/discover"))["result"]
            return
        about = {"name": "raw", "version": "1"}
        params = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": about}
        self.opening = (await self.ask("initialize", params))["result"]
        await self.tell("notifications/initialized")

    def with_meta(self, params: Mapping[str, Any] | None) -> Json:
        """The params with what this version wants in every request."""
        given = dict(params or {})
        if self.version != STATELESS:
            return given
        envelope = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": self.capabilities}
        return {**given, "_meta": {**envelope, **given.get("_meta", {})}}

    async def send(self, message: Any) -> None:
        await self.link.send(message if isinstance(message, bytes) else json.dumps(message).encode())

    async def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request without waiting; its id."""
        self._last_id += 1
        await self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": self.with_meta(params)})
        return self._last_id

    async def reply_to(self, id: int) -> Json:
        for message in self.heard:
            if message.get("id") == id and "method" not in message:
                self.heard.remove(message)
                return message
        while True:
            message = json.loads(await self.link.receive())
            if message.get("id") == id and "method" not in message:
                return message
            self.heard.append(message)

    async def hear(self) -> Json:
        """The next message, whatever it is."""
        return self.heard.pop(0) if self.heard else json.loads(await self.link.receive())

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """The whole reply to a request."""
        return await self.reply_to(await self.begin(method, params))

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Json:
        """The result of a tool call; an error reply is an assertion failure."""
        reply = await self.ask("tools/call", {"name": tool, "arguments": dict(arguments or {}), **more})
        assert "result" in reply, reply
        return reply["result"]

    async def tell(self, method: str, params: Mapping[str, Any] | None = None, *, dressed: bool = False) -> None:
        sent = self.with_meta(params) if dressed else dict(params or {})
        await self.send({"jsonrpc": "2.0", "method": method, "params": sent})

    async def news(self) -> list[Json]:
        """Everything heard by now that is not a reply, once the server has nothing more to do."""
        await turns()
        while not self.link._queue.empty():
            self.heard.append(json.loads(await self.link.receive()))
        found, self.heard = self.heard, []
        return found


@asynccontextmanager
async def raw(
    server: Server, version: str = STATELESS, capabilities: Mapping[str, Any] | None = None, *, opened: bool = True
) -> AsyncIterator[Raw]:
    async with connect_in_memory(server.composition) as link:
        peer = Raw(link, version, capabilities or {})
        if opened:
            await peer.open()
        yield peer


async def turns() -> None:
    """Let everything run that is ready to."""
    for _ in range(25):
        await asyncio.sleep(0)


async def soon(condition: Callable[[], bool]) -> bool:
    """Whether it is so within a quarter of a second, counted in turns of the loop: a busy machine only slows them."""
    for _ in range(250):
        if condition():
            break
        await asyncio.sleep(0.001)
    return condition()


def text_of(result: Json) -> str:
    """The only content block, which is text."""
    (block,) = result["content"]
    return block["text"]
