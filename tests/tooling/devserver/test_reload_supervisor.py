"""When the development server starts its child again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from defserve.tooling.devserver import reload_supervisor
from defserve.tooling.devserver.handover import DevChildReport, ServePlan
from defserve.tooling.devserver.reload_supervisor import ReloadSupervisor
from tests.clock import run


class CrashingChild:
    """A child that serves, and ends by itself after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._exit = asyncio.ensure_future(asyncio.sleep(seconds, 3))

    async def wait_for_exit(self) -> int:
        return await asyncio.shield(self._exit)

    async def kill(self) -> None:
        self._exit.cancel()

    def read_report(self) -> DevChildReport:
        return DevChildReport()


class PretendFront:
    async def wait_until_ready(self, child: Any) -> None:
        pass

    def switch_to_child(self, child: Any, previous: Any) -> None:
        pass

    def on_child_exit(self, child: Any) -> None:
        pass


class PretendFiles:
    """Files of which one changes when a test sets `changed`."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def snapshot(self) -> dict[str, tuple[int, int]]:
        return {}

    def add(self, paths: object) -> None:
        pass

    add_trees = add

    def add_unchanged_files(self, before: object, since: float) -> None:
        pass

    async def wait_for_change(self, since: object) -> list[str]:
        await self.changed.wait()
        self.changed.clear()
        return ["server.py"]


class ExitRecorder:
    """Keeps the pause after each exit, and ends the run after the last one that is wanted."""

    address = ""

    def __init__(self, files: PretendFiles, wanted: int, change_at: int | None) -> None:
        self.wants_restart, self.pauses, self.done = asyncio.Event(), list[float | None](), asyncio.Event()
        self._files, self._wanted, self._change_at = files, wanted, change_at

    def show_exit(self, code: int, *, restarts_in: float | None) -> None:
        self.pauses.append(restarts_in)
        if len(self.pauses) == self._wanted:
            self.done.set()
        if len(self.pauses) == self._change_at:
            self._files.changed.set()

    def show_ready(self, *_: object) -> None:
        pass

    show_reload = show_ready


def find_pauses(
    monkeypatch: pytest.MonkeyPatch, *lives: float, change_at: int | None = None
) -> tuple[list[float | None], float]:
    """The pauses after children that lived so long, and the seconds until the last of them had ended."""
    found: list[float | None] = []
    seconds = 0.0

    async def crash() -> None:
        nonlocal seconds
        loop, left = asyncio.get_running_loop(), iter(lives)

        async def start(*_: object) -> CrashingChild:
            return CrashingChild(next(left, 1e6))

        monkeypatch.setattr(reload_supervisor, "monotonic", loop.time)
        monkeypatch.setattr(reload_supervisor.ServerProcess, "start", start)
        files: Any = PretendFiles()
        console: Any = ExitRecorder(files, len(lives), change_at)
        began = loop.time()
        supervising = asyncio.create_task(
            ReloadSupervisor(ServePlan("x.py"), PretendFront(), files, Path(), console).run()
        )
        await console.done.wait()
        seconds = loop.time() - began
        supervising.cancel()
        await asyncio.wait((supervising,))
        found.extend(console.pauses)

    run(crash())
    return found, seconds


def test_a_server_that_crashes_again_and_again_is_started_again_after_a_growing_pause(monkeypatch: pytest.MonkeyPatch):
    pauses, seconds = find_pauses(monkeypatch, *[1.5] * 9)
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert seconds == pytest.approx(9 * 1.5 + sum(filter(None, pauses[:-1])))


def test_a_crash_after_a_long_time_or_after_a_change_is_the_first_of_its_row(monkeypatch: pytest.MonkeyPatch):
    assert find_pauses(monkeypatch, 1.5, 1.5, 1.5, 31, 1.5)[0] == [0, 1, 2, 0, 1]
    assert find_pauses(monkeypatch, 1.5, 1.5, 1.5, 1.5, 1.5, change_at=3)[0] == [0, 1, 2, 0, 1]


def test_a_server_that_crashes_in_its_first_second_waits_for_a_change(monkeypatch: pytest.MonkeyPatch):
    assert find_pauses(monkeypatch, 1.5, 1.5, 0.5, 1.5, change_at=3)[0] == [0, 1, None, 0]
