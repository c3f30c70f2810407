"""Workers are replaced again and again while calls come: no call fails, and none is told to try again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import textwrap
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.killing import Tally
from tests.faults.process import Broken
from tests.stores.redis_server import RedisServer

WORKERS = 3
RATE = 200.0
PATIENCE = 60.0
SESSIONS = 20
STATELESS, HANDSHAKE = "2026-07-28", "2025-11-25"
PREFIX = "io.modelcontextprotocol/"

SERVER = """
    import asyncio
    from defserve import Server

    server = Server("rolling")

    @server.tool
    def echo(number: int) -> int:
        return number

    @server.tool
    async def slow(number: int) -> int:
        await asyncio.sleep(number % 20 / 10)
        return number
"""


def reload_workers(seed: int, runs: int, rate: float = RATE, pause: float = 3.0) -> Tally:
    """Workers are replaced `runs` times, about every `pause` seconds, under `rate` calls a second. Raises Broken."""
    return asyncio.run(_reload_workers(Random(seed), runs, rate, pause, None))


def reload_with_sessions(seed: int, runs: int, rate: float = RATE, pause: float = 3.0) -> Tally:
    """The same with calls of sessions, which live in Redis: each goes to whichever worker takes its connection."""
    server = RedisServer().start()
    try:
        return asyncio.run(_reload_workers(Random(seed), runs, rate, pause, server.address))
    finally:
        server.remove()


async def _reload_workers(random: Random, runs: int, rate: float, pause: float, shared: str | None) -> Tally:
    async with _served(shared) as (process, port):
        load = Load(port, random, rate)
        if shared is not None:
            await load.open_sessions(SESSIONS)
        calling = asyncio.create_task(load.run())
        try:
            for _ in range(runs):
                await asyncio.sleep(pause * (0.5 + random.random()))
                process.send_signal(signal.SIGHUP)
                await _hear(process, "reloaded: ")
            await asyncio.sleep(pause)  # those of before leave
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        await load.finish()
        if load.problems:
            raise Broken(f"{len(load.problems)} of {load.calls} calls failed: {load.problems[0]!r}")
        process.send_signal(signal.SIGTERM)
        if (code := await asyncio.wait_for(process.wait(), PATIENCE)) != 0:
            raise Broken(f"the exit code was {code}")
        return Tally(runs, acknowledged=load.calls)


async def _hear(process: Process, start: str) -> str:
    """The next line that the supervisor says, which begins like this."""
    assert process.stderr is not None
    line = (await asyncio.wait_for(process.stderr.readline(), PATIENCE)).decode()
    if not line.startswith(start):
        with suppress(TimeoutError):
            line += (await asyncio.wait_for(process.stderr.read(4000), 1)).decode()
        raise Broken(f"the supervisor said {line!r}, not {start!r}")
    return line


@asynccontextmanager
async def _served(shared: str | None) -> AsyncGenerator[tuple[Process, int]]:
    with tempfile.TemporaryDirectory(prefix="rolling") as folder:
        file = Path(folder) / "served.py"
        file.write_text(textwrap.dedent(SERVER) + (f"\nserver.shared = {shared!r}\n" if shared else ""))
        on = ("--on", "http://127.0.0.1:0/mcp", "--workers", str(WORKERS), *(() if shared else ("--stateless",)))
        command = (sys.executable, "-m", "defserve", "run", str(file), *on)
        # Said outright, so that no worker warns of two deployments under one name.
        env = {**os.environ, "DEFSERVE_NAMESPACE": "rolling"}
        process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, env=env)
        try:
            yield process, int((await _hear(process, "serving on ")).split(":")[2].partition("/")[0])
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


class Load:
    """So many calls a second, on connections that are kept as long as the server keeps them."""

    def __init__(self, port: int, random: Random, rate: float) -> None:
        self._port, self._random, self._rate = port, random, rate
        self._idle: list[Connection] = []
        self._sessions: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.problems: list[BaseException] = []

    async def open_sessions(self, count: int) -> None:
        for _ in range(count):
            connection = Connection(*await asyncio.open_connection("127.0.0.1", self._port))
            self._sessions.append(await connection.open_session())
            connection.close()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            next_at += 1 / self._rate
            await asyncio.sleep(max(next_at - loop.time(), 0))
            task = loop.create_task(self._call(self.calls))
            self.calls += 1
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        for connection in self._idle:
            connection.close()

    async def _call(self, number: int) -> None:
        tool = "slow" if self._random.random() < 0.05 else "echo"
        connection: Connection | None = None
        try:
            connection = self._kept() or Connection(*await asyncio.open_connection("127.0.0.1", self._port))
            session = self._random.choice(self._sessions) if self._sessions else None
            body = await connection.post(_request(tool, number, session))
            if body["result"]["content"][0]["text"] != str(number):
                raise Broken(f"call {number} got another one's answer: {body}")
        except (OSError, EOFError, KeyError, ValueError, Broken) as error:
            self.problems.append(error)
            if connection is not None:
                connection.close()
        else:
            if connection.is_last:
                connection.close()
            else:
                self._idle.append(connection)

    def _kept(self) -> Connection | None:
        while self._idle:
            # The one that was used last: the others are idle for long, as in the pools of clients.
            connection = self._idle.pop()
            if not connection.is_ended:
                return connection
            connection.close()
        return None


class Connection:
    """HTTP/1.1 as a client's pool speaks it. `is_last` when the server has said that it closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.is_last = False
        self._head = ""

    @property
    def is_ended(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def open_session(self) -> str:
        """The id of a new session, whose client has shaken hands."""
        about: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "rolling", "version": "1"}}
        opening = {"id": 0, "method": "initialize", "params": {"protocolVersion": HANDSHAKE, **about}}
        await self.post(_written(opening, ()))
        session = re.findall(r"mcp-session-id: (\S+)", self._head)[0]
        self._writer.write(_written({"method": "notifications/initialized"}, _of_session(session)))
        await self._reader.readuntil(b"\r\n\r\n")
        return session

    async def is_known(self, session: str) -> bool:
        return "result" in await self.post(_written({"id": 1, "method": "ping"}, _of_session(session)))

    async def post(self, request: bytes) -> Any:
        self._writer.write(request)
        self._head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        head = self._head.lower()
        self.is_last = "\r\nconnection: close\r\n" in head
        if "text/event-stream" in head:
            events = await self._chunks()
            return json.loads(events.rpartition(b"data: ")[2])
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        return json.loads(await self._reader.readexactly(length))

    async def _chunks(self) -> bytes:
        found = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            found += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
        return found


def _request(tool: str, number: int, session: str | None) -> bytes:
    params: dict[str, Any] = {"name": tool, "arguments": {"number": number}}
    headers: tuple[str, ...] = (f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/call", f"mcp-name: {tool}")
    if session is None:
        params["_meta"] = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    else:
        headers = _of_session(session)
    return _written({"id": number, "method": "tools/call", "params": params}, headers)


def _of_session(session: str) -> tuple[str, ...]:
    return f"mcp-protocol-version: {HANDSHAKE}", f"mcp-session-id: {session}"


def _written(message: dict[str, Any], headers: tuple[str, ...]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **message})
    usual = ("host: localhost", "content-type: application/json", "accept: application/json, text/event-stream")
    return "\r\n".join(["POST /mcp HTTP/1.1", *usual, *headers, f"content-length: {len(body)}", "", body]).encode()
