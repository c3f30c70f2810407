"""Callers with different keys, on raw sockets: what each is answered, streamed and told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from defserve import Context, Server
from defserve.auth.api_keys import ApiKeys
from defserve.stores.store import MemoryStore
from tests.listening import Listening, listening, request
from tests.raw import HANDSHAKE, STATELESS

PEPPER = "0123456789abcdef0123456789abcdef"
LATEST = HANDSHAKE[-1]
BATCHES = "2025-03-26"
ANSWER_SECONDS = 20.0

Json = dict[str, Any]


class Office:
    """A server whose keys have different rights: `weak` and `strong` are alice's, `other` is bob's."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.keys = ApiKeys(MemoryStore(), pepper=PEPPER, clock=lambda: self.now)
        self.server = Server("office", "1", auth=self.keys)
        self.tokens: dict[str, str | None] = {"none": None}
        self.ids: dict[str, str] = {}
        self.begun, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.server.tool(self.look)
        self.server.tool(self.erase)
        self.server.tool(self.work)
        self.server.tool(self.ask)
        self.server.resource("memo://open")(self.open_memo)
        self.server.resource("memo://secret", scopes=["secrets"])(self.secret_memo)

    async def make_keys(self) -> None:
        weak, all_tools = ["ToolInvoke(look)"], ["ToolInvoke(*)"]
        await self._key("weak", "alice", weak)
        await self._key("strong", "alice", all_tools, "secrets")
        await self._key("twin", "alice", all_tools, "secrets")
        await self._key("other", "bob", all_tools, "secrets")
        await self._key("asking", "alice", ["ToolInvoke(ask)"])
        await self._key("expired", "alice", all_tools, "secrets", expires_in=10)
        self.now += 20
        await self._key("revoked", "alice", all_tools, "secrets")
        await self.keys.revoke(self.ids["revoked"])

    async def _key(self, name: str, principal: str, permissions: list[str], scopes: str = "", **more: Any) -> None:
        made = await self.keys.create(principal, permissions=permissions, scopes=scopes, **more)
        self.tokens[name], self.ids[name] = made.token, made.key.id

    async def look(self) -> str:
        return "seen"

    async def erase(self) -> str:
        return "erased"

    async def work(self, ctx: Context) -> str:
        """Say something, so that the response is a stream, and wait for the test."""
        self.begun.set()
        ctx.log.info("begun")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "worked"

    async def ask(self, ctx: Context) -> str:
        return "confirmed" if await ctx.confirm("Sure?") else "not confirmed"

    async def open_memo(self) -> str:
        return "open"

    async def secret_memo(self) -> str:
        return "secret"


class Answer:
    """A whole response."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if self.headers.get("transfer-encoding") == "chunked":
            self.body = _unchunked(self.body)

    @property
    def json(self) -> Any:
        """The JSON of the body, or of the last event of a stream."""
        if self.headers.get("content-type") == "text/event-stream":
            return json.loads([line for line in self.body.split(b"\n") if line.startswith(b"data: ")][-1][6:])
        return json.loads(self.body)


class EventStream:
    """A response that is a stream of events, while it is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int) -> None:
        self.reader, self.writer, self.status = reader, writer, status
        self.last_id = ""

    async def next(self) -> Json:
        """The next message. Raises EOFError at the end of the stream."""
        return json.loads(await self.text())

    async def text(self) -> str:
        """The data of the next event."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                line = await self.reader.readline()
                if not line or line == b"0\r\n":
                    raise EOFError
                if line.startswith(b"id: "):
                    self.last_id = line[4:].strip().decode()
                if line.startswith(b"data: ") and line[6:].strip():
                    return line[6:].strip().decode()

    async def rest(self) -> list[Json]:
        """What follows, up to the end of the stream."""
        found: list[Json] = []
        try:
            while True:
                found.append(await self.next())
        except EOFError:
            return found

    def leave(self) -> None:
        self.writer.transport.abort()


class Caller:
    """One key, on connections of its own."""

    def __init__(self, where: Listening, token: str | None) -> None:
        self.where, self.token = where, token
        self.streams: list[EventStream] = []

    def lines(self, session: str | None, more: Mapping[str, str] | None = None) -> list[str]:
        given = {
            "accept": "application/json, text/event-stream",
            **({"authorization": f"Bearer {self.token}"} if self.token is not None else {}),
            **({"mcp-session-id": session} if session is not None else {}),
            **(more or {}),
        }
        return [f"{name}: {value}" for name, value in given.items()]

    async def send(
        self, message: Any = None, session: str | None = None, *, verb: str = "POST", path: str = "/mcp", **more: str
    ) -> Answer:
        body = json.dumps(message).encode() if message is not None else b""
        lines = self.lines(session, {name.replace("_", "-"): value for name, value in more.items()})
        async with asyncio.timeout(ANSWER_SECONDS):
            return Answer(await self.where.ask(*lines, body=body, verb=verb, path=path))

    async def open(self, version: str = LATEST, capabilities: Json | None = None) -> str:
        """A session of this key, ready for messages."""
        about, offered = {"name": "c", "version": "1"}, {"elicitation": {}} if capabilities is None else capabilities
        params = {"protocolVersion": version, "capabilities": offered, "clientInfo": about}
        opened = await self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        session = opened.headers["mcp-session-id"]
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
        return session

    async def call(self, session: str, tool: str) -> Answer:
        return await self.send(called(tool), session)

    async def stream(
        self, session: str, message: Any = None, *, last: str | None = None, path: str = "/mcp"
    ) -> EventStream:
        """A response that is read as it comes. Its status says whether there is a stream at all."""
        reader, writer = await self.where.connect()
        body = json.dumps(message).encode() if message is not None else b""
        lines = self.lines(session, {"last-event-id": last} if last is not None else None)
        writer.write(request(*lines, body=body, verb="POST" if message is not None else "GET", path=path))
        async with asyncio.timeout(ANSWER_SECONDS):
            status = int((await reader.readline()).split(b" ")[1])
            while (await reader.readline()).strip():
                pass
        self.streams.append(EventStream(reader, writer, status))
        return self.streams[-1]

    async def call_alone(self, tool: str, capabilities: Json | None = None, **params: Any) -> Answer:
        """A call that belongs to no session."""
        prefix, message = "io.modelcontextprotocol/", called(tool)
        meta = {prefix + "protocolVersion": STATELESS, prefix + "clientCapabilities": capabilities or {}}
        message["params"] |= {**params, "_meta": meta}
        return await self.send(message, mcp_protocol_version=STATELESS, mcp_method="tools/call", mcp_name=tool)


def called(tool: str, id: int = 7) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {}}}


def asked(method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": 8, "method": method, "params": params}


@asynccontextmanager
async def office(**options: Any) -> AsyncGenerator[tuple[Office, dict[str, Caller]]]:
    """A server, and a caller for each of its keys."""
    made = Office()
    await made.make_keys()
    async with listening(made.server, **options) as where:
        callers = {name: Caller(where, token) for name, token in made.tokens.items()}
        try:
            yield made, callers
        finally:
            made.go.set()
            for stream in [stream for caller in callers.values() for stream in caller.streams]:
                stream.leave()


def _unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size or b"0", 16)
        if not count:
            break
        found, data = found + data[:count], data[count + 2 :]
    return found
