"""A child process as its parent sees it: two pipes, an exit code, and the names of its source files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from defserve.tooling.devserver.plan import ServePlan

LONGEST_LINE = 256 * 1024 * 1024
KILL_SECONDS = 5.0


class NotServing(Exception):
    """A child that runs but does not serve."""


class ServerProcess:
    """A process that serves. It ends when its standard input does; if it is too slow, it is killed."""

    def __init__(self, process: Process, report: Path) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.input, self.output = process.stdin, process.stdout
        self._process, self._report = process, report

    @classmethod
    async def start(cls, plan: ServePlan, report: Path) -> ServerProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Without bytecode: Python would use the old one after an edit in the same second that keeps the size.
            "-B",
            # Without the current folder: it is an author's, and the child adds it where it may not shadow libraries.
            "-P",
            "-m",
            "defserve.tooling.devserver.child.main",
            replace(plan, report=str(report)).written(),
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
        """Like `send`, without waiting for the child to read."""
        with suppress(ConnectionError, RuntimeError):
            self.input.write(data)

    async def send(self, line: bytes) -> None:
        """Send a line. Does nothing if the child has ended; the end of its output shows that."""
        with suppress(ConnectionError, RuntimeError):
            self.input.write(line)
            await self.input.drain()

    async def exited(self) -> int:
        return await self._process.wait()

    async def end(self, seconds: float = KILL_SECONDS) -> None:
        """Close its standard input, and kill it if it has not ended after `seconds`."""
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
        """Its source files, as far as it has reported them."""
        return self._reported("files")

    def folders(self) -> list[str]:
        """The folders that it serves as they are."""
        return self._reported("folders")

    def _reported(self, kind: str) -> list[str]:
        try:
            return json.loads(self._report.read_text(encoding="utf-8"))[kind]
        except FileNotFoundError:
            return []
