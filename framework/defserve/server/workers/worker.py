"""A worker: serves on the inherited sockets, and does what its supervisor says.

Its supervisor names it in the environment and gives it a socket to talk on: JSON lines in which either side asks and
the other answers.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import select
import signal
import socket
import time
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

from defserve.base.concurrency import BackgroundTasks
from defserve.protocols.mgp.lifecycle import measure_memory_bytes
from defserve.serve.connection import exit_process_unless
from defserve.serve.session_opener import SessionOpener
from defserve.server.metrics import add_metric_label, format_metric_head, format_metric_labels

WORKER_LINGER_SECONDS: Final = 10.0
"""How long a worker that leaves keeps connections on which nothing comes: longer than most clients keep them. On the
others the next response says that it is the last."""
LOOK_SECONDS: Final = 0.1
SECONDS: Final = 4.0
"""How long a worker waits for what its supervisor gathers."""
ORPHAN_SECONDS: Final = 5.0

HealthReport = Callable[[], Awaitable[tuple[int, bytes]]]


class Worker:
    """`measured` and `readiness` are what this process says of itself."""

    def __init__(
        self,
        member: WorkerMembership,
        control: socket.socket,
        provider: SessionOpener,
        measured: HealthReport,
        readiness: HealthReport,
    ) -> None:
        self.member, self._control, self._provider = member, control, provider
        self._measured, self._readiness = measured, readiness
        self._link: WorkerLink | None = None
        self._listener: Any = None
        self._tasks = BackgroundTasks()
        self._is_leaving = False

    # -- its supervisor ----------------------------------------------------------------------------------

    def on_listening(self, listener: Any) -> None:
        """It listens: tell the supervisor. Called on the loop."""
        self._listener = listener
        leave = self._provider.over

        def tell_end_and_leave(seconds: float) -> None:
            # If a client has ended this worker, the whole group ends.
            if self._link is not None and not (self._is_leaving or self._listener.signals):
                self._link.send("ended")
            leave(seconds)

        self._provider.over = tell_end_and_leave
        faulthandler.register(signal.SIGQUIT)  # shows where it hangs, before the supervisor kills it
        self._tasks.start(self._attend())

    async def _attend(self) -> None:
        self._link = link = await WorkerLink.open_link(self._control, self._answer_supervisor)
        limits = self._provider.limits
        link.send("ready", limits.drain + limits.farewell)
        # If the supervisor was killed, end as if it had asked: accept no more, and finish the running calls.
        _on_hang_up(self._control.fileno(), asyncio.get_running_loop(), self.retire_worker, lambda: self._is_leaving)
        await link.run()

    async def _answer_supervisor(self, what: str, about: Any) -> Any:
        match what:
            case "metrics":
                return await self._figures(about)
            case "readiness":
                status, word = await self._readiness()
                return [status, word.decode()]
            case "leave":
                self.retire_worker()
            case "end":
                self._is_leaving = True
                self._provider.request_stop()
            case _:  # a ping: that this runs is the answer
                pass
        return None

    def retire_worker(self) -> None:
        """Others take over: accept no more, tell each client to come back on another connection, and end."""
        if not self._is_leaving:
            self._is_leaving = True
            self._listener.retire()
            self._tasks.start(self._linger())

    async def _linger(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + WORKER_LINGER_SECONDS
        while loop.time() < until and self._listener.state.connections:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        # Before calls are refused: who comes too late finds a closed connection, and opens another one elsewhere.
        for connection in list(self._listener.state.connections):
            connection.shut_down()
        self._provider.request_stop()

    # -- for callers -------------------------------------------------------------------------------------

    @property
    def probes(self) -> dict[str, HealthReport]:
        """The group's health, beside that of this process."""
        return {
            "/healthz/group": partial(self._group_state, "live"),
            "/readyz/group": partial(self._group_state, "ready"),
        }

    async def metrics(self) -> tuple[int, bytes]:
        """The metrics of all workers; those of this one, if the supervisor is silent."""
        found = await self._of_group("metrics")
        return 200, (found if isinstance(found, str) else await self._figures()).encode()

    async def _figures(self, most: int = 1 << 30) -> str:
        """The metrics of this worker, each with its number. Lines past `most` characters are left out."""
        _, measured = await self._measured()
        text = "".join(f"{line}\n" for line in _of_process()) + measured.decode()
        text = add_metric_label(text, format_metric_labels(worker=str(self.member.number))[1:-1])
        return text if len(text) <= most else text[: text.rfind("\n", 0, most) + 1] + CUT

    async def _group_state(self, word: str) -> tuple[int, bytes]:
        found = await self._of_group("state")
        if found is None:
            return 503, b"the supervisor does not answer"
        text = f"{found[word]} of {found['count']} workers {word}".encode()
        return 200 if found[word] == found["count"] and not found["stopping"] else 503, text

    async def _of_group(self, what: str) -> Any:
        with suppress(WorkerLinkLost):
            if self._link is not None:
                return await self._link.send_request(what, seconds=SECONDS)
        return None


def _on_hang_up(
    number: int, loop: asyncio.AbstractEventLoop, action: Callable[[], None], happened: Callable[[], bool]
) -> None:
    """Run `action` on the loop when the other end of a socket is closed. A loop that is stuck is ended."""

    def wait() -> None:
        poll = select.poll()
        poll.register(number, 0)  # only its end, not what comes
        poll.poll()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(action)
            exit_process_unless(happened, ORPHAN_SECONDS, 1)

    start_new_thread(wait, ())


# -- What a worker measures of its own process, in the words that Prometheus's own clients use.


CUT: Final = "# the rest was left out: it is too long\n"


def _of_process() -> Iterator[str]:
    yield from format_metric_head("defserve_worker_info", "gauge", "The process of a worker.")
    yield f"defserve_worker_info{format_metric_labels(pid=str(os.getpid()))} 1"
    yield from format_metric_head("process_cpu_seconds_total", "counter", "Processor time of the process.")
    yield f"process_cpu_seconds_total {time.process_time():.3f}"
    if (memory := measure_memory_bytes()) is not None:
        yield from format_metric_head("process_resident_memory_bytes", "gauge", "Memory of the process.")
        yield f"process_resident_memory_bytes {memory}"


# -- The conversation between a supervisor and a worker: JSON lines in which either side asks and the other answers.


MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""Room for the metrics of a whole group."""

Answers: TypeAlias = Callable[[str, Any], Awaitable[Any]]
"""What is asked, and about what → the answer, which is JSON."""


class WorkerLinkLost(Exception):
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
    async def open_link(cls, one: socket.socket, answers: Answers) -> WorkerLink:
        return cls(*await asyncio.open_connection(sock=one, limit=MAX_LINE_BYTES), answers)

    def send(self, what: str, about: Any = None) -> None:
        """Ask without waiting for the answer."""
        self._send({"ask": next(self._ids), "what": what, "about": about})

    async def send_request(self, what: str, about: Any = None, *, seconds: float) -> Any:
        """The answer. Raises WorkerLinkLost if none comes in time."""
        id = next(self._ids)
        waiting = self._waiting[id] = self._loop.create_future()
        self._send({"ask": id, "what": what, "about": about})
        try:
            async with asyncio.timeout(seconds):
                return await waiting
        except TimeoutError:
            raise WorkerLinkLost(f"no answer to {what!r} within {seconds:g} s") from None
        finally:
            del self._waiting[id]

    async def run(self) -> None:
        try:
            # A line that is too long is a ValueError; nothing can be read behind it.
            with suppress(ConnectionError, ValueError):
                while line := await self._reader.readline():
                    self.last_received = self._loop.time()
                    self._handle_message(json.loads(line))
        finally:
            self.close()

    def close(self) -> None:
        if not self._writer.is_closing():
            with suppress(OSError):
                self._writer.write_eof()  # a thread may wait for this socket; then closing it alone tells nobody
            self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerLinkLost("the other side is gone"))

    def _handle_message(self, message: dict[str, Any]) -> None:
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


# -- How a worker knows that it is one: its supervisor names it in the environment, and gives it a socket to talk on.


WORKER_VARIABLE: Final = "DEFSERVE_WORKER"
MAX_SECRETS_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class WorkerMembership:
    """The place of a worker in its group. `control` and `sockets` are file descriptors that it inherits.

    `inode` is that of `control`. A process that a worker starts has the same environment, but not that socket.
    """

    number: int
    count: int
    control: int
    inode: int
    sockets: tuple[int, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_sockets(
        cls, number: int, count: int, control: socket.socket, sockets: tuple[int, ...]
    ) -> WorkerMembership:
        return cls(number, count, control.fileno(), os.fstat(control.fileno()).st_ino, sockets)


@dataclass(frozen=True, slots=True)
class WorkerGroupSecrets:
    """The first line that a supervisor sends. The environment is no place for secrets.

    `key` is the local token of the address, if it has one. `secret` seals questions, if the server has no secret.
    """

    key: str | None
    secret: str

    def to_json_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def read_worker_membership(environment: Mapping[str, str] = os.environ) -> WorkerMembership | None:
    """What this process is in a group of workers; None if it is not a worker."""
    written = environment.get(WORKER_VARIABLE)
    if written is None:
        return None
    with suppress(ValueError, TypeError, KeyError, OSError):
        given: dict[str, Any] = json.loads(written)
        found = replace(WorkerMembership(**given), sockets=tuple(given["sockets"]))
        if os.fstat(found.control).st_ino == found.inode:
            return found
    return None


def join_worker_group(member: WorkerMembership) -> tuple[socket.socket, WorkerGroupSecrets]:
    """Take the control socket and read the secrets. Raises EOFError if the supervisor is gone.

    After that, processes of this worker cannot take themselves for one.
    """
    os.environ.pop(WORKER_VARIABLE, None)
    for number in (member.control, *member.sockets):
        os.set_inheritable(number, False)
    control = socket.socket(fileno=member.control)
    control.setblocking(True)
    line = b""
    # One byte at a time: what follows belongs to the loop.
    while not line.endswith(b"\n") and len(line) < MAX_SECRETS_BYTES:
        piece = control.recv(1)
        if not piece:
            control.close()
            raise EOFError("the supervisor is gone")
        line += piece
    return control, WorkerGroupSecrets(**json.loads(line))
