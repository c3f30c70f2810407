"""Workers are replaced again and again while calls come: no call fails, and none is told to try again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import textwrap
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.killing import Tally
from tests.faults.process import Broken

WORKERS = 3
RATE = 200.0
PATIENCE = 60.0
STATELESS = "2026-07-28"
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
    return asyncio.run(_reload_workers(Random(seed), runs, rate, pause))


async def _reload_workers(random: Random, runs: int, rate: float, pause: float) -> Tally:
    async with _served() as (process, port):
        load = Load(port, random, rate)
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
        raise Broken(f"the supervisor said {line!r}, not {start!r}")
    return line


@asynccontextmanager
async def _served() -> AsyncGenerator[tuple[Process, int]]:
    with tempfile.TemporaryDirectory(prefix="rolling") as folder:
        file = Path(folder) / "served.py"
        file.write_text(textwrap.dedent(SERVER))
        on = ("--on", "http://127.0.0.1:0/mcp", "--workers", str(WORKERS), "--stateless")
        command = (sys.executable, "-m", "defserve", "run", str(file), *on)
        process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, env={**os.environ})
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
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.problems: list[BaseException] = []

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
            body = await connection.post(tool, number)
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

    @property
    def is_ended(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def post(self, tool: str, number: int) -> Any:
        self._writer.write(_request(tool, number))
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
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


def _request(tool: str, number: int) -> bytes:
    meta: dict[str, Any] = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"name": tool, "arguments": {"number": number}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    head = (
        "POST /mcp HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"mcp-protocol-version: {STATELESS}",
        "mcp-method: tools/call",
        f"mcp-name: {tool}",
        f"content-length: {len(body)}",
    )
    return "\r\n".join([*head, "", body]).encode()
