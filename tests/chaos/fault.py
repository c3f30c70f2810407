"""A row of the table: a fault, what is expected of servers and clients under it, and how it is tried.

Trying, judging and counting are those of the attacks: `Trial.expect` says of each look whether all was well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.attack.arena import Kind, Served
from tests.attack.trial import Attack, Run, Trial
from tests.waiting import wait_until

SERVERS = Path(__file__).parent / "servers"


class Faults:
    """Faults of one kind, gathered by a decorator: `@faults.row("a full disk", "the call fails, and says why")`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[Attack] = []

    def row(self, name: str, expected: str, *, growth: float = 40.0) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            self.add(name, expected, run, growth=growth)
            return run

        return add

    def add(self, name: str, expected: str, run: Run, *, growth: float = 40.0) -> None:
        self.rows.append(Attack(self.name, name, run, growth, expected))


def kind(file: str = "marking", *options: str, on: str = "http://127.0.0.1:0/mcp", **env: str) -> Kind:
    """A server of this folder."""
    return Kind(f"{SERVERS}/{file}", ("--log-level", "warning", *options), on, tuple(env.items()))


def marks_of(served: Served) -> list[str]:
    """The words that were marked, in order."""
    return served.marks.read_text().split("\n")[:-1] if served.marks.exists() else []


def expect_unharmed(trial: Trial, served: Served, files: int) -> None:
    """The server lives, has let go of what the fault left behind, and logged no mistake of its own."""
    trial.expect(served.is_alive, f"the server has ended: {served.log[-300:]}")
    trial.expect("Traceback" not in served.new_log, f"the server logged a traceback: {_traceback(served.new_log)}")
    if served.is_alive:
        try:
            wait_until(lambda: served.open_files <= files + 2, 20)
        except TimeoutError:
            trial.expect(False, f"the server holds {served.open_files} files open, before it were {files}")
        else:
            trial.expect(True, "")


def _traceback(log: str) -> str:
    return " ".join(log.partition("Traceback")[2].split())[-400:]
