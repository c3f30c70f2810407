"""An HTTP server made of one function, on a loopback socket: it keeps what it was sent and may break off anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any


class Exchange:
    """One request, and what is written back."""

    def __init__(self, verb: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter):
        self.verb, self.path, self.headers, self.body = verb, path, headers, body
        self.writer = writer
        self.hung_up = asyncio.Event()

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body else {}

    @property
    def method(self) -> str:
        return self.message.get("method", "")

    async def respond(self, status: int = 202, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", "connection: close", *_lines(headers)]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def answer(self, result: Any, **headers: str) -> None:
        await self.say(200, {"id": self.message["id"], "result": result}, **headers)

    async def refuse(self, status: int, code: int, text: str = "no", **members: Any) -> None:
        await self.say(status, {"id": None, "error": {"code": code, "message": text, **members}})

    async def say(self, status: int, message: dict[str, Any], **headers: str) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        await self.respond(status, body, content_type="application/json", **headers)

    async def stream(self, *texts: str, **headers: str) -> None:
        """Begin an event stream; without a length it lasts until the connection is closed."""
        lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream; charset=utf-8", "connection: close"]
        self.writer.write("\r\n".join([*lines, *_lines(headers)]).encode() + b"\r\n\r\n")
        await self.write(*texts)

    async def write(self, *texts: str) -> None:
        for text in texts:
            self.writer.write(text.encode())
            await self.writer.drain()

    def reply(self, result: Any) -> str:
        """The answer as an event."""
        return event({"id": self.message["id"], "result": result})

    def close(self) -> None:
        self.writer.close()


def event(message: dict[str, Any], id: str | None = None) -> str:
    return (f"id: {id}\n" if id else "") + f"data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n"


class Web:
    """Where the server is, and every exchange so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[Exchange] = []
        self._news = asyncio.Event()

    def add(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        self._news.set()

    def of(self, method: str) -> list[Exchange]:
        return [exchange for exchange in self.seen if exchange.method == method]

    async def told(self, matches: Callable[[Exchange], bool]) -> Exchange:
        """The first exchange that matches, waiting for it."""
        async with asyncio.timeout(20):
            while True:
                for exchange in self.seen:
                    if matches(exchange):
                        return exchange
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def web(handle: Callable[[Exchange], Awaitable[None]]) -> AsyncIterator[Web]:
    """Serve `handle` for as long as the block runs."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            exchange = await _read(reader, writer)
            served.add(exchange)
            working = asyncio.ensure_future(handle(exchange))
            # One exchange a connection: whatever is read after the request is the hang-up.
            ending = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                exchange.hung_up.set()
            await working
            ending.cancel()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    served = Web(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
    try:
        yield served
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    verb, path, _ = first.split(" ")
    return Exchange(verb, path, headers, body, writer)


def _lines(headers: dict[str, str]) -> list[str]:
    return [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]


class SlowAuthorizer:
    """An authorizer whose person takes half a second."""

    is_signing_in = False

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}

    async def headers(self, method: str, url: str) -> dict[str, str]:
        return self.shown

    async def handle_challenge(self, challenge: Any) -> bool:
        self.is_signing_in = True
        await asyncio.sleep(0.5)
        self.is_signing_in, self.shown = False, {"authorization": "Bearer t"}
        return True

    def on_request_accepted(self, headers: Any) -> None: ...

    async def aclose(self) -> None: ...


class RenewingAuthorizer(SlowAuthorizer):
    """An authorizer whose issuer never answers, so that its end takes long. It keeps the addresses it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.closing = asyncio.Event()

    async def headers(self, method: str, url: str) -> dict[str, str]:
        self.urls.append(url)
        return self.shown

    async def aclose(self) -> None:
        if not self.closing.is_set():
            self.closing.set()
            await asyncio.Event().wait()
