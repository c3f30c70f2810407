"""Workers of one supervisor, and the Redis that they share: killed, and started again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from tests.faults.process import PATIENCE, ROOT, Broken
from tests.stores.redis_server import RedisServer

SERVER = Path(__file__).with_name("server.py")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")

OLDEST = 0.85
START_SECONDS = 120.0


class Group:
    """`said` is what the supervisor and its workers wrote last."""

    def __init__(self, process: Process, count: int, redis: RedisServer | None) -> None:
        self._process, self._count, self._redis = process, count, redis
        self.port = 0
        self.said: list[str] = []
        self._reading: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        assert self._process.stderr is not None
        line = ""
        while not line.startswith("serving on "):
            line = (await asyncio.wait_for(self._process.stderr.readline(), START_SECONDS)).decode()
            if not line:
                raise Broken(f"the workers did not start: {self.said}")
            self.said.append(line)
        self.port = int(line.split(":")[2].partition("/")[0])
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.said = [*self.said[-99:], line.decode(errors="replace")]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def workers(self) -> list[int]:
        """The processes that run as workers, with those that are just starting."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    async def until_ready(self) -> None:
        """Until at least half of the workers serve. On a busy machine one takes long to start."""
        async with asyncio.timeout(START_SECONDS):
            while 2 * await self._ready() < self._count:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _ready(self) -> int:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return 0
        try:
            writer.write(b"GET /readyz/group HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            found = re.search(rb"(\d+) of \d+ workers ready", await asyncio.wait_for(reader.read(), START_SECONDS))
            return int(found[1]) if found else 0
        except OSError:
            return 0
        finally:
            writer.close()

    def kill_one(self, random: Random) -> None:
        """Mostly one of the older workers: a supervisor starts one that died young only after a wait."""
        if found := self.workers():  # in the order in which they started
            os.kill(found[0] if random.random() < OLDEST else random.choice(found), signal.SIGKILL)

    async def restart_redis(self, seconds: float) -> None:
        assert self._redis is not None
        self._redis.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._redis.start)

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), PATIENCE)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reading is not None:
            await self._reading


@asynccontextmanager
async def group(workers: int) -> AsyncGenerator[Group]:
    """Workers, and a Redis that forgets nothing."""
    redis = RedisServer(*DURABLE).start()
    try:
        async with served(workers, redis.address, redis) as running:
            yield running
    finally:
        redis.remove()


@asynccontextmanager
async def served(workers: int, address: str, redis: RedisServer | None = None) -> AsyncGenerator[Group]:
    """Workers that share what is at an address."""
    on = ("--on", "http://127.0.0.1:0/mcp", "--workers", str(workers))
    command = (sys.executable, "-m", "defserve", "run", str(SERVER), *on)
    environment = {**os.environ, "SHARED": address, "BEGAN": str(time.time()), "PYTHONPATH": str(ROOT / "framework")}
    process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, env=environment, start_new_session=True)
    running = Group(process, workers, redis)
    try:
        await running.begin()
        yield running
    finally:
        await running.end()
