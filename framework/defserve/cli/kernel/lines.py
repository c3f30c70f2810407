"""What a kernel answers, for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from defserve.cli.screen.blocks import Part, Table
from defserve.cli.screen.styles import state
from defserve.redaction import printable

COLUMNS: Final = ("ID", "STATE", "ERA", "TOOLS", "CALLS", "UP", "RESTARTS", "NOTE")
LONGEST_NOTE: Final = 100
UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def ps_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = list(answers)
    if not rows:
        return ("The file names no servers.",)
    return Table(COLUMNS, map(_row, rows), fit=("NOTE",), right=("TOOLS",))


def _row(row: dict[str, Any]) -> tuple[Part, ...]:
    held = ", ".join(row.get("held") or ())
    note = note_of(str(row.get("note") or "")) or (f"held until approved: {held}" if held else "")
    return (
        (row["id"], "title"),
        state(row["state"]),
        row.get("era") or "-",
        str(row.get("tools") or (0 if row["state"] == "connected" else "-")),
        calls(row),
        _up(row),
        _restarts(row),
        note if len(note) <= LONGEST_NOTE else f"{note[:LONGEST_NOTE]}…",
    )


def note_of(text: str) -> str:
    """How it ended, and the last line that it wrote: what a traceback ends with."""
    first, _, rest = text.strip().partition("\n")
    last = rest.rpartition("\n")[2].strip(" |")
    return f"{first.removesuffix('; its last words:')}: {last}" if rest and "fix:" not in last else first


def calls(row: dict[str, Any]) -> str:
    """All calls, and how many of them run."""
    return f"{row.get('calls_total', '-')}" + (f" ({row['calls']} run)" if row.get("calls") else "")


def _up(row: dict[str, Any]) -> str:
    if row["state"] != "connected" or "since" not in row:
        return "-"
    return duration(time.time() - datetime.fromisoformat(row["since"]).timestamp())


def duration(seconds: float) -> str:
    """`2h10m`, `4m03s`, `12s`."""
    for size, unit, smaller_size, smaller in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // smaller_size):02}{smaller}"
    return f"{max(int(seconds), 0)}s"


def _restarts(row: dict[str, Any]) -> str:
    """All restarts; while some are within the window, how many of those that are allowed."""
    if not row.get("recent_restarts") or row.get("max_restarts") is None:
        return str(row.get("restarts", "-"))
    return f"{row['recent_restarts']}/{row['max_restarts']}"


def journal_line(line: dict[str, Any]) -> str:
    mark = "|" if line["kind"] == "stderr" else "*"
    return printable(f"{line['time']}  {line['id']}  {mark} {line['text']}")


def state_line(answer: dict[str, Any]) -> str:
    return printable(f"{answer['id']} is {answer['state']}")


def reload_lines(answers: Iterable[Any]) -> Iterator[str]:
    for answer in answers:
        done = [
            f"{name}: {', '.join(answer[name])}"
            for name in ("added", "removed", "restarted", "adjusted")
            if answer[name]
        ]
        yield from map(printable, done or ["no server has changed"])
        for id, problem in answer["failed"].items():
            yield printable(f"not changed: {id}: {problem}")
        if answer["needs_start"]:
            yield printable(f"these settings of [kernel] need a new start: {', '.join(answer['needs_start'])}")


def search_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = list(answers)
    if not rows:
        return ("No tool fits.",)
    cells: list[tuple[Part, ...]] = [
        (
            (str(row.get("name", "")), "title"),
            f"{row.get('relevance_score', 0):.2f}",
            row.get("server_id") or "-",
            state(str(row.get("risk_level") or "-")),
            str(row.get("description") or "").partition("\n")[0][:LONGEST_NOTE],
        )
        for row in rows
    ]
    return Table(("NAME", "SCORE", "SERVER", "RISK", "DESCRIPTION"), cells, fit=("DESCRIPTION",))
