"""A worker as its supervisor sees it: a process, and a link to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.serving.workers.link import WorkerLink
from defserve.serving.workers.membership import VARIABLE, GroupSecrets, Membership

Asked: TypeAlias = Callable[["WorkerProcess", str, Any], Awaitable[Any]]
"""Answers what a worker asks."""

REPORT_SECONDS: Final = 1.0
"""How long a worker that hangs has to write where it is."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`command` starts a worker. It must end in `Server.run(workers=…)`. `sockets` are bound file descriptors."""

    command: tuple[str, ...]
    count: int
    sockets: tuple[int, ...]
    secrets: GroupSecrets


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A worker that is not ready after `start`, or misses the pings of `hang`, is replaced.

    One that died sooner than `proven` is started again after a wait, which doubles from `base` to `cap`. One that
    should have ended is killed `kill_after` so many seconds more.
    """

    start: float = 120.0
    ping: float = 2.0
    hang: float = 30.0
    proven: float = 10.0
    base: float = 0.5
    cap: float = 30.0
    kill_after: float = 5.0
    answer: float = 2.0


class WorkerProcess:
    """`is_ready` when it serves. `drain_seconds` is how long it may take to finish its calls, in its own words."""

    link: WorkerLink

    def __init__(self, number: int, process: Process) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.pid, self.began = number, process.pid, loop.time()
        self.drain_seconds = 0.0
        self._process, self._loop = process, loop
        self._ready: asyncio.Future[None] = loop.create_future()
        self._reading: asyncio.Task[None] | None = None
        self.exited = loop.create_task(process.wait())
        self.replaced: asyncio.Future[None] = loop.create_future()
        """Done when another worker has its place."""

    @classmethod
    async def start(cls, plan: GroupPlan, number: int, asked: Asked) -> WorkerProcess:
        """Raises OSError if the system has no room for a process, or cannot find its program."""
        worker: WorkerProcess | None = None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                worker = cls(number, await _run(plan, Membership.of(number, plan.count, theirs, plan.sockets), theirs))
            ours.sendall(plan.secrets.written())
            ours.setblocking(False)
            worker.link = await WorkerLink.over(ours, lambda what, about: asked(worker, what, about))
        except BaseException:
            ours.close()
            if worker is not None:
                worker.send_signal(signal.SIGKILL)
            raise
        worker._reading = worker._loop.create_task(worker.link.run())
        return worker

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid})"

    @property
    def is_ready(self) -> bool:
        return self._ready.done() and not self.exited.done()

    def ready(self, drain_seconds: float) -> None:
        self.drain_seconds = drain_seconds
        if not self._ready.done():
            self._ready.set_result(None)

    @property
    def age(self) -> float:
        return self._loop.time() - self.began

    async def until_ready(self, seconds: float) -> str | None:
        """None when it serves; otherwise why it does not. It may still run then."""
        await asyncio.wait((self._ready, self.exited), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return None
        return self.end_in_words() if self.exited.done() else f"is not ready after {seconds:g} s"

    async def over(self, timing: Timing) -> str:
        """Wait until it has ended, hangs or is replaced. Says how it ended, or that it hangs."""
        unanswered, received = 0, self.link.last_received
        while not self.exited.done():
            self.link.send("ping")
            await asyncio.wait((self.exited, self.replaced), timeout=timing.ping, return_when=asyncio.FIRST_COMPLETED)
            if self.replaced.done():
                return ""
            # Pings are counted, not seconds: a machine that slept has done nothing wrong.
            unanswered = unanswered + 1 if received == self.link.last_received else 0
            received = self.link.last_received
            if unanswered * timing.ping >= timing.hang and not self.exited.done():
                return f"has not answered for {timing.hang:g} s"
        return self.end_in_words()

    def end_in_words(self) -> str:
        code = self.exited.result()
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"

    async def report_and_kill(self) -> None:
        """Kill one that hangs. It first writes where each of its threads is, if it still can."""
        self.send_signal(signal.SIGQUIT)
        await asyncio.wait((self.exited,), timeout=REPORT_SECONDS)
        await self.kill()

    async def end(self, seconds: float) -> bool:
        """Wait so long until it has ended by itself, then kill it. Returns whether it ended by itself."""
        await asyncio.wait((self.exited,), timeout=seconds)
        by_itself = self.exited.done()
        await self.kill()
        return by_itself

    async def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        await self.exited
        if self._reading is not None:
            await self._reading  # the socket is at its end: what it said last is heard

    def send_signal(self, number: signal.Signals) -> None:
        if not self.exited.done():
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _run(plan: GroupPlan, member: Membership, theirs: socket.socket) -> Process:
    return await asyncio.create_subprocess_exec(
        *plan.command,
        stdin=DEVNULL,
        env={**os.environ, VARIABLE: member.written()},
        pass_fds=(theirs.fileno(), *plan.sockets),
        # Ctrl-C is for the supervisor. As a second signal it would end a worker at once.
        process_group=0,
    )
