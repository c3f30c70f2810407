"""Stories of one store each: processes that run tasks are killed, and another tells what became of the tasks.

Every kill hits a process that runs tasks: two of them never end by themselves.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tests.faults.killing import DURABLE, KEEPING, Tally
from tests.faults.process import PATIENCE, Broken, Json, ServedProcess, complaint
from tests.forking.spawning import quick_arguments
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

PROGRAM = Path(__file__).with_name("job_server.py")
JOBS = 10
ENDLESS_SECONDS = 3600.2
LONGEST_SECONDS = 0.2
EXTENSION = "io.modelcontextprotocol/"
META: Json = {
    EXTENSION + "protocolVersion": "2026-07-28",
    EXTENSION + "clientCapabilities": {"extensions": {EXTENSION + "tasks": {}}},
}
LOST = "the process that ran the task has died"


class Worker(ServedProcess):
    """A process that runs tasks and tells of them. `fresh`: an interpreter of its own, which can be stopped."""

    def __init__(self, store: str, log: Path, *, fresh: bool = False, **environment: str) -> None:
        arguments = [str(PROGRAM)] if fresh else quick_arguments(PROGRAM)
        super().__init__(arguments, {"JOBS_STORE": store, "JOBS_LOG": str(log), **environment})

    def start(self, tool: str, name: str, seconds: float) -> int:
        arguments = {"name": name, "seconds": seconds}
        return self.send("tools/call", {"name": tool, "arguments": arguments, "_meta": META})

    def tasks(self, method: str, ids: Sequence[str]) -> dict[str, Json]:
        """What a task method gives for each. Raises Broken for an error: an acknowledged task must be known."""
        asked = {self.send(method, {"taskId": id, "_meta": META}): id for id in ids}
        found: dict[str, Json] = {}
        until = time.monotonic() + PATIENCE
        while asked:
            if (answer := self.receive(until)) is None:
                raise Broken(f"{method} was not answered")
            if (wrong := complaint(answer)) is not None:
                raise Broken(f"{method} of an acknowledged task: {wrong}")
            found[asked.pop(answer["id"])] = answer["result"]
        return found


class Jobs:
    """The tasks that were acknowledged, by id: their tool and name. `cancelled` are those whose end was, too."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.waiting: dict[str, tuple[str, str]] = {}
        self.ended: dict[str, tuple[str, Json]] = {}
        self.cancelled: set[str] = set()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.ended)

    def take(self, answer: Json, asked: dict[int, tuple[str, str]]) -> None:
        if (wrong := complaint(answer)) is not None:
            raise Broken(f"a task was not made: {wrong}")
        self.waiting[answer["result"]["taskId"]] = asked.pop(answer["id"])

    def look(self, worker: Worker) -> None:
        """Let a process tell of all tasks that are not over."""
        for id, task in worker.tasks("tasks/get", list(self.waiting)).items():
            tool, name = self.waiting[id]
            if id in self.cancelled and task["status"] != "cancelled":
                raise Broken(f"{name} is {task['status']} after its cancellation was acknowledged")
            if task["status"] in ("completed", "failed", "cancelled"):
                del self.waiting[id]
                self.ended[name] = tool, task

    def judge(self) -> None:
        """Raises Broken if a task ran twice that must not, or ended otherwise than it says."""
        lines = self._log.read_text().splitlines()
        noted = Counter(lines)
        twice = [line for line in noted if line.startswith("begin once") and noted[line] > 1]
        if twice:
            raise Broken(f"ran twice: {twice}")
        for name, (tool, task) in self.ended.items():
            status = task["status"]
            if status == "completed" and task["result"]["content"][0]["text"] != name:
                raise Broken(f"{name} has the result of another")
            if status == "completed" and not (noted[f"begin {name}"] and noted[f"end {name}"]):
                raise Broken(f"{name} is completed and did not come to its end")
            if status == "failed" and (tool == "again" or LOST not in task["statusMessage"]):
                raise Broken(f"{name} has failed: {task['statusMessage']}")


def kill_on_sqlite(seed: int, runs: int) -> Tally:
    """Processes that share an SQLite file. Raises Broken."""
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        return kill_workers(f"sqlite:///{Path(folder) / 'tasks.db'}", Path(folder) / "log", seed, runs)


def kill_on_redis(seed: int, runs: int) -> Tally:
    """Processes that share a Redis. Raises Broken."""
    redis = RedisServer(*DURABLE).start()
    try:
        return kill_workers(redis.address, redis.folder / "log", seed, runs)
    finally:
        redis.remove()


def kill_on_postgres(seed: int, runs: int) -> Tally:
    """Processes that share a Postgres. Raises Broken."""
    postgres = PostgresServer(*KEEPING).start()
    try:
        with tempfile.TemporaryDirectory(prefix="faults") as folder:
            return kill_workers(postgres.url, Path(folder) / "log", seed, runs)
    finally:
        postgres.remove()


def kill_workers(store: str, log: Path, seed: int, runs: int) -> Tally:
    random, jobs = Random(seed), Jobs(log)
    observer = Worker(store, log)
    try:
        for run in range(runs):
            victim = Worker(store, log)
            try:
                _work_and_die(victim, observer, jobs, random, f"{seed}.{run}")
            finally:
                victim.close()
            jobs.look(observer)
            if random.random() < 0.3:
                # It runs some tasks of others again by now. Who was killed before, and who is killed after, does not
                # matter: the next process goes on.
                observer.close()
                observer = Worker(store, log)
        until = time.monotonic() + PATIENCE
        while jobs.waiting:
            jobs.look(observer)
            if time.monotonic() > until:
                raise Broken(f"{len(jobs.waiting)} tasks are not over: {list(jobs.waiting.values())[:3]}")
            time.sleep(0.05)
        jobs.judge()
    finally:
        observer.close()
    return Tally(runs=runs, acknowledged=len(jobs))


def _work_and_die(victim: Worker, observer: Worker, jobs: Jobs, random: Random, run: str) -> None:
    asked = {victim.start(tool, name, seconds): (tool, name) for tool, name, seconds in _work(random, run)}
    until = time.monotonic() + PATIENCE
    # The endless ones are the first: the process that is killed runs them.
    while len(asked) > JOBS and (answer := victim.receive(until)) is not None:
        jobs.take(answer, asked)
    endless = [id for id, (_, name) in jobs.waiting.items() if name.endswith(f"{run}.0")]
    until = time.monotonic() + random.uniform(0, LONGEST_SECONDS)
    while asked and (answer := victim.receive(until)) is not None:
        jobs.take(answer, asked)
    if endless and random.random() < 0.3:
        observer.tasks("tasks/cancel", endless[:1])
        jobs.cancelled.add(endless[0])
    for answer in victim.kill():
        jobs.take(answer, asked)


def _work(random: Random, run: str) -> Iterator[tuple[str, str, float]]:
    """Tool, name and seconds of the tasks of one run: first those that do not end before the kill."""
    yield "once", f"once {run}.0", ENDLESS_SECONDS
    yield "again", f"again {run}.1", ENDLESS_SECONDS
    for number in range(2, 2 + JOBS):
        tool = random.choice(("once", "again"))
        yield tool, f"{tool} {run}.{number}", random.uniform(0, 2 * LONGEST_SECONDS)
