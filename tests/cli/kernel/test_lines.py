"""What `defserve kernel` prints of a kernel's answers."""

from __future__ import annotations

from typing import Any

from defserve.cli.kernel_actions import ps_lines
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
