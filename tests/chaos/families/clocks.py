"""Clocks that jump while a server runs (libfaketime): the wall clock only, as administrators and NTP move it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from defserve.client import Answers, Client, ProcessLink
from defserve.errors import DefserveError
from tests.attack.trial import MissingFeature, Trial
from tests.chaos.fault import SERVERS, Faults
from tests.faults.killing_tasks import Worker
from tests.faults.notebook import EXAMPLE
from tests.faults.process import PATIENCE, Broken

CLOCKS = Faults("clocks")
FAMILIES = (CLOCKS,)

DAY = 86400
JUMPS = {"half an hour forward": 1800, "a day forward": DAY, "ten years forward": 3652 * DAY, "a day back": -DAY}


@cache
def library() -> str:
    """Raises MissingFeature."""
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
    ):
        for name in (f"{folder}/faketime/libfaketime.so.1",):
            if Path(name).exists():
                return name
    raise MissingFeature("there is no libfaketime (apt-get install libfaketime)")


class FakeClock:
    """The wall clock of processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.jump(0)
        self.environment = {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: float) -> None:
        """From the true time by so much."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.0f}\n")
        new.rename(self._file)


def _folder(trial: Trial, name: str) -> Path:
    found = trial.arena.folder / f"{name}-{trial.random.randrange(1 << 40)}"
    found.mkdir()
    return found


def _for_each_jump(name: str, expected: str, run: Callable[[Trial, float], None]) -> None:
    for words, seconds in JUMPS.items():
        CLOCKS.add(f"{name}: {words}", expected, lambda trial, seconds=seconds: run(trial, seconds))


def sessions(trial: Trial, seconds: float) -> None:
    folder = _folder(trial, "session")
    clock = FakeClock(folder)

    async def run() -> None:
        env = {**trial.arena.environment, **clock.environment, "ATTACK_MARKS": str(folder / "marks")}
        for era in ("2025-11-25", "2026-07-28"):
            clock.jump(0)
            link = await ProcessLink.spawn(sys.executable, [f"{SERVERS}/marking.py"], env=env)
            async with Client(link, version=era, timeout=20) as client:
                await client.call("mark", word="before")
                waiting = asyncio.create_task(client.call("slow", seconds=0.5))
                clock.jump(seconds)
                for n in range(5):
                    said = await client.call("mark", word=f"after-{n}")
                    trial.expect(said == f"marked after-{n}", f"after the jump: {said!r}")
                said = await waiting
                trial.expect(said == "slept", f"a call during which the clock jumped: {said!r}")

    asyncio.run(run())


def session_opener(trial: Trial, seconds: float) -> None:
    folder = _folder(trial, "web")
    clock = FakeClock(folder)
    from tests.chaos.fault import kind

    served = trial.arena.serve(kind(**clock.environment), fresh=True)

    async def run() -> None:
        from defserve.client.targets import connect_url

        url = f"http://{served.place.authority}/mcp"
        async with Client(await connect_url(url), version="2025-11-25", timeout=20) as client:
            session = client._conversation._link.session_id  # type: ignore[attr-defined]
            clock.jump(seconds)
            for n in range(5):
                said = await client.call("mark", word=f"web-{n}")
                trial.expect(said == f"marked web-{n}", f"after the jump: {said!r}")
            same = client._conversation._link.session_id  # type: ignore[attr-defined]
            trial.expect(session == same, "the session was lost")

    asyncio.run(run())
    trial.expect("Traceback" not in served.new_log, served.new_log[-300:])
    trial.arena.drop(served)


def states(trial: Trial, seconds: float) -> None:
    folder = _folder(trial, "state")
    clock = FakeClock(folder)

    async def run() -> None:
        env = {**trial.arena.environment, **clock.environment, "NOTES_STORE": f"sqlite:///{folder / 'notes.db'}"}
        link = await ProcessLink.spawn(sys.executable, [str(EXAMPLE)], env=env)
        async with Client(link, version="2025-11-25", timeout=20) as client:
            await client.call("add_note", text="one")
            clock.jump(seconds)
            for text in ("two", "three"):
                try:
                    await client.call("add_note", text=text)
                except DefserveError as error:
                    trial.expect(False, f"after the jump a note was refused: {error}")
            notes = await client.call("list_notes")
            trial.expect(notes == ["one", "two", "three"], f"the notes are {notes}")
        link = await ProcessLink.spawn(sys.executable, [str(EXAMPLE)], env=env)
        async with Client(link, version="2025-11-25", timeout=20) as client:
            notes = await client.call("list_notes")
            trial.expect(notes == ["one", "two", "three"], f"in a new process the notes are {notes}")

    asyncio.run(run())


def questions(trial: Trial, seconds: float) -> None:
    folder = _folder(trial, "ask")
    clock = FakeClock(folder)

    async def run() -> None:
        env = {**trial.arena.environment, **clock.environment, "CHAOS_AUDIT": str(folder / "audit.jsonl")}
        env["DEFSERVE_AUDIT_KEY"] = "0123456789abcdef0123456789abcdef"
        link = await ProcessLink.spawn(sys.executable, [f"{SERVERS}/keeping.py"], env=env)

        def answer(message: str, schema: dict[str, Any]) -> dict[str, str]:
            clock.jump(seconds)
            return dict.fromkeys(schema["properties"], "Ada")

        async with Client(link, version="2026-07-28", timeout=20, answers=Answers(ask=answer)) as client:
            began = time.monotonic()
            try:
                said = await client.call("ask")
            except DefserveError as error:
                said = str(error)
            is_told = said == "hello Ada" or "expired" in said or "too old" in said
            trial.expect(is_told and time.monotonic() - began < 15, f"the answer is {said!r}")
            trial.notes.append(said)
            clock.jump(0)

    asyncio.run(run())


def tasks(trial: Trial, seconds: float) -> None:
    folder = _folder(trial, "tasks")
    clock = FakeClock(folder)
    store, log = f"sqlite:///{folder / 'tasks.db'}", folder / "log"
    environment = {"JOBS_HEARTBEAT": "5", **clock.environment}
    runner, other = (Worker(store, log, fresh=True, **environment) for _ in range(2))
    try:
        runner.start("once", "once", 3.0)
        answer = runner.receive(time.monotonic() + PATIENCE)
        assert answer is not None
        id = answer["result"]["taskId"]
        time.sleep(0.3)
        clock.jump(seconds)
        end = time.monotonic() + PATIENCE
        try:
            while (task := other.tasks("tasks/get", [id])[id])["status"] == "working" and time.monotonic() < end:
                time.sleep(0.02)
        except Broken as gone:
            # A task is kept for an hour.
            trial.expect(seconds > 3600 and "none any more" in str(gone), str(gone))
            return
        trial.expect(task["status"] == "completed", f"the task is {task['status']}: {task.get('statusMessage')}")
        lines = log.read_text().splitlines()
        trial.expect(lines == ["begin once", "end once"], f"it ran as {lines}")
    finally:
        runner.close()
        other.close()


_for_each_jump("a server of pipes", "every call is answered", sessions)
_for_each_jump("a session over HTTP", "the session goes on", session_opener)
_for_each_jump("a state in SQLite", "nothing is lost, and the order stays", states)
_for_each_jump("an open question", "it is answered, or the error says that it has expired", questions)
_for_each_jump(
    "a task of two processes",
    "it runs once, and to its end; if its hour is over, it is gone, and the error says so",
    tasks,
)
