"""A child as its parent sees it: two pipes, an exit code, and the files it said it is made of."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

from defserve.tooling.devserver.plan import Plan

LONGEST_LINE = 256 * 1024 * 1024
KILL_SECONDS = 5.0


class NotServing(Exception):
    """A child that does not do what children are for."""


class Child:
    """Ends when its standard input does; by force if it has not done so after a while."""

    def __init__(self, process: Process, report: Path) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.input, self.output = process.stdin, process.stdout
        self._process, self._report = process, report

    @classmethod
    async def start(cls, plan: Plan, report: Path) -> Child:
        process = await asyncio.create_subprocess_exec(
            *plan.reporting(str(report)).command(),
            stdin=PIPE,
            stdout=PIPE,
            limit=LONGEST_LINE,
            pass_fds=plan.sockets if os.name == "posix" else (),
        )
        return cls(process, report)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes) -> None:
        """As `send`, without waiting for the child to read."""
        with suppress(ConnectionError, RuntimeError):
            self.input.write(data)

    async def send(self, line: bytes) -> None:
        """Nothing comes of it where the child has gone; that is noticed at its output."""
        with suppress(ConnectionError, RuntimeError):
            self.input.write(line)
            await self.input.drain()

    async def exited(self) -> int:
        return await self._process.wait()

    async def end(self, seconds: float = KILL_SECONDS) -> None:
        """Tell it that nobody is left, and see to it that it goes."""
        self.input.close()
        try:
            async with asyncio.timeout(seconds):
                await self.exited()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self.exited()

    def files(self) -> list[str]:
        """What it was made of, as far as it came."""
        try:
            return json.loads(self._report.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
