"""A group of workers whose supervisor runs on the loop of the test; the workers are real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import textwrap
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from defserve.server.workers.supervisor import Supervisor, SupervisorTiming, WorkerGroupPlan
from defserve.server.workers.worker import WorkerGroupSecrets
from tests.listening import request
from tests.waiting import until

STATELESS, HANDSHAKE = "2026-07-28", "2025-11-25"
BOTH = "application/json, text/event-stream"
PREFIX = "io.modelcontextprotocol/"
QUICK = SupervisorTiming(ping=0.1, hang=20.0, base=0.01, cap=0.05, proven=0.0)

SERVER = """
    import asyncio, os, signal, sys, time
    from defserve import Limits, Server

    server = Server("group", limits=Limits(drain=10))

    @server.tool
    async def who() -> int:
        return os.getpid()

    @server.tool
    async def slow(path: str) -> str:
        open(path, "w").close()
        while os.path.exists(path):
            await asyncio.sleep(0.01)
        return "done"

    @server.tool
    async def block() -> None:
        time.sleep(600)

    if __name__ == "__main__":
        server.main()
"""


def write_server(folder: Path, more: str = "", source: str = SERVER) -> Path:
    file = folder / "served.py"
    file.write_text(textwrap.dedent(source) + "\n" + textwrap.dedent(more))
    return file


class Group:
    """The supervisor, and a client that opens a connection for each request unless it is given one."""

    def __init__(self, supervisor: Supervisor, port: int, said: list[str]) -> None:
        self.supervisor, self.port, self.said = supervisor, port, said
        self.ended: asyncio.Task[int]

    @property
    def pids(self) -> list[int]:
        return [place.worker.pid for place in self.supervisor.places if place.worker is not None]

    @contextmanager
    def only(self, pid: int) -> Generator[None]:
        """Stop the other workers, so that this one takes every connection."""
        others = [other for other in self.pids if other != pid]
        for other in others:
            os.kill(other, signal.SIGSTOP)
        try:
            yield
        finally:
            for other in others:
                os.kill(other, signal.SIGCONT)

    async def hear(self, pattern: str) -> str:
        """The first line that matches, as soon as it is said."""
        await until(lambda: any(re.search(pattern, line) for line in self.said) or self.ended.done())
        (line, *_) = [line for line in self.said if re.search(pattern, line)] or [""]
        assert line, self.said
        return line

    async def connect(self) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port))

    async def get(self, path: str) -> tuple[int, str]:
        connection = await self.connect()
        status, _, body = await connection.ask(request("connection: close", verb="GET", path=path))
        connection.close()
        return status, body.decode()

    async def call(self, tool: str, **arguments: Any) -> Any:
        """The result of a tool, on a connection of its own."""
        connection = await self.connect()
        try:
            return await connection.call(tool, **arguments)
        finally:
            connection.close()

    async def open_session(self) -> str:
        """The id of a session of the handshake era."""
        about: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        headers, _ = await self._post("initialize", {"protocolVersion": HANDSHAKE, **about}, None)
        session = headers["mcp-session-id"]
        await self._post("notifications/initialized", {}, session)
        return session

    async def call_in(self, session: str, tool: str) -> Any:
        """The result of a tool in a session, on a connection of its own."""
        _, body = await self._post("tools/call", {"name": tool, "arguments": {}}, session)
        return json.loads(body)["result"]["content"][0]["text"]

    async def _post(self, method: str, params: dict[str, Any], session: str | None) -> tuple[dict[str, str], bytes]:
        id = {} if method.startswith("notifications/") else {"id": 1}
        body = json.dumps({"jsonrpc": "2.0", **id, "method": method, "params": params}).encode()
        about = (f"mcp-session-id: {session}", f"mcp-protocol-version: {HANDSHAKE}") if session else ()
        connection = await self.connect()
        status, headers, body = await connection.ask(request(*about, f"accept: {BOTH}", "connection: close", body=body))
        connection.close()
        assert status in (200, 202), (status, body)
        return headers, body


class Connection:
    """A connection that is kept, and what the server said about keeping it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        self.is_last = False

    async def call(self, tool: str, **arguments: Any) -> Any:
        status, headers, body = await self.ask(call_request(tool, arguments))
        assert status == 200, (status, body)
        self.is_last = headers.get("connection") == "close"
        return json.loads(body)["result"]["content"][0]["text"]

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self._writer.write(data)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    def close(self) -> None:
        self._writer.close()


def call_request(tool: str, arguments: dict[str, Any]) -> bytes:
    """A call of the stateless era."""
    meta: dict[str, Any] = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    about = (f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/call", f"mcp-name: {tool}")
    return request(*about, f"accept: {BOTH}", body=body)


def command_of(file: Path, count: int, *more: str) -> tuple[str, ...]:
    on = ("--on", "http://127.0.0.1:0/mcp", "--workers", str(count))
    return (sys.executable, "-m", "defserve", "run", str(file), *on, *more)


@asynccontextmanager
async def group(
    file: Path,
    count: int = 2,
    *,
    timing: SupervisorTiming = QUICK,
    options: Sequence[str] = ("--stateless", "--metrics"),
) -> AsyncGenerator[Group]:
    """The group while its block runs. It serves when the block begins, unless it cannot start."""
    said: list[str] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        plan = WorkerGroupPlan(
            command_of(file, count, *options), count, (listener.fileno(),), WorkerGroupSecrets(None, "s" * 43)
        )
        supervisor = Supervisor(plan, said.append, timing)
        found = Group(supervisor, listener.getsockname()[1], said)
        found.ended = asyncio.create_task(supervisor.run(lambda: said.append("all serve")))
        try:
            await until(lambda: "all serve" in said or found.ended.done())
            yield found
        finally:
            supervisor.stop(0)
            supervisor.stop(0)
            await asyncio.wait((found.ended,))
            listener.close()
