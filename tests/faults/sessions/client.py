"""A client whose requests go to any of several processes, which may die at any moment."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from random import Random
from typing import Any

from tests.faults.process import Broken

Json = dict[str, Any]

VERSION = "2025-11-25"
PATIENCE = 150.0
GONE = (OSError, asyncio.IncompleteReadError, EOFError)


class Response:
    """The head of a response, and its body as far as it is read. Close it: a stream has its connection for itself."""

    def __init__(
        self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.status, self.headers, self._reader, self._writer = status, headers, reader, writer

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def close(self) -> None:
        self._writer.close()

    async def json(self) -> Any:
        body = await self._reader.readexactly(int(self.headers.get("content-length", 0)))
        return json.loads(body) if body else None

    async def events(self) -> AsyncIterator[tuple[str, Json | None]]:
        """The id and the message of each event. Raises one of GONE if the response is cut.

        While Redis is away, events have no id: it is empty.
        """
        block = b""
        while size := int(await self._reader.readline() or b"x", 16):
            block += (await self._reader.readexactly(size + 2))[:-2]
            while b"\n\n" in block:
                one, block = block.split(b"\n\n", 1)
                fields = dict(line.split(": ", 1) for line in one.decode().split("\n") if not line.startswith(":"))
                if "id" in fields or fields.get("data"):
                    yield fields.get("id", ""), json.loads(fields["data"]) if fields.get("data") else None


class Client:
    """One session. `places` gives the addresses of the processes that live."""

    capabilities: Json = {"elicitation": {}}

    def __init__(self, name: str, random: Random, places: Callable[[], list[int]]) -> None:
        self.name, self._random, self._places = name, random, places
        self.session: str | None = None
        self.last = 0
        self.answered = self.told = self.cut = self.resumed = 0
        self.touched = Counter[str | None]()
        """What calls of `touch` have answered; None: they were interrupted."""

    async def open(self) -> None:
        params = {"protocolVersion": VERSION, "capabilities": self.capabilities, "clientInfo": {"name": self.name}}
        response, _ = await self._until_taken({"id": 0, "method": "initialize", "params": params})
        self.session = response.headers["mcp-session-id"]
        await self._until_taken({"method": "notifications/initialized"})

    async def call(self, tool: str, arguments: Json, seen: list[Json] | None = None) -> str | None:
        """The text of a result. None: its process died, and this client was told, or cut off before it had an id."""
        self.last += 1
        request = {"id": self.last, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        last = ""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    response, body = await self._send(request if not last else None, last)
                    if response.status == 503 or (response.status in (404, 409) and not last and body is None):
                        raise OSError
                    if response.status == 404:
                        raise Broken(f"{self.name}: nothing is left after {last!r}: {body}")
                    if not response.is_stream:
                        return self._result(request, body)
                    self.resumed += bool(last)
                    with closing(response):
                        async for id, message in response.events():
                            if message is not None and last and id and _place(id) <= _place(last):
                                raise Broken(f"{self.name}: {id} came after {last}")
                            last = id or last
                            if message is None:
                                continue
                            if "method" not in message:
                                return self._result(request, message)
                            (seen if seen is not None else []).append(message)
                            if "id" in message:
                                await self._answer(message)
                except (*GONE, ValueError):
                    if not last:
                        self.cut += 1
                        return None  # a cut connection is all that a dead process can say
                await asyncio.sleep(0.02)

    def _result(self, request: Json, message: Any) -> str | None:
        if message is None or message.get("id") != request["id"]:
            raise Broken(f"{self.name} asked for {request['id']} and got {message}")
        if "error" in message:
            if message["error"].get("data", {}).get("type") != "interrupted":
                raise Broken(f"{self.name}: {message}")
            self.told += 1
            return None
        self.answered += 1
        return message["result"]["content"][0]["text"]

    async def _answer(self, question: Json) -> None:
        await self._until_taken({"id": question["id"], "result": self._decided(question)})

    def _decided(self, question: Json) -> Json:
        """The answer to a question of the server."""
        return {"action": "accept", "content": {"value": f"{self.name} {self.last}"}}

    async def repeat(self, method: str, params: Json) -> None:
        """Ask for something that may be asked for again, until it is answered."""
        await self._until_taken({"id": method, "method": method, "params": params})

    async def watch(self, events: list[tuple[str, str]]) -> None:
        """Read the session's own stream for ever. The id and the method of what came are added to `events`."""
        last = ""
        while True:
            try:
                response, _ = await self._send(None, last)
                if response.status == 404 and last:
                    raise Broken(f"{self.name}: nothing is left after {last!r}")
                if response.is_stream:
                    with closing(response):
                        async for id, message in response.events():
                            last = id or last
                            if message is None:
                                continue
                            events.append((id, message["method"]))
                            if "id" in message:
                                await self._answer(message)
            except (*GONE, ValueError):
                pass
            await asyncio.sleep(0.02)

    async def _until_taken(self, message: Json) -> tuple[Response, Any]:
        """Send a message that may be sent again, until a process takes it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    response, body = await self._send(message)
                    if response.status == 404:
                        raise Broken(f"{self.name}: the session is lost")
                    if response.status < 300:
                        return response, body
                    if response.status != 503:
                        raise Broken(f"{self.name}: {message} is refused: {response.status} {body}")
                except (*GONE, ValueError):
                    pass
                await asyncio.sleep(0.02)

    async def _send(self, message: Json | None, last: str = "") -> tuple[Response, Any]:
        """POST a message, or GET the stream after `last`; the body, if it is no stream."""
        port = self._random.choice(self._places())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"jsonrpc": "2.0", **message}).encode() if message is not None else b""
        head = [
            f"{'POST' if message is not None else 'GET'} /mcp HTTP/1.1",
            f"host: 127.0.0.1:{port}",
            "accept: application/json, text/event-stream",
            f"mcp-protocol-version: {VERSION}",
            *(["content-type: application/json", f"content-length: {len(body)}"] if body else []),
            *([f"mcp-session-id: {self.session}"] if self.session else []),
            *([f"last-event-id: {last}"] if last else []),
        ]
        try:
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            await writer.drain()
            status = (await reader.readline()).split()
            if len(status) < 2:
                raise EOFError
            headers: dict[str, str] = {}
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            response = Response(int(status[1]), headers, reader, writer)
            if response.is_stream:
                return response, None
            found = await response.json()
        except BaseException:
            writer.close()
            raise
        writer.close()
        return response, found


def _place(event_id: str) -> int:
    return int(event_id.rpartition("-")[2])
