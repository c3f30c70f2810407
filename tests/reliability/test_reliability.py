from __future__ import annotations

from typing import Any

from tests.reliability import __main__ as command
from tests.reliability.benchmarks import COMPARED, FIGURES, with_figures, with_results
from tests.reliability.pages import reliability


def test_the_pages_are_made_of_the_results_that_are_kept():
    wrong = "the results have changed; run: python -m tests.reliability"
    assert command.RELIABILITY.read_text("utf-8") == command.reliability_page(), wrong
    assert {page: page.read_text("utf-8") for page in command.bench_pages()} == command.bench_pages(), wrong


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


def test_the_rows_that_compare_have_the_figures():
    figures = {"rounds": [1500.0]}
    measures: dict[str, dict[str, Any]] = {name: dict.fromkeys(COMPARED, figures) for name in FIGURES.values()}
    measures["http/session"] = {**measures["http/session"], "fastmcp json": {"rounds": [2345.6]}}
    row = "| calls per second, HTTP with a session, 32 connections |"
    page = f"| memory after start | 1 | 2 | 3 |\n{row} 1 |\n| else | 1 |\n"
    assert with_figures(page, {"measures": measures}).splitlines() == [
        "| memory after start | 1500 MiB | 1500 MiB | 1500 MiB |",
        f"{row} 1,500 | 1,500; JSON mode 2,350 | 1,500 |",
        "| else | 1 |",
    ]
