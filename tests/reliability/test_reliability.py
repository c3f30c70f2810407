from __future__ import annotations

from typing import Any

from tests.reliability import __main__ as command
from tests.reliability.benchmarks import with_results
from tests.reliability.pages import reliability


def test_the_pages_are_made_of_the_results_that_are_kept():
    wrong = "the results have changed; run: python -m tests.reliability"
    assert command.RELIABILITY.read_text("utf-8") == command.reliability_page(), wrong
    assert command.BENCHMARKS.read_text("utf-8") == command.benchmarks_page(), wrong


def test_a_row_that_was_not_held_is_shown():
    machine = {"day": "2026-01-01", "system": "Linux", "python": "3.11", "version": "1"}
    row: dict[str, Any] = {"family": "disks", "attack": "a full disk", "expected": "it says so", "not_tried": None}
    rows = [{**row, "tried": 3, "held": 2, "good": False}]
    page = reliability({"seed": 1, "machine": machine, "rows": rows}, None, None)
    assert "| a full disk | it says so | **2/3** |" in page


def test_the_page_says_where_defserve_loses():
    figures = {
        "calls/add/1": {"floor": {"rounds": [100.0]}, "defserve": {"rounds": [80.0]}},
        "memory/after start": {"sdk": {"rounds": [50.0]}, "defserve": {"rounds": [20.0]}},
    }
    before = "# Benchmarks\n\n<!-- bench:begin -->\nold\n<!-- bench:end -->\n\nmore\n"
    page = with_results(before, {"facts": {"machine": "none"}, "measures": figures})
    assert page.startswith("# Benchmarks\n\n<!-- bench:begin -->\n- machine: none\n") and page.endswith("-->\n\nmore\n")
    assert "| calls | add, window 1 | floor | 1.25 × |" in page and "| memory | after start" not in page
