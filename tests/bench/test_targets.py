"""The arithmetic of ratios, verdicts and percentiles; nothing here is timed."""

from __future__ import annotations

import pytest

from tests.bench.measure import percentile
from tests.bench.report import as_json, as_markdown, table
from tests.bench.results import Results
from tests.bench.targets import TARGETS, Target, judge
from tests.bench.traffic import Timing
from tests.rows import for_each_row

FASTER = Target("calls, to the floor", "calls/add/1", "calls/add/1", "floor", at_least=True, bound=0.7)
SMALLER = Target("1,000 tools, to 3", "list/1000", "list/3", "defserve", at_least=False, bound=3)


def results_of(**medians: float) -> Results:
    """Results whose keyword `calls_add_1__floor` is the measure `calls/add/1` of the floor."""
    results = Results()
    for key, value in medians.items():
        measure, contender = key.split("__")
        results.add(measure.replace("_", "/"), contender, value)
    return results


@for_each_row(("ours", "met"), [(70.0, True), (69.0, False)])
def test_a_rate_must_reach_its_share_of_the_base(ours: float, met: bool) -> None:
    (verdict,) = judge(results_of(calls_add_1__defserve=ours, calls_add_1__floor=100), (FASTER,))
    assert verdict.met is met


@for_each_row(("ours", "met"), [(300.0, True), (301.0, False)])
def test_a_time_must_not_pass_its_multiple_of_another_measure(ours: float, met: bool) -> None:
    (verdict,) = judge(results_of(list_1000__defserve=ours, list_3__defserve=100), (SMALLER,))
    assert verdict.met is met


def test_a_target_with_a_side_missing_is_neither_met_nor_missed() -> None:
    (verdict,) = judge(results_of(calls_add_1__defserve=70), (FASTER,))
    assert (verdict.got, verdict.met) == (None, None)


def test_a_figure_is_the_median_of_its_rounds_and_their_range() -> None:
    results = Results()
    for value in (9.0, 1.0, 2.0):
        results.add("calls/add/1", "floor", value)
    figure = results.figure("calls/add/1", "floor")
    assert figure is not None
    assert (figure.median, figure.low, figure.high) == (2.0, 1.0, 9.0)


def test_a_ratio_compares_within_rounds_so_that_drift_cancels() -> None:
    results = Results()
    for machine in (1.0, 2.0, 4.0):
        results.add("calls/add/1", "floor", 100 * machine)
        results.add("calls/add/1", "defserve", 80 * machine)
    results.add("calls/add/1", "floor", 100)
    results.add("calls/add/1", "defserve", 400)
    assert results.ratio("calls/add/1", "defserve", "calls/add/1", "floor") == pytest.approx(0.8)


def test_nothing_is_compared_with_a_base_of_nothing() -> None:
    results = results_of(opened_http__defserve=1, opened_http__floor=0)
    assert results.ratio("opened/http", "defserve", "opened/http", "floor") is None


@for_each_row(("percent", "microseconds"), [(50, 50), (99, 99), (100, 100)])
def test_a_percentile_is_a_latency_that_occurred(percent: int, microseconds: int) -> None:
    latencies = [n / 1e6 for n in range(100, 0, -1)]
    assert round(percentile(Timing(1.0, latencies), percent)) == microseconds


@for_each_row(("ours", "met"), [(4096.0, True), (4097.0, False)])
def test_a_target_without_a_base_bounds_the_figure_itself(ours: float, met: bool) -> None:
    small = Target("an idle session", "memory/idle", "", "", at_least=False, bound=4096, unit="bytes")
    (verdict,) = judge(results_of(memory_idle__defserve=ours), (small,))
    assert (verdict.got, verdict.met) == (ours, met)
    assert small.wanted == "≤ 4096 bytes"


def test_no_two_targets_make_the_same_claim() -> None:
    assert len({target.claim for target in TARGETS}) == len(TARGETS)


def test_the_report_shows_a_missed_target_and_the_ratio_behind_it() -> None:
    results = results_of(calls_add_1__defserve=50, calls_add_1__floor=100)
    verdicts = judge(results, (FASTER,))
    text = as_markdown(results, verdicts, {"machine": "2 cores"}, ["floor", "defserve"])
    assert "| calls, to the floor | ≥ 0.7 × | 0.5 × |   ✗ |" in text
    assert "| add, window 1 |   100 |       50 |              0.5 |" in text
    assert as_json(results, verdicts, {})["targets"][0]["met"] is False


def test_a_table_lines_up() -> None:
    lines = table(["", "floor"], [["add", "12"], ["price_order", "3"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
