"""The Redis of workers dies, and a Sentinel makes its replica the new one: sessions go on.

Redis replicates after it has answered, so the last moment before may be lost: of events nothing is promised here.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.faults.killing import Tally
from tests.faults.process import Broken
from tests.faults.sessions.client import Client
from tests.faults.sessions.group import Group, served
from tests.waiting import wait_until

WORKERS, CLIENTS = 2, 4
SERVICE = "defserve-test"
# Milliseconds after which a Sentinel believes that a Redis is gone.
DOWN_AFTER = 1000
FAILOVER_SECONDS = 90.0


class Sentinel:
    """A Redis, its replica, and a Sentinel that watches them, on ports of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.primary, self.replica, self.port = _free_ports(3)

    def start(self) -> None:
        self._start(self.primary)
        self._start(self.replica, "--replicaof", "127.0.0.1", str(self.primary))
        wait_until(lambda: "state=online" in _ask(self.primary, "INFO replication"))
        self._watch()

    @property
    def address(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}/0"

    def _start(self, port: int, *settings: str) -> None:
        folder = self._folder / str(port)
        folder.mkdir()
        program = shutil.which("redis-server")
        assert program is not None
        options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "")
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0")
        self._run(port, program, *options, *durable, *settings)

    def _watch(self) -> None:
        program, file = shutil.which("redis-server"), self._folder / "sentinel.conf"
        assert program is not None
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary} 1",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}",
            f"sentinel failover-timeout {SERVICE} 10000",
        )
        file.write_text("\n".join(lines) + "\n")
        self._run(self.port, program, str(file), "--sentinel")
        # It must know of the replica before it can choose it.
        wait_until(lambda: "slaves=1" in _ask(self.port, "INFO sentinel"))

    def _run(self, port: int, *command: str) -> None:
        quiet = subprocess.DEVNULL
        self._running[port] = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        wait_until(lambda: "redis_version" in _ask(port, "INFO server"))

    def kill_primary(self) -> None:
        """The replica has everything that was written so far."""
        wait_until(lambda: _offset(self.primary) <= _offset(self.replica))
        self._running[self.primary].kill()
        self._running[self.primary].wait()

    def has_failed_over(self) -> bool:
        return "role:master" in _ask(self.replica, "INFO replication")

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _ask(port: int, command: str) -> str:
    """What a Redis says; empty if it does not."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as asking, asking.makefile("rb") as said:
            asking.sendall(command.encode() + b"\r\n")
            head = said.readline()
            return said.read(int(head[1:])).decode(errors="replace") if head.startswith(b"$") else ""
    except OSError:
        return ""


def _offset(port: int) -> int:
    said = _ask(port, "INFO replication")
    return int(said.partition("master_repl_offset:")[2].partition("\r\n")[0] or 0)


@contextmanager
def sentinel() -> Generator[Sentinel]:
    with tempfile.TemporaryDirectory(prefix="sentinel", ignore_cleanup_errors=True) as folder:
        made = Sentinel(Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.end()


def fail_over(seed: int, runs: int) -> Tally:
    """The Redis that sessions are in dies `runs` times, each in a group of its own. Raises Broken."""
    tally = Tally()
    for run in range(runs):
        with sentinel() as redis:
            tally += asyncio.run(_fail_over(Random(seed + run), redis))
    return tally


async def _fail_over(random: Random, redis: Sentinel) -> Tally:
    async with served(WORKERS, redis.address) as running:
        clients = [Client(f"c{number}", Random(random.random()), lambda: [running.port]) for number in range(CLIENTS)]
        for client in clients:
            await client.open()
        over = asyncio.Event()
        talking = [asyncio.create_task(_talk(client, over)) for client in clients]
        try:
            await asyncio.sleep(random.uniform(0.5, 2.0))
            await asyncio.to_thread(redis.kill_primary)
            began = asyncio.get_running_loop().time()
            await asyncio.to_thread(wait_until, redis.has_failed_over, FAILOVER_SECONDS)
            await _all_go_on(clients, running, talking)
            seconds = asyncio.get_running_loop().time() - began
        finally:
            over.set()
            ended = await asyncio.gather(*talking, return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
        print(f"             sessions go on {seconds:.1f} s after their Redis died")
        return Tally(1, acknowledged=sum(client.answered for client in clients))


async def _talk(client: Client, over: asyncio.Event) -> None:
    while not over.is_set():
        token = f"{client.name}/{client.last + 1}"
        said = await client.call("ask", {"token": token}, [])
        if said not in (None, f"{client.name} {client.last}"):
            raise Broken(f"{client.name} {client.last} got the answer of {said}")
        if (text := await client.call("echo", {"text": token})) not in (None, token):
            raise Broken(f"{client.name} got {text}")


async def _all_go_on(clients: list[Client], running: Group, talking: list[asyncio.Task[None]]) -> None:
    """Each session is written to again: a question is asked in it, and answered."""
    before = [client.answered for client in clients]
    async with asyncio.timeout(FAILOVER_SECONDS):
        while any(client.answered < had + 4 for client, had in zip(clients, before, strict=True)):
            for task in talking:
                if task.done():
                    task.result()
                    raise Broken(f"a client has ended; the workers said {running.said[-3:]}")
            await asyncio.sleep(0.1)
