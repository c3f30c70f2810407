"""Peers that say yes to everything they are asked, over any transport. Raw messages, real sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from defserve import Server
from defserve.serve.lifespans import connect_in_memory
from tests.forking.spawning import spawn
from tests.raw import HANDSHAKE, PREFIX, STATELESS

Json = dict[str, Any]
Headers = Mapping[str, str]

# To load certificates takes longer than all the rest, and to make a context longer than a request.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# No credentials, not sufficient ones, and too many bad ones.
REFUSALS = (401, 403, 429)
BOTH = "application/json, text/event-stream"
YES: Json = {"action": "accept", "content": {"value": True}}
YES_IN_WORDS: Json = {"action": "accept", "content": {"value": "yes"}}


class TurnedAway(Exception):
    """The server does not let this peer in at all."""


class Link(Protocol):
    async def send(self, message: bytes) -> None: ...
    async def receive(self) -> bytes: ...


class HttpLink:
    """Streamable HTTP. What the server says in any response is received in the order in which it comes."""

    def __init__(self, http: httpx2.AsyncClient, path: str = "/mcp") -> None:
        self._http, self._path = http, path
        self._inbox: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._headers: dict[str, str] = {}

    async def send(self, message: bytes) -> None:
        said: Any = json.loads(message)
        task = asyncio.create_task(self._post(message, said if isinstance(said, dict) else {}))
        self._tasks.add(task)
        if "id" not in said or "method" not in said:
            await task

    async def _post(self, message: bytes, said: Json) -> None:
        headers = {"content-type": "application/json", "accept": BOTH, **self._headers}
        params: Json = said.get("params") or {}
        if version := params.get("_meta", {}).get(PREFIX + "protocolVersion"):
            named = {"mcp-name": params["name"]} if "name" in params else {}
            headers |= {"mcp-protocol-version": version, "mcp-method": said["method"], **named}
        async with self._http.stream("POST", self._path, headers=headers, content=message) as response:
            if response.status_code in REFUSALS:
                self._inbox.put_nowait(TurnedAway(response.status_code))
                return
            if session := response.headers.get("mcp-session-id"):
                self._headers = {"mcp-session-id": session, "mcp-protocol-version": params["protocolVersion"]}
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                if body := await response.aread():
                    self._inbox.put_nowait(body)
                return
            async for line in response.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    self._inbox.put_nowait(line[5:].encode())

    async def receive(self) -> bytes:
        found = await self._inbox.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SseLink:
    """HTTP+SSE of 2024: one stream for everything the server says."""

    def __init__(self, http: httpx2.AsyncClient, lines: Any) -> None:
        self._http, self._lines, self._target = http, lines, ""

    async def _data(self) -> str:
        async for line in self._lines:
            if line.startswith("data:"):
                return line[5:].strip()
        raise EOFError

    async def open(self) -> None:
        self._target = await self._data()

    async def send(self, message: bytes) -> None:
        response = await self._http.post(self._target, content=message, headers={"content-type": "application/json"})
        assert response.status_code == 202, response.text

    async def receive(self) -> bytes:
        return (await self._data()).encode()


class SocketLink:
    """A WebSocket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, message: bytes) -> None:
        await self._socket.send(message, text=True)

    async def receive(self) -> bytes:
        return await self._socket.recv(decode=False)


@asynccontextmanager
async def http_client(url: str, headers: Headers, unix: str = "") -> AsyncGenerator[httpx2.AsyncClient]:
    transport = httpx2.AsyncHTTPTransport(uds=unix or None, verify=NO_CERTIFICATES)
    async with httpx2.AsyncClient(base_url=url, headers=dict(headers), transport=transport, timeout=20) as http:
        yield http


@asynccontextmanager
async def link_to(over: str, url: str, headers: Headers, unix: str = "") -> AsyncGenerator[Any]:
    """A link over `http`, `ws` or `sse`. Raises TurnedAway if it cannot be opened."""
    async with AsyncExitStack() as stack:
        if over == "ws":
            socket = url.replace("http", "ws") + "/mcp"
            try:
                yield SocketLink(
                    await stack.enter_async_context(connect(socket, additional_headers=headers, proxy=None))
                )
            except InvalidStatus as error:
                raise TurnedAway(error.response.status_code) from None
            return
        http = await stack.enter_async_context(http_client(url, headers, unix))
        if over == "sse":
            stream = await stack.enter_async_context(
                http.stream("GET", "/sse", headers={"accept": "text/event-stream"})
            )
            if stream.status_code != 200:
                raise TurnedAway(stream.status_code)
            link = SseLink(http, stream.aiter_lines())
            await link.open()
            yield link
            return
        link = HttpLink(http)
        stack.push_async_callback(link.aclose)
        yield link


@asynccontextmanager
async def link_in_memory(server: Server) -> AsyncGenerator[Any]:
    async with connect_in_memory(server.composition) as link:
        yield link


@asynccontextmanager
async def link_to_process() -> AsyncGenerator[Any]:
    link = await spawn(Path(__file__).with_name("served.py"))
    try:
        yield link
    finally:
        await link.aclose()


class Talk:
    """A conversation in one version. The peer agrees to everything it is asked."""

    def __init__(self, link: Link, version: str, capabilities: Mapping[str, Any] | None = None) -> None:
        self.link, self.version, self.capabilities = link, version, dict(capabilities or {})
        self._last_id = 0

    async def open(self) -> Talk:
        if self.version != STATELESS:
            about = {"name": "yes", "version": "1"}
            params = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": about}
            reply = await self.ask("initialize", params)
            assert "result" in reply, reply
            await self.tell("notifications/initialized")
        return self

    async def send(self, message: Any) -> None:
        await self.link.send(
            json.dumps({"jsonrpc": "2.0", **message} if isinstance(message, dict) else message).encode()
        )

    async def tell(self, method: str, params: Json | None = None) -> None:
        await self.send({"method": method, "params": params or {}})

    async def ask(self, method: str, params: Json | None = None) -> Json:
        """The reply, once everything that the server asks meanwhile is answered with yes."""
        self._last_id += 1
        id, sent = self._last_id, self._dressed(params or {})
        await self.send({"id": id, "method": method, "params": sent})
        while True:
            async with asyncio.timeout(20):
                message = json.loads(await self.link.receive())
            if isinstance(message, list):
                return {"batch": message}
            if message.get("id") == id and "method" not in message:
                result = message.get("result", {})
                if result.get("resultType") != "input_required":
                    return message
                answers = {key: _yes_to(asked) for key, asked in result["inputRequests"].items()}
                state = {"requestState": result["requestState"]} if "requestState" in result else {}
                return await self.ask(method, {**(params or {}), "inputResponses": answers, **state})
            if "method" in message:
                await self._agree(message)

    async def batch(self, *requests: tuple[str, Json]) -> list[Json]:
        """The replies to several requests in one message, by the order of the requests."""
        await self.send(
            [{"jsonrpc": "2.0", "id": n, "method": m, "params": p} for n, (m, p) in enumerate(requests, 900)]
        )
        found: dict[int, Json] = {}
        while len(found) < len(requests):
            async with asyncio.timeout(20):
                message = json.loads(await self.link.receive())
            for one in message if isinstance(message, list) else [message]:
                found[one["id"]] = one
        return [found[id] for id in sorted(found)]

    def _dressed(self, params: Json) -> Json:
        if self.version != STATELESS:
            return params
        envelope = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": self.capabilities}
        return {**params, "_meta": {**envelope, **params.get("_meta", {})}}

    async def _agree(self, asked: Json) -> None:
        if "id" in asked:
            await self.send({"id": asked["id"], "result": _yes_to(asked)})
        elif asked["method"] == "notifications/mgp.callback.request":
            self._last_id += 1
            params = {"callback_id": asked["params"]["callback_id"], "response": "confirm"}
            await self.send({"id": self._last_id, "method": "mgp/callback/respond", "params": params})


def _yes_to(asked: Json) -> Json:
    if asked["method"] == "scope/elevate":
        return {"approved": True}
    (field,) = asked["params"]["requestedSchema"]["properties"].values()
    return YES if field["type"] == "boolean" else YES_IN_WORDS


SESSION = HANDSHAKE[-1]
