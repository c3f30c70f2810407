"""A client that calls an ASGI app directly, without sockets: it may read slowly, not at all, or leave at any point."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from defserve import Server
from defserve.auth import Auth, StaticTokens
from tests.raw import HANDSHAKE, PREFIX, STATELESS, turns

Json = dict[str, Any]

BOTH = "application/json, text/event-stream"


class Event:
    """One server-sent event: its id, its data as text, and how long to wait before coming back."""

    def __init__(self, block: str) -> None:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        self.id, self.data, self.retry = fields.get("id"), fields.get("data", ""), fields.get("retry")
        self.is_comment = block.startswith(":")

    @property
    def message(self) -> Json:
        return json.loads(self.data)


class Exchange:
    """A request under way, and as much of its response as has arrived."""

    def __init__(self, chunks: list[bytes], *, finishes: bool = True) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.writes: list[bytes] = []
        self.complete = False
        self.task: asyncio.Task[None] | None = None
        self._chunks, self._finishes = chunks, finishes
        self._left, self._reads, self._over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._reads.set()
        self._news = asyncio.Condition()
        self._seen = 0

    # -- what the app sees -------------------------------------------------------------------------------

    async def receive(self) -> Json:
        if self._chunks:
            chunk = self._chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self._chunks) or not self._finishes}
        await self._left.wait()
        self._over.set()
        return {"type": "http.disconnect"}

    async def send(self, message: Json) -> None:
        await self._reads.wait()
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.writes.append(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            if self.complete:
                self._over.set()
        async with self._news:
            self._news.notify_all()

    # -- what the client does ----------------------------------------------------------------------------

    def leave(self) -> None:
        self._left.set()
        self._reads.set()

    def stall(self) -> None:
        """Read no more; the app's writes wait."""
        self._reads.clear()

    def read_on(self) -> None:
        self._reads.set()

    @property
    def events(self) -> list[Event]:
        """The events that have arrived whole, comments left out."""
        blocks = self.body.decode().split("\n\n")[:-1]
        return [event for event in map(Event, blocks) if not event.is_comment]

    @property
    def messages(self) -> list[Json]:
        return [event.message for event in self.events if event.data]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def until(self, condition: Any) -> None:
        """Wait for the response to be so."""
        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(condition)

    async def started(self) -> Exchange:
        await self.until(lambda: self.status)
        return self

    async def next(self) -> Json:
        """The next message of the stream."""
        await self.until(lambda: len(self.messages) > self._seen)
        self._seen += 1
        return self.messages[self._seen - 1]

    async def ended(self) -> Exchange:
        """Until the response is over, or the app knows that its client has left: a call may go on after that."""
        assert self.task is not None
        over = asyncio.create_task(self._over.wait())
        try:
            async with asyncio.timeout(10):
                await asyncio.wait((self.task, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        await turns()
        if self.task.done():
            self.task.result()
        return self


class Web:
    """Speaks HTTP to an app. `address` is where the client seems to be, `token` what it shows."""

    def __init__(self, app: Any, path: str = "/", root_path: str = "") -> None:
        self.app, self.path, self.root_path = app, path, root_path
        self.address = "127.0.0.1"
        self.token: str | None = None

    def begin(
        self, verb: str, body: bytes | list[bytes] = b"", headers: Mapping[str, str | None] | None = None, **more: Any
    ) -> Exchange:
        """Start a request; a header that is None is left out."""
        finishes = more.pop("finishes", True)
        exchange = Exchange(body if isinstance(body, list) else [body], finishes=finishes)
        shown = {"authorization": f"Bearer {self.token}"} if self.token else {}
        given = {"host": "localhost", **shown, **(headers or {})}
        scope: Json = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": verb,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": self.root_path,
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in given.items() if v is not None],
            "client": (self.address, 50_000),
            "server": ("localhost", 80),
            **more,
        }
        exchange.task = asyncio.ensure_future(self.app(scope, exchange.receive, exchange.send))
        return exchange

    def post(self, body: Any, headers: Mapping[str, str | None] | None = None, **more: Any) -> Exchange:
        data = body if isinstance(body, bytes | list) and not _is_batch(body) else json.dumps(body).encode()
        return self.begin("POST", data, {"content-type": "application/json", "accept": BOTH, **(headers or {})}, **more)


def _is_batch(body: Any) -> bool:
    return isinstance(body, list) and not any(isinstance(item, bytes) for item in body)


class Peer(Web):
    """An MCP client of one version over `Web`."""

    def __init__(
        self, app: Any, version: str = HANDSHAKE[-1], capabilities: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        super().__init__(app, **more)
        self.version, self.capabilities = version, dict(capabilities or {})
        self.session: str | None = None
        self._last_id = 0

    async def open(self) -> Peer:
        """Shake hands, where there is a handshake."""
        if self.version == STATELESS:
            return self
        about = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": {"name": "peer"}}
        response = await self.post(request("initialize", about, 0)).ended()
        assert response.status == 200, response.body
        self.session = response.headers["mcp-session-id"]
        assert (await self.tell("notifications/initialized")).status == 202
        return self

    @property
    def its_headers(self) -> dict[str, str | None]:
        return {"mcp-session-id": self.session, "mcp-protocol-version": self.version}

    def begin_request(
        self,
        method: str,
        params: Json | None = None,
        *,
        id: Any = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Exchange:
        if id is None:
            self._last_id += 1
            id = self._last_id
        given, extra = dict(params or {}), dict(self.its_headers)
        if self.version == STATELESS:
            given["_meta"] = {
                PREFIX + "protocolVersion": STATELESS,
                PREFIX + "clientCapabilities": self.capabilities,
                **given.get("_meta", {}),
            }
            extra |= {"mcp-method": method, "mcp-name": given.get("name", given.get("uri"))}
        return self.post(request(method, given, id), {**extra, **(headers or {})})

    def begin_call(self, tool: str, arguments: Json | None = None, *, id: Any = None, **params: Any) -> Exchange:
        return self.begin_request("tools/call", {"name": tool, "arguments": arguments or {}, **params}, id=id)

    async def call(self, tool: str, arguments: Json | None = None, **params: Any) -> str:
        """The text a tool gives, however it was sent."""
        exchange = await self.begin_call(tool, arguments, **params).ended()
        return text(last(exchange))

    async def ask(self, method: str, params: Json | None = None, *, id: Any = None) -> Json:
        """The whole reply."""
        return last(await self.begin_request(method, params, id=id).ended())

    async def tell(self, method: str, params: Json | None = None) -> Exchange:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}}, self.its_headers).ended()

    async def answer(self, question: Json, result: Json) -> Exchange:
        return await self.post({"jsonrpc": "2.0", "id": question["id"], "result": result}, self.its_headers).ended()

    def listen(self, last_event_id: str | None = None, **headers: str | None) -> Exchange:
        given = {"accept": "text/event-stream", **self.its_headers, "last-event-id": last_event_id, **headers}
        return self.begin("GET", b"", given)

    def delete(self) -> Exchange:
        return self.begin("DELETE", b"", self.its_headers)


def with_tokens(app: Any, *tokens: str) -> Any:
    """The app, for which every token is a caller of that name. Who shows none is a stranger."""
    app.auth = Auth(StaticTokens({token: token for token in tokens}))
    app.auth.admits_strangers = True
    return app


def request(method: str, params: Json, id: Any = 1) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def last(exchange: Exchange) -> Json:
    """The reply: the whole body, or the last of its events."""
    return exchange.messages[-1] if exchange.headers.get("content-type") == "text/event-stream" else exchange.json


def text(reply: Json) -> str:
    (block,) = reply["result"]["content"]
    return block["text"]


@asynccontextmanager
async def living(app: Any) -> AsyncGenerator[Any]:
    """Run the app's lifespan around the block."""
    inbox: asyncio.Queue[Json] = asyncio.Queue()
    outbox: asyncio.Queue[Json] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    task = asyncio.ensure_future(app(scope, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    try:
        yield app
    finally:
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await task


@asynccontextmanager
async def peer(
    server: Server, version: str = HANDSHAKE[-1], capabilities: Mapping[str, Any] | None = None
) -> AsyncGenerator[Peer]:
    """A client that has opened its conversation with a server that has no other clients."""
    async with living(server.asgi()) as app:
        yield await Peer(app, version, capabilities).open()
