"""A gateway on a real socket of this process, and participants that say and hear raw envelopes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets import ConnectionClosed
from websockets.asyncio.client import ClientConnection, connect

from defserve.gateway.listener import GatewayEndpoint, serve_gateway
from defserve.gateway.policy import parse_config
from defserve.protocols.mcpx.envelope import MCPX_PROTOCOL, format_current_time, new_envelope_id
from defserve.serve.address import Address
from defserve.serve.sockets import bind_sockets

Json = dict[str, Any]
PATIENCE = 25.0

PEOPLE: Json = {
    "admin": {"token": "t-admin", "profile": "full"},
    "worker": {"token": "t-worker", "profile": "response-only"},
    "agent": {"token": "t-agent"},
    "watcher": {"token": "t-watcher", "profile": "read-only", "routing": "directed"},
}
CONFIG: Json = {"participants": PEOPLE, "admins": {"root": {"token": "t-root"}}}


class Peer:
    """One participant. `hear` gives what is next, `until` what is next of a kind."""

    def __init__(self, socket: ClientConnection, id: str) -> None:
        self.socket, self.id = socket, id

    async def raw(self, data: str | bytes) -> None:
        await self.socket.send(data)

    async def say(self, kind: str, payload: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Send an envelope; its id."""
        message = envelope(kind, self.id, payload, **more)
        await self.raw(json.dumps(message))
        return message["id"]

    async def hear(self) -> Json:
        return json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE))

    async def until(self, kind: str) -> Json:
        while (message := await self.hear()).get("kind") != kind:
            pass
        return message

    async def error(self) -> Json:
        return await self.until("system/error")

    async def closed(self) -> tuple[int, str]:
        """The code and the reason it is closed with; what comes before is passed over."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    await self.socket.recv()
        except ConnectionClosed as gone:
            assert gone.rcvd is not None, gone
            return gone.rcvd.code, gone.rcvd.reason

    async def is_well(self) -> None:
        """It can still say something and hear it."""
        id = await self.say("chat", {"text": "well"})
        while (await self.hear()).get("id") != id:
            pass


def envelope(kind: str, sender: str, payload: Mapping[str, Any] | None = None, **more: Any) -> Json:
    about = {
        "protocol": MCPX_PROTOCOL,
        "id": new_envelope_id(),
        "ts": format_current_time(),
        "from": sender,
        "kind": kind,
    }
    return {**about, "payload": payload or {}, **more}


def tool_call(name: str = "add", id: int = 1, **arguments: Any) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


@dataclass
class Running:
    site: GatewayEndpoint
    port: int

    @property
    def gateway(self):
        return self.site.gateway

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    def topic(self, name: str = "demo", **query: str) -> str:
        return "&".join([f"{self.url}?topic={name}", *(f"{key}={value}" for key, value in query.items())])

    @asynccontextmanager
    async def open(self, token: str | None, url: str | None = None, **options: Any) -> AsyncGenerator[Peer]:
        """A connection of which nothing is known yet."""
        if token is not None:
            options["additional_headers"] = {"Authorization": f"Bearer {token}"}
        async with connect(url or self.topic(), close_timeout=1, **options) as socket:
            yield Peer(socket, "")

    @asynccontextmanager
    async def joined(self, name: str, topic: str = "demo", **query: str) -> AsyncGenerator[Peer]:
        """A participant that has been welcomed."""
        async with self.open(f"t-{name}", self.topic(topic, **query)) as peer:
            welcome = await peer.until("system/welcome")
            peer.id = welcome["payload"]["you"]["id"]
            yield peer

    async def http(self, verb: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Status and body of a plain request."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        about = {"host": "localhost", "content-length": str(len(data)), **headers}
        lines = [f"{verb} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in about.items())]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        writer.close()
        head, _, text = answer.decode().partition("\r\n\r\n")
        return int(head.split(" ")[1]), text


@asynccontextmanager
async def gateway(**changes: Any) -> AsyncGenerator[Running]:
    """A gateway for as long as the block runs; `changes` replace parts of its file."""
    config = parse_config({**CONFIG, **changes})
    with bind_sockets(Address.parse("ws://127.0.0.1:0/ws")) as sockets:
        async with serve_gateway(config, sockets, "/ws") as site:
            yield Running(site, sockets[0].getsockname()[1])


async def eventually(holds: Callable[[], bool]) -> None:
    """Until the other side of a socket has noticed."""
    for _ in range(int(PATIENCE * 1000)):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")
