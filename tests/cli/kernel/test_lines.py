"""What `defserve kernel` prints of a kernel's answers."""

from __future__ import annotations

from typing import Any

from defserve.cli.kernel_actions import health_lines, ps_lines
from tests.rows import for_each_row

ROW: dict[str, Any] = {"id": "a", "state": "connected", "tools": 0, "calls": 0, "calls_total": 0, "restarts": 0}


@for_each_row(
    ("row", "tools", "calls"),
    [
        ({}, "0", "0"),
        ({"tools": 3, "calls_total": 7}, "3", "7"),
        ({"tools": 3, "calls_total": 7, "calls": 2}, "3", "7 (2 run)"),
        ({"state": "connecting"}, "-", "0"),
        ({"state": "restarting", "tools": 3}, "3", "0"),
    ],
)
def test_ps_counts_all_calls_and_does_not_guess_tools(row: dict[str, Any], tools: str, calls: str) -> None:
    head, line = ps_lines([ROW | row])
    cells = {name: line[head.index(name) :] for name in ("TOOLS", "CALLS")}
    assert cells["TOOLS"].split()[0] == tools
    assert cells["CALLS"].startswith(f"{calls} ")


TRACEBACK = """python exited with code 1; its last words:
  | Traceback (most recent call last):
  |   File "notes.py", line 3, in <module>
  | defserve.errors.UsageError: notes.py:3: f: parameter 'a' has no type
  |   fix: annotate it, for example `a: str`"""


@for_each_row(
    ("row", "note"),
    [
        (
            {"note": TRACEBACK},
            "python exited with code 1: notes.py:3: f: parameter 'a' has no type; fix: annotate it, ",
        ),
        ({"note": "python exited with code 1; its last words:\n  | KeyError: 'TEAM'"}, "code 1: KeyError: 'TEAM'"),
        ({"note": "cannot start 'x'\n  fix: put it on PATH"}, "cannot start 'x'; fix: put it on PATH"),
        (
            {"note": "it ended", "gave_up": "gave up after 5 restarts in 300 s"},
            "gave up after 5 restarts in 300 s (start it: defserve kernel start a): it ended",
        ),
    ],
)
def test_a_server_that_failed_says_why_and_what_to_do(row: dict[str, Any], note: str) -> None:
    assert note in " ".join(ps_lines([ROW | {"state": "error"} | row]))


def test_health_shows_the_line_that_matters() -> None:
    row = {"id": "a", "state": "restarting", "status": "unhealthy", "problem": TRACEBACK}
    assert "notes.py:3: f: parameter 'a' has no type" in " ".join(health_lines([row]))
