"""Official clients as processes of their own: each package with its interpreter, told when to begin and to end."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.process import Broken
from tests.peers.catalogue import PY_1, PY_2, TS_1, TS_2
from tests.peers.packages import NotInstalled, Package
from tests.peers.peer import HANDSHAKE, STATELESS

FOLDER = Path(__file__).with_name("official")
# A call that was interrupted is told within seconds; the drivers themselves tell of one that hangs.
PATIENCE = 400.0


@dataclass(frozen=True)
class Official:
    name: str
    package: Package
    script: str
    version: str


OFFICIAL = (
    Official("Python 1.x", PY_1, "client.py", HANDSHAKE),
    Official("Python 2.x", PY_2, "client.py", HANDSHAKE),
    Official("Python 2.x, stateless", PY_2, "client.py", STATELESS),
    Official("TypeScript 1.x", TS_1, "client.cjs", HANDSHAKE),
    Official("TypeScript 2.x", TS_2, "client.cjs", HANDSHAKE),
    Official("TypeScript 2.x, stateless", TS_2, "client.cjs", STATELESS),
)


def installed() -> list[Official]:
    """Those that can be had here. Says which cannot."""
    found: list[Official] = []
    for each in OFFICIAL:
        try:
            each.package.install()
            found.append(each)
        except NotInstalled as error:
            print(f"             without {each.name}: {error}")
    return found


class Driver:
    """A process with some clients of one kind. `counts` are there when it has ended, `problems` at any time."""

    def __init__(self, official: Official, process: Process) -> None:
        self.official, self._process = official, process
        self.problems: list[str] = []
        self.counts = Counter[str]()
        self.lists: dict[str, int] = {}
        self._quiet = 0
        self._heard = asyncio.Condition()
        self._is_ready = self._has_ended = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, official: Official, url: str, seed: int, clients: int) -> Driver:
        name = official.name.replace(" ", "").replace(",", "-")
        plan = {"url": url, "name": name, "seed": seed, "version": official.version, "clients": clients}
        plan["package"] = str(official.package.folder)
        command = (str(official.package.program), str(FOLDER / official.script), json.dumps(plan))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)
        driver = cls(official, process)
        await driver.until(lambda: driver._is_ready)
        return driver

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                self._take(json.loads(line))
            except ValueError:
                self.problems.append(f"{self.official.name} said {line!r}")
            async with self._heard:
                self._heard.notify_all()
        self._has_ended = True
        async with self._heard:
            self._heard.notify_all()

    def _take(self, said: Any) -> None:
        match said:
            case {"problem": str(text)}:
                self.problems.append(text)
            case {"ready": True}:
                self._is_ready = True
            case {"quiet": _}:
                self._quiet += 1
            case {"lists": [name, heard]}:
                self.lists[name] = heard
            case {"counts": counts}:
                self.counts = Counter(counts)
            case _:
                raise ValueError

    async def until(self, is_so: Any) -> None:
        async with asyncio.timeout(PATIENCE), self._heard:
            await self._heard.wait_for(lambda: is_so() or self._has_ended)
        if not is_so():
            raise Broken(f"{self.official.name} has ended early: {self.problems}")

    def say(self, word: str) -> None:
        """The next phase begins: `begin`, `over`, and `quiet` when all the others are over too."""
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")

    async def until_quiet(self, clients: int) -> None:
        await self.until(lambda: self._quiet >= clients)

    async def end(self) -> None:
        await self.until(lambda: self.counts)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading
