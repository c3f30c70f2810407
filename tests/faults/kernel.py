"""A story of one kernel: its servers are killed again and again under load, and at last the kernel itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from defserve.client import Client
from defserve.client.targets import connect_url
from defserve.errors import DefserveError, PeerGone
from defserve.kernel.control import ask_kernel
from tests.faults.killing import Tally
from tests.faults.process import PATIENCE, ROOT, Broken
from tests.waiting import until, wait_until

SERVER = Path(__file__).with_name("marking_server.py")
SERVERS = ("a", "b", "c")
# The one that all clients share, and two that give each client a process of its own.
PER = {"a": "shared", "b": "client", "c": "client"}
ERAS = ("2025-11-25", "2025-11-25", "2026-07-28")
MOST_RESTARTS = 1000


def kill_backends(seed: int, runs: int) -> Tally:
    """Kill a server of the kernel in each run, amid calls of three clients. Raises Broken."""
    with tempfile.TemporaryDirectory(prefix="kf") as folder:
        return asyncio.run(_Story(Path(folder), Random(seed)).tell(runs))


class _Story:
    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.config, self.marks = folder / "mgp.toml", folder / "marks"
        self.tokens = count()
        self.answered: list[str] = []
        self.refused: list[str] = []
        self.seen: set[int] = set()

    async def tell(self, runs: int) -> Tally:
        self.config.write_text("\n".join(map(self._entry, SERVERS)))
        self.marks.write_text("")
        tally = Tally(runs)
        with self._kernel() as (url, kernel):
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(Client(await connect_url(url), version=era)) for era in ERAS]
                for id in SERVERS:
                    await self._works(clients[0], id)
                over = asyncio.Event()
                load = [asyncio.create_task(self._load(client, over)) for client in clients]
                try:
                    for run in range(runs):
                        await self._kill(clients, SERVERS[run % len(SERVERS)])
                finally:
                    over.set()
                    await asyncio.gather(*load)
            self._check()
            tally.acknowledged = len(self.answered)
            self._kill_kernel(kernel)
        return tally

    # -- what happens --------------------------------------------------------------------------------------

    async def _load(self, client: Client, over: asyncio.Event) -> None:
        """Calls one after the other, of any server. An error is an answer; a client that is cut off is not."""
        while not over.is_set():
            id, token = self.random.choice(SERVERS), f"t{next(self.tokens)}"
            try:
                await client.call(f"{id}_mark", token=token)
            except PeerGone as error:
                raise Broken(f"a client was cut off: {error}") from None
            except DefserveError:
                self.refused.append(token)
                await asyncio.sleep(0.01)
            else:
                self.answered.append(token)

    async def _kill(self, clients: list[Client], id: str) -> None:
        """Kill the kernel's own process of a server, or that of a client, and wait until it answers again."""
        victim = int(self._row(id)["pid"] or 0)
        if self.random.random() < 0.5:
            with suppress(DefserveError):
                victim = int(await clients[0].call(f"{id}_pid"))
        self.seen.add(victim)
        await asyncio.sleep(self.random.random() * 0.05)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        await until(lambda: not _runs(victim), PATIENCE)
        await self._works(clients[0], id)
        if self._row(id)["state"] == "error":
            raise Broken(f"{id} was given up: {self._row(id)['note']}")

    async def _works(self, client: Client, id: str) -> None:
        """Wait until a call of this server is answered, by a server that the kernel calls connected."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(DefserveError):
                self.seen.add(int(await client.call(f"{id}_pid")))
                row = self._row(id)
                if row["state"] == "connected":
                    self.seen.add(row["pid"])
                    return
            if time.monotonic() > deadline:
                raise Broken(f"{id} does not come back: {self._row(id)}")
            await asyncio.sleep(0.01)

    def _check(self) -> None:
        marks = Counter(self.marks.read_text().split())
        if lost := [token for token in self.answered if not marks[token]]:
            raise Broken(f"{len(lost)} calls were answered and did not run")
        if twice := [token for token, times in marks.items() if times > 1]:
            raise Broken(f"{len(twice)} calls ran twice")
        if len(self.answered) != len(set(self.answered)):
            raise Broken("a call was answered twice")
        if not self.answered:
            raise Broken("no call was answered")

    def _kill_kernel(self, kernel: subprocess.Popen[str]) -> None:
        running = [pid for pid in self.seen if pid and _runs(pid)]
        if len(running) < len(SERVERS):
            raise Broken("the kernel has too few servers to tell")
        kernel.kill()
        kernel.wait(PATIENCE)
        try:
            wait_until(lambda: not any(map(_runs, running)), PATIENCE)
        except TimeoutError:
            raise Broken(f"a killed kernel left {[pid for pid in running if _runs(pid)]}") from None

    # -- the kernel ----------------------------------------------------------------------------------------

    def _row(self, id: str) -> dict[str, Any]:
        return next(row for row in ask_kernel(self.config, {"verb": "ps"}) if row["id"] == id)

    def _entry(self, id: str) -> str:
        return (
            f'[[servers]]\nid = "{id}"\nprefix = "{id}"\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\n'
            f'per = "{PER[id]}"\n[servers.env]\nMARKS = "{self.marks}"\nPYTHONPATH = "{ROOT / "framework"}"\n'
            f'[servers.mgp]\nrestart_policy = "on_failure"\nmax_restarts = {MOST_RESTARTS}\nbackoff_base_ms = 5\n'
            "backoff_max_ms = 50\n"
        )

    @contextmanager
    def _kernel(self) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        command = [sys.executable, "-m", "defserve", "kernel", "--config", str(self.config)]
        command += ["--on", "http://127.0.0.1:0/mcp", "--local-token"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                said: list[str] = []
                while not (line := process.stderr.readline()).startswith("serving on "):
                    said.append(line)
                    if not line:
                        raise Broken(f"the kernel does not start: {' '.join(said)}")
                url = line.split()[-1]
                # Its log must not fill the pipe.
                drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
                yield url, process
                process.kill()
                drain.wait(PATIENCE)
            finally:
                process.kill()


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
