"""What a scenario runs in: a server process of its own, a clock, and the samples."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.soak.sampling import Counter, Series, family, usage
from tests.waiting import wait_until

SERVER = Path(__file__).with_name("served.py")
ROOT = Path(__file__).parents[2]
EVERY = 1.0
START_SECONDS = 300.0
"""All scenarios start at the same time, on however busy a machine."""


class Stage:
    """`seconds` is how long a scenario runs. Whatever it starts with `serve` is sampled."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.random, self.series, self.counter = Random(seed), Series(), Counter()
        self.facts: dict[str, float] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="soak")
        self.folder = Path(self._folder.name)
        self.vitals = self.folder / "vitals"
        self.watched: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        """The time counts from now: the server is up."""
        self._began = self._sampled = time.monotonic()
        self._until = self._began + self._seconds

    @property
    def is_going(self) -> bool:
        return time.monotonic() < self._until

    @property
    def environment(self) -> dict[str, str]:
        paths = os.pathsep.join((str(ROOT / "framework"), str(ROOT)))
        return {**os.environ, "PYTHONPATH": paths, "SOAK_VITALS": str(self.vitals)}

    def spawn(self, command: Iterable[str], *, pipes: bool = False, **env: str) -> subprocess.Popen[bytes]:
        """A process that is sampled, and killed at the end."""
        stdin, stdout = (subprocess.PIPE, subprocess.PIPE) if pipes else (subprocess.DEVNULL, subprocess.DEVNULL)
        with (self.folder / "log").open("ab") as log:
            made = subprocess.Popen(
                [*command], stdin=stdin, stdout=stdout, stderr=log, env={**self.environment, **env}, bufsize=0
            )
        self._processes.append(made)
        self.watched.append(made.pid)
        return made

    def serve(self, on: str, *options: str, command: Iterable[str] = (), **env: str) -> str:
        """A server at an address; where it is reached."""
        run = command or ("run", str(SERVER))
        made = self.spawn([sys.executable, "-m", "defserve", *run, "--on", on, *options], **env)
        wait_until(lambda: "serving on " in self.log or made.poll() is not None, START_SECONDS)
        self.begin()
        found = re.search(r"serving on (\S+)", self.log)
        if found is None:
            raise RuntimeError(f"the server does not start: {self.log[-1000:]}")
        return found[1]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def tasks(self) -> float:
        """The asyncio tasks of the server, as it last told. Raises OSError before it did."""
        return float(self.vitals.read_text())

    def sample(self) -> None:
        """Once a second at most."""
        now = time.monotonic()
        if now - self._sampled < EVERY:
            return
        self._sampled = now
        found = usage(self.watched) | self.counter.sample()
        with suppress(OSError, ValueError):
            found["tasks"] = self.tasks
        self.series.add(now - self._began, found)

    async def run(self, *loads: Callable[[], Awaitable[None]]) -> None:
        """Repeat every load until the time is over. An exception of a load is a failure, and not the end."""

        async def repeat(load: Callable[[], Awaitable[None]]) -> None:
            while self.is_going:
                try:
                    await load()
                except Exception as error:
                    self.counter.wrong(f"{type(error).__name__}: {error}"[:300])
                    await asyncio.sleep(0.05)

        async def sample() -> None:
            while self.is_going:
                self.sample()
                await asyncio.sleep(0.1)

        await asyncio.gather(sample(), *map(repeat, loads))

    def close(self) -> None:
        for process in self._processes:
            children = family(process.pid)[1:]
            process.kill()
            process.wait()
            for pid in children:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._folder.cleanup()
