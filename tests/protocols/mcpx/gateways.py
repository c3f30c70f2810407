"""A gateway of a few lines that behaves as the reference does: presence before welcome, everyone hears everything,
senders their own words too; and a participant that says whatever it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server as Socket
from websockets.asyncio.server import ServerConnection, serve

from defserve.protocols.mcpx.envelope import is_kind_covered

Json = dict[str, Any]
FULL = ("mcp/*", "chat")


class TinyGateway:
    """Tokens are names; `capabilities` says what each may send."""

    def __init__(self, capabilities: dict[str, Sequence[str]]) -> None:
        self.capabilities = capabilities
        self.members: dict[str, ServerConnection] = {}
        self.heard: list[Json] = []
        self.port = 0
        self.silent = False
        self.vague = False
        """Refusals do not say which message they are about, as those of the reference gateway."""
        self.says_who_is_authenticated = True
        """The reference gateway does not."""
        self._socket: Socket | None = None
        self._number = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws?topic=demo"

    async def start(self) -> None:
        self._socket = await serve(self._serve, "127.0.0.1", self.port, compression=None)
        self.port = next(iter(self._socket.sockets)).getsockname()[1]

    async def stop(self) -> None:
        assert self._socket is not None
        self._socket.close()
        await self._socket.wait_closed()
        self.members.clear()

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        name = socket.request.headers.get("Authorization", "").removeprefix("Bearer ")
        if name not in self.capabilities:
            await socket.close(1008, "bad token")
            return
        self.members[name] = socket
        if self.silent:
            await socket.wait_closed()
            return
        await self.tell("system/presence", {"event": "join", "participant": self._about(name)})
        await self.welcome(name)
        try:
            async for frame in socket:
                await self._route(name, str(frame))
        finally:
            self.members.pop(name, None)
            await self.tell("system/presence", {"event": "leave", "participant": {"id": name}})

    async def welcome(self, name: str) -> None:
        others = [self._about(other) for other in self.members if other != name]
        await self.tell("system/welcome", {"you": self._about(name), "participants": others}, to=name)

    async def _route(self, name: str, frame: str) -> None:
        envelope = json.loads(frame)
        self.heard.append(envelope)
        if not any(is_kind_covered(envelope["kind"], pattern) for pattern in self.capabilities[name]):
            body: Json = {"error": "capability_violation", "message": f"You lack capability for '{envelope['kind']}'"}
            body |= {"attempted_kind": envelope["kind"], "your_capabilities": list(self.capabilities[name])}
            await self.tell("system/error", body, to=name, about=None if self.vague else envelope["id"])
            return
        await self._everyone(frame)

    async def tell(self, kind: str, payload: Json, *, to: str | None = None, about: str | None = None) -> None:
        self._number += 1
        envelope: Json = {"protocol": "mcpx/v0.1", "id": f"gw-{self._number}", "from": "system:gateway", "kind": kind}
        envelope |= {"payload": payload} | ({"to": [to]} if to else {}) | ({"correlation_id": about} if about else {})
        if to is None:
            await self._everyone(json.dumps(envelope))
        elif to in self.members:
            await self.members[to].send(json.dumps(envelope))

    async def _everyone(self, frame: str) -> None:
        for socket in list(self.members.values()):
            try:
                await socket.send(frame)
            except Exception:  # it is leaving
                continue

    def _about(self, name: str) -> Json:
        shown = {"id": name, "capabilities": list(self.capabilities[name])}
        return {**shown, "authenticated": True} if self.says_who_is_authenticated else shown


@asynccontextmanager
async def gateway(**capabilities: Sequence[str]) -> AsyncGenerator[TinyGateway]:
    """A gateway that knows these participants; `_` in a name stands for `-`."""
    found = TinyGateway({name.replace("_", "-"): patterns for name, patterns in capabilities.items()})
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


class Stranger:
    """A participant without a framework: sends what it is told to, checked by nobody."""

    def __init__(self, socket: ClientConnection, name: str) -> None:
        self.socket, self.name = socket, name
        self._number = 0

    async def send(self, kind: str, payload: Json, **fields: Any) -> str:
        self._number += 1
        id = f"{self.name}-{self._number}"
        envelope = {"protocol": "mcpx/v0.1", "id": id, "from": self.name, "kind": kind, "payload": payload} | fields
        await self.socket.send(json.dumps(envelope))
        return id

    async def ask(self, to: str, method: str, params: Json | None = None, *, id: Any = 1, **fields: Any) -> str:
        """A request whose kind is the bare method, unless `kind` is given."""
        payload = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        kind = fields.pop("kind", f"mcp/request:{method}")
        return await self.send(kind, payload, to=[to], **fields)

    async def until(self, fits: Callable[[Json], bool]) -> Json:
        async with asyncio.timeout(20):
            while True:
                envelope = json.loads(await self.socket.recv())
                if fits(envelope):
                    return envelope

    async def answer(self, id: str) -> Json:
        return await self.until(lambda envelope: envelope.get("correlation_id") == id and envelope["from"] != self.name)


@asynccontextmanager
async def stranger(gateway: TinyGateway, name: str) -> AsyncGenerator[Stranger]:
    headers = {"Authorization": f"Bearer {name}"}
    async with connect(gateway.url, additional_headers=headers, proxy=None) as socket:
        found = Stranger(socket, name)
        await found.until(lambda envelope: envelope["kind"] == "system/welcome")
        yield found
