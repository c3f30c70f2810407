"""The conversation between a supervisor and a worker: JSON lines in which either side asks and the other answers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeAlias

from defserve.base.background import BackgroundTasks

LONGEST_LINE: Final = 8 * 1024 * 1024
"""Room for the metrics of a whole group."""

Answers: TypeAlias = Callable[[str, Any], Awaitable[Any]]
"""What is asked, and about what → the answer, which is JSON."""


class Gone(Exception):
    """The other side is gone, or does not answer in time."""


class WorkerLink:
    """Asks and is asked. `run` reads until the other side is gone.

    `last_received` is the loop's time of its last line.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers) -> None:
        self._reader, self._writer, self._answers = reader, writer, answers
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = count(1)
        self._tasks = BackgroundTasks()
        self.last_received = self._loop.time()

    @classmethod
    async def over(cls, one: socket.socket, answers: Answers) -> WorkerLink:
        return cls(*await asyncio.open_connection(sock=one, limit=LONGEST_LINE), answers)

    def send(self, what: str, about: Any = None) -> None:
        """Ask without waiting for the answer."""
        self._send({"ask": next(self._ids), "what": what, "about": about})

    async def ask(self, what: str, about: Any = None, *, seconds: float) -> Any:
        """The answer. Raises Gone if none comes in time."""
        id = next(self._ids)
        waiting = self._waiting[id] = self._loop.create_future()
        self._send({"ask": id, "what": what, "about": about})
        try:
            async with asyncio.timeout(seconds):
                return await waiting
        except TimeoutError:
            raise Gone(f"no answer to {what!r} within {seconds:g} s") from None
        finally:
            del self._waiting[id]

    async def run(self) -> None:
        try:
            # A line that is too long is a ValueError; nothing can be read behind it.
            with suppress(ConnectionError, ValueError):
                while line := await self._reader.readline():
                    self.last_received = self._loop.time()
                    self._take(json.loads(line))
        finally:
            self.close()

    def close(self) -> None:
        if not self._writer.is_closing():
            with suppress(OSError):
                self._writer.write_eof()  # a thread may wait for this socket; then closing it alone tells nobody
            self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Gone("the other side is gone"))

    def _take(self, message: dict[str, Any]) -> None:
        if "what" in message:
            self._tasks.start(self._answer(message))
        elif (waiting := self._waiting.get(message["answer"])) is not None and not waiting.done():
            waiting.set_result(message["value"])

    async def _answer(self, message: dict[str, Any]) -> None:
        value = await self._answers(message["what"], message["about"])
        self._send({"answer": message["ask"], "value": value})

    def _send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")
