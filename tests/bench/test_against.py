"""The comparison of two revisions: its arithmetic, and how the other one is fetched. Nothing here is timed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bench.against import THIS, Comparison, as_markdown, check_out, sections
from tests.bench.environment import ROOT
from tests.bench.results import Results
from tests.bench.state_measure import STATE
from tests.rows import for_each_row


def results_of(measure: str, ours: list[float], theirs: list[float]) -> Results:
    results = Results()
    for our, their in zip(ours, theirs, strict=True):
        results.add(measure, "defserve", our)
        results.add(measure, "other", their)
    return results


def compared(measure: str, ours: list[float], theirs: list[float]) -> Comparison:
    found = Comparison.of(results_of(measure, ours, theirs), measure, "other")
    assert found is not None
    return found


def test_the_ratio_is_of_rounds_and_its_spread_are_the_quartiles() -> None:
    found = compared("calls/add/1", [10, 22, 36, 52, 70], [10, 20, 30, 40, 50])
    assert (found.median, found.low, found.high) == pytest.approx((1.2, 1.1, 1.3))


@for_each_row(
    ("measure", "ours", "verdict"),
    [
        ("calls/add/1", [110.0, 112, 114, 116], "better"),
        ("calls/add/1", [90.0, 92, 94, 96], "worse"),
        ("cpu/add/1", [110.0, 112, 114, 116], "worse"),
        ("start/model", [90.0, 92, 94, 96], "better"),
        ("start/model", [90.0, 95, 105, 110], ""),
        ("start/model", [90.0, 92, 94], ""),
    ],
)
def test_a_verdict_needs_rounds_that_agree(measure: str, ours: list[float], verdict: str) -> None:
    assert compared(measure, ours, [100.0] * len(ours)).verdict(measure) == verdict


def test_one_round_has_no_spread() -> None:
    assert compared("list/3", [5], [10]) == Comparison(0.5, 0.5, 0.5, rounds=1)


def test_what_one_revision_lacks_is_left_out_of_the_report() -> None:
    results = results_of("http/session", [110] * 4, [100] * 4)
    results.add("http/new", "defserve", 1)
    text = as_markdown(results, "other", {"machine": "2 cores"})
    assert "| http: session |   100 |  110 | 1.100 | 1.100–1.100 | better |" in text
    assert "new" not in text


def test_every_section_of_stores_can_be_compared() -> None:
    assert set(STATE) < set(sections(THIS))


def test_no_such_commit_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--against no-such-commit"):
        check_out("no-such-commit", tmp_path)


@pytest.mark.slow
def test_another_commit_brings_its_own_servers(tmp_path: Path) -> None:
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True).returncode != 0:
        pytest.skip("not a git checkout")
    other = check_out("HEAD", tmp_path)
    assert other.stdio().script.is_relative_to(tmp_path) and other.stdio().script.exists()
    assert other.http().script.exists()
    assert (tmp_path / "framework" / "defserve" / "__init__.py").exists()
