"""Stories of one store each: a server, or its Redis or Postgres, is killed again and again amid calls and rollbacks."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.faults.acknowledged import WINDOW, Acknowledged, Add, Asked, RollBack
from tests.faults.few_kept import KEEP
from tests.faults.notebook import EXAMPLE, FEW, Notebook
from tests.faults.process import PATIENCE, Broken, complaint
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

LONGEST_SECONDS = 0.25
AWAY = "The store cannot be reached"
CONFLICT = "The state was changed meanwhile; try again"
KEEPING = ("-c", "fsync=on")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@dataclass
class Tally:
    """What became of some runs. `restarts` are seconds until the store was of use again."""

    runs: int = 0
    acknowledged: int = 0
    rollbacks: int = 0
    restarts: list[float] = field(default_factory=list[float])

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.runs + other.runs,
            self.acknowledged + other.acknowledged,
            self.rollbacks + other.rollbacks,
            self.restarts + other.restarts,
        )


def kill_servers(seed: int, runs: int) -> Tally:
    """A server on an SQLite file is killed, and started again. Raises Broken."""
    random, tally = Random(seed), Tally()
    few = seed % 3 == 0
    told = Acknowledged(KEEP if few else None)
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        address = f"sqlite:///{Path(folder) / 'notes.db'}"
        for run in range(runs + 1):
            notebook = Notebook(address, FEW if few else EXAMPLE)
            try:
                told.check_head(notebook.texts)
                told.check_some(notebook, random)
                if run < runs:
                    traffic = _Traffic(notebook, told, random, f"{seed}.{run}")
                    traffic.run_for(random.uniform(0, LONGEST_SECONDS))
                    for answer in notebook.kill():
                        traffic.take(answer)
                    told.maybe += traffic.under_way.values()
                    tally.rollbacks += traffic.rollbacks
            finally:
                notebook.close()
            tally.restarts += [notebook.seconds] if run else []
        asyncio.run(told.check_all(address))
    tally.runs, tally.acknowledged = runs, len(told)
    return tally


def kill_redis(seed: int, runs: int) -> Tally:
    """The Redis of a server is killed and started again, while the server stays. Raises Broken."""
    redis = RedisServer(*DURABLE).start()
    return _kill_store(redis, redis.address, seed, runs, LONGEST_SECONDS)


def kill_postgres(seed: int, runs: int) -> Tally:
    """The same with a Postgres, all of whose processes are killed at once. Raises Broken."""
    postgres = PostgresServer(*KEEPING).start()
    return _kill_store(postgres, postgres.url, seed, runs, 4 * LONGEST_SECONDS)


def _kill_store(server: RedisServer | PostgresServer, address: str, seed: int, runs: int, longest: float) -> Tally:
    random, tally, told = Random(seed), Tally(), Acknowledged()
    notebook = Notebook(address)
    try:
        for run in range(runs):
            traffic = _Traffic(notebook, told, random, f"{seed}.{run}")
            traffic.run_for(random.uniform(0, longest))
            server.kill()
            traffic.finish(tolerates=AWAY)
            if (wrong := complaint(notebook.ask("tools/call", {"name": "list_notes", "arguments": {}}))) != AWAY:
                raise Broken(f"without its store the server says: {wrong}")
            server.start()  # how long it needs for itself is its own business
            began = time.monotonic()
            told.check_head(notebook.read())
            tally.restarts.append(time.monotonic() - began)
            told.check_some(notebook, random)
            tally.rollbacks += traffic.rollbacks
        asyncio.run(told.check_all(address))
    finally:
        notebook.close()
        server.remove()
    tally.runs, tally.acknowledged = runs, len(told)
    return tally


def share_redis(seed: int, runs: int, calls: int = 15) -> Tally:
    """Two servers write to one tree at once, and one of them may be killed: nothing is lost or forks. Raises Broken."""
    redis = RedisServer(*DURABLE).start()
    return _share_store(redis, lambda run: f"{redis.address}?prefix={run}:", seed, runs, calls)


def share_postgres(seed: int, runs: int, calls: int = 15) -> Tally:
    """The same on one Postgres. Raises Broken."""
    postgres = PostgresServer(*KEEPING).start()
    return _share_store(postgres, lambda run: f"{postgres.url}&schema=run_{run}", seed, runs, calls)


def _share_store(
    server: RedisServer | PostgresServer, make_address: Callable[[int], str], seed: int, runs: int, calls: int
) -> Tally:
    random, tally = Random(seed), Tally(runs=runs)
    try:
        for run in range(runs):
            address = make_address(run)
            notebooks = [Notebook(address, speaks_mcpl=False) for _ in range(2)]
            try:
                kill_at = time.monotonic() + random.uniform(0, LONGEST_SECONDS) if run % 2 else None
                writers = [_Writer(book, f"{number}", calls) for number, book in enumerate(notebooks)]
                _write_at_once(writers, kill_at)
                survivor = notebooks[0]
                texts = survivor.read()
                _check_shared(survivor, texts, writers)
                tally.acknowledged += sum(len(writer.told) for writer in writers)
            finally:
                for notebook in notebooks:
                    notebook.close()
    finally:
        server.remove()
    return tally


class _Traffic:
    """Notes are added, some at a time, and now and then the state is rolled back."""

    def __init__(self, notebook: Notebook, told: Acknowledged, random: Random, name: str) -> None:
        self._notebook, self._told, self._random, self._name = notebook, told, random, name
        self._window = random.randint(1, WINDOW)
        self._count = 0
        self.under_way: dict[int, Asked] = {}
        self.rollbacks = 0

    def run_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        following = self._next()
        while time.monotonic() < until:
            while self._may_send(following):
                following = self._send(following)
            answer = self._notebook.receive(until)
            if answer is None:
                return
            self.take(answer)

    def take(self, answer: dict[str, object], tolerates: str | None = None) -> None:
        asked = self.under_way.pop(int(str(answer["id"])))
        self._told.take(asked, answer, tolerates)

    def finish(self, tolerates: str) -> None:
        """Wait for all answers."""
        while self.under_way:
            answer = self._notebook.receive(time.monotonic() + PATIENCE)
            if answer is None:
                raise Broken(f"{self.under_way} were never answered")
            self.take(answer, tolerates)

    def _next(self) -> Asked:
        target = self._told.target(self._random) if self._random.random() < 0.2 else None
        if target is not None:
            return RollBack(target)
        self._count += 1
        return Add(f"{self._name}.{self._count}")

    def _may_send(self, following: Asked) -> bool:
        """A rollback is alone: else nobody could say what it has undone."""
        is_alone = any(isinstance(asked, RollBack) for asked in self.under_way.values())
        if is_alone or isinstance(following, RollBack):
            return not self.under_way
        return len(self.under_way) < self._window

    def _send(self, asked: Asked) -> Asked:
        if isinstance(asked, RollBack):
            self.rollbacks += 1
            self.under_way[self._notebook.roll_back(asked.checkpoint)] = asked
        else:
            self.under_way[self._notebook.add(asked.text)] = asked
        return self._next()


class _Writer:
    """Adds notes one after another, each until it is taken."""

    def __init__(self, notebook: Notebook, name: str, calls: int) -> None:
        self.notebook, self._name, self._left = notebook, name, calls
        self.told: list[str] = []
        self.asked: str | None = None
        self._ask()

    def step(self, seconds: float) -> bool:
        """Whether there is more to do."""
        answer = self.notebook.receive(time.monotonic() + seconds) if self.asked is not None else None
        if answer is not None:
            self.take(answer)
        return self.asked is not None

    def take(self, answer: dict[str, object]) -> None:
        wrong, text = complaint(answer), self.asked
        assert text is not None
        if wrong is None:
            self.told.append(text)
            self._left -= 1
        elif wrong != CONFLICT:
            raise Broken(f"{text} failed: {wrong}")
        self._ask()

    def _ask(self) -> None:
        self.asked = f"{self._name}.{self._left}" if self._left else None
        if self.asked is not None and self.notebook.process.poll() is None:
            self.notebook.add(self.asked)


def _write_at_once(writers: list[_Writer], kill_at: float | None) -> None:
    victim = writers[-1]
    working = list(writers)
    until = time.monotonic() + PATIENCE
    while working:
        if time.monotonic() > until:
            raise Broken("two servers on one store kept each other from writing")
        if kill_at is not None and time.monotonic() >= kill_at and victim in working:
            working.remove(victim)
            answers = victim.notebook.kill()
            if answers and complaint(answers[0]) is None:
                victim.told.append(str(victim.asked))
                victim.asked = None
            kill_at = None
        working = [writer for writer in working if writer.step(0.005)]


def _check_shared(notebook: Notebook, texts: list[str], writers: list[_Writer]) -> None:
    told = [text for writer in writers for text in writer.told]
    if not set(told) <= set(texts):
        raise Broken(f"{sorted(set(told) - set(texts))} were lost")
    if not set(texts) - set(told) <= {writer.asked for writer in writers} or len(set(texts)) != len(texts):
        raise Broken(f"{sorted(set(texts) - set(told))} were never acknowledged, or {texts} are there twice")
    versions = notebook.value("versions")
    if versions != list(range(1, len(texts) + 1)):
        raise Broken(f"the tree has forked: {versions}")
