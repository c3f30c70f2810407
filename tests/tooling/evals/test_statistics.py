"""The figures, by numbers that others computed; and the gate, by simulation."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from defserve.tooling.evals.judging import (
    FRESH_RUNS_PER_SUSPECT,
    FreshTallies,
    Tally,
    compute_bootstrap_interval,
    compute_fisher_p,
    compute_pass_all,
    compute_pass_any,
    compute_sign_flip_p,
    compute_wilson_interval,
    judge_change,
    judge_tally,
)


def test_eight_of_ten_has_the_interval_of_wilson() -> None:
    low, high = compute_wilson_interval(Tally(8, 10))
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)


def test_eight_of_ten_passes_three_times_in_a_row_with_0467() -> None:
    assert round(compute_pass_all(Tally(8, 10), 3), 3) == 0.467


def test_one_of_three_passes_more_often_than_one() -> None:
    assert round(compute_pass_any(Tally(8, 10), 3), 3) == 1.0
    assert compute_pass_any(Tally(1, 2), 1) == 0.5


@pytest.mark.parametrize(
    ("old", "new", "p"), [(Tally(5, 5), Tally(0, 5), 0.00397), (Tally(20, 20), Tally(12, 20), 0.00164)]
)
def test_fishers_test_has_the_known_values(old: Tally, new: Tally, p: float) -> None:
    assert round(compute_fisher_p(old, new), 5) == p


def test_no_change_is_no_news() -> None:
    assert compute_fisher_p(Tally(5, 5), Tally(5, 5)) == 1.0
    assert compute_sign_flip_p([0.0, 0.0]) == 1.0


def test_of_five_runs_four_pass_three_are_unclear_two_fail() -> None:
    assert [judge_tally(Tally(count, 5), 0.8) for count in (5, 4, 3, 2)] == ["pass", "pass", "unclear", "fail"]


def test_a_case_with_missing_runs_is_never_green() -> None:
    assert judge_tally(Tally(1, 1), 0.8, missing=9) == "incomplete"
    assert judge_tally(Tally(0, 0), 0.8) == "incomplete"


def test_ten_falls_of_ten_are_one_in_1024() -> None:
    assert compute_sign_flip_p([-0.2] * 10) == pytest.approx(1 / 1024)
    assert compute_sign_flip_p([0.2] * 10) == 1.0


def test_the_suite_is_drawn_by_cases() -> None:
    low, high = compute_bootstrap_interval([1.0, 0.0] * 10, [1.0] * 20)
    assert 0.2 < low < 0.5 < high < 0.8
    assert compute_bootstrap_interval([1.0] * 4, [1.0] * 4) == (1.0, 1.0)


SIMULATIONS, RUNS = 2_000, 5


def simulate(break_cases: int, seed: int, simulations: int = SIMULATIONS) -> float:
    """How often the gate raises an alarm. Half of 30 cases are right with 99.5 %, half with Beta(6, 1)."""
    draw = Random(seed)
    alarms = 0
    for _ in range(simulations):
        rates = [0.995] * 15 + [draw.betavariate(6, 1) for _ in range(15)]
        later = [0.3 if at < break_cases else rate for at, rate in enumerate(rates)]
        alarms += asyncio.run(_is_alarm(rates, later, draw))
    return alarms / simulations


async def _is_alarm(rates: list[float], later: list[float], draw: Random) -> bool:
    def sample(rate: float, runs: int) -> Tally:
        return Tally(sum(draw.random() < rate for _ in range(runs)), runs)

    async def run_fresh(name: str) -> FreshTallies:
        return FreshTallies(
            sample(rates[int(name)], FRESH_RUNS_PER_SUSPECT), sample(later[int(name)], FRESH_RUNS_PER_SUSPECT)
        )

    old = {str(at): sample(rate, RUNS) for at, rate in enumerate(rates)}
    new = {str(at): sample(rate, RUNS) for at, rate in enumerate(later)}
    return (await judge_change(old, new, dict.fromkeys(old, 1.0), run_fresh)).is_worse


@pytest.mark.slow
def test_the_gate_raises_at_most_two_false_alarms_in_a_hundred() -> None:
    assert simulate(0, seed=1) <= 0.02


@pytest.mark.slow
def test_the_gate_finds_three_broken_cases_in_95_of_a_hundred() -> None:
    assert simulate(3, seed=2) >= 0.95
