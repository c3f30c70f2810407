"""What a few runs say about a model, and what they do not say.

Everything here is arithmetic on counts: no model, no file, no clock. Random draws have a fixed seed, so the same counts
always give the same verdict. docs/eval-statistics.md explains each figure to people who know no statistics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import comb, sqrt
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias

Z_95: Final = 1.959963984540054

Verdict: TypeAlias = Literal["pass", "unclear", "fail", "incomplete"]


class Tally(NamedTuple):
    """How many of so many runs passed."""

    passed: int
    runs: int

    @property
    def rate(self) -> float:
        return self.passed / self.runs if self.runs else 0.0


class Interval(NamedTuple):
    low: float
    high: float


def compute_wilson_interval(tally: Tally) -> Interval:
    """The rates that are compatible with a count, at 95 % (Wilson's score interval)."""
    if not tally.runs:
        return Interval(0.0, 1.0)
    runs, rate, square = tally.runs, tally.rate, Z_95 * Z_95
    middle = rate + square / (2 * runs)
    spread = Z_95 * sqrt(rate * (1 - rate) / runs + square / (4 * runs * runs))
    scale = 1 + square / runs
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return Interval(0.0 if tally.passed == 0 else max(0.0, low), 1.0 if tally.passed == runs else min(1.0, high))


def judge_tally(tally: Tally, least: float, missing: int = 0) -> Verdict:
    """Whether a case passes: at or above `least`; it fails if even the best rate that fits is below."""
    if missing or not tally.runs:
        return "incomplete"
    if tally.rate >= least:
        return "pass"
    return "fail" if compute_wilson_interval(tally).high < least else "unclear"


def compute_pass_all(tally: Tally, k: int) -> float:
    """pass^k: how often k runs in a row would all pass."""
    return comb(tally.passed, k) / comb(tally.runs, k) if 0 < k <= tally.runs else 0.0


def compute_pass_any(tally: Tally, k: int) -> float:
    """pass@k: how often at least one of k runs would pass."""
    return 1 - comb(tally.runs - tally.passed, k) / comb(tally.runs, k) if 0 < k <= tally.runs else 0.0


def compute_fisher_p(old: Tally, new: Tally) -> float:
    """How often chance alone would make `new` this much worse than `old` or more (Fisher's exact test, one-sided)."""
    passed, runs = old.passed + new.passed, old.runs + new.runs
    whole = comb(runs, new.runs)
    least = max(0, passed - old.runs)
    worse = range(least, new.passed + 1)
    return sum(comb(passed, at) * comb(runs - passed, new.runs - at) for at in worse) / whole if whole else 1.0


MAX_SUMS: Final = 50_000
DRAWS: Final = 10_000


def compute_sign_flip_p(differences: Sequence[float], *, seed: int = 0) -> float:
    """How often the sum would be this low or lower, if each difference had its sign by chance.

    Exact while the possible sums are few, as they are for counts; else by draws.
    """
    sizes = [abs(each) for each in differences if each]
    observed = sum(differences)
    if not sizes:
        return 1.0
    sums: dict[float, float] = {0.0: 1.0}
    for size in sizes:
        further: dict[float, float] = {}
        for value, share in sums.items():
            for moved in (round(value - size, 9), round(value + size, 9)):
                further[moved] = further.get(moved, 0.0) + share / 2
        sums = further
        if len(sums) > MAX_SUMS:
            return _draw_sign_flip_p(sizes, observed, seed)
    return min(1.0, sum(share for value, share in sums.items() if value <= observed + 1e-7))


def _draw_sign_flip_p(sizes: Sequence[float], observed: float, seed: int) -> float:
    draw = Random(seed)
    hits = sum(sum(size if draw.getrandbits(1) else -size for size in sizes) <= observed + 1e-9 for _ in range(DRAWS))
    return (hits + 1) / (DRAWS + 1)


RESAMPLES: Final = 2_000


def compute_bootstrap_interval(rates: Sequence[float], weights: Sequence[float], *, seed: int = 0) -> Interval:
    """The suite's score at 95 %, by drawing cases. Runs of one case are not independent, so they are not drawn."""
    if not rates:
        return Interval(0.0, 1.0)
    draw, means = Random(seed), list[float]()
    places = range(len(rates))
    for _ in range(RESAMPLES):
        chosen = draw.choices(places, k=len(rates))
        means.append(sum(rates[at] * weights[at] for at in chosen) / sum(weights[at] for at in chosen))
    means.sort()
    return Interval(means[int(RESAMPLES * 0.025)], means[int(RESAMPLES * 0.975)])


def compute_weighted_mean(rates: Sequence[float], weights: Sequence[float]) -> float:
    whole = sum(weights)
    return sum(rate * weight for rate, weight in zip(rates, weights, strict=True)) / whole if whole else 0.0


# -- The gate: is the suite worse than it was? Two questions with two tests, so that noise does not raise an alarm.


SUITE_P: Final = 0.01
MIN_FALL: Final = 0.02
"""Points that the score must fall, however sure the fall is."""
SUSPECT_P: Final = 0.2
CASE_P: Final = 0.01
FRESH_RUNS: Final = 20
"""Runs of a suspect with the old definitions, and as many with the new ones."""


class FreshTallies(NamedTuple):
    """Runs that were made for the gate alone, old and new definitions in turns."""

    old: Tally
    new: Tally


class GateResult(NamedTuple):
    """What the gate says. `suspects` maps each case that looked worse to its fresh runs; None if there are none."""

    score_before: float
    score_now: float
    suite_p: float
    suspects: Mapping[str, FreshTallies | None]
    worse_cases: tuple[str, ...]

    @property
    def is_suite_worse(self) -> bool:
        return self.suite_p < SUITE_P and self.score_before - self.score_now >= MIN_FALL - 1e-9

    @property
    def is_worse(self) -> bool:
        return self.is_suite_worse or bool(self.worse_cases)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Suspects without fresh runs: nobody knows whether they are worse."""
        return tuple(name for name, fresh in self.suspects.items() if fresh is None)


RunFresh: TypeAlias = Callable[[str], Awaitable[FreshTallies | None]]


async def judge_change(
    old: Mapping[str, Tally], new: Mapping[str, Tally], weights: Mapping[str, float], run_fresh: RunFresh
) -> GateResult:
    """Compare the cases that both have. `run_fresh` measures a suspect again; None if it cannot."""
    names = [name for name in new if name in old and old[name].runs and new[name].runs]
    differences = [weights[name] * (new[name].rate - old[name].rate) for name in names]
    shares = [weights[name] for name in names]
    suspects: dict[str, FreshTallies | None] = {}
    for name in find_suspects({name: (old[name], new[name]) for name in names}):
        suspects[name] = await run_fresh(name)
    worse = tuple(name for name, fresh in suspects.items() if fresh is not None and is_case_worse(fresh, len(suspects)))
    return GateResult(
        compute_weighted_mean([old[name].rate for name in names], shares),
        compute_weighted_mean([new[name].rate for name in names], shares),
        compute_sign_flip_p(differences),
        suspects,
        worse,
    )


def find_suspects(pairs: Mapping[str, tuple[Tally, Tally]]) -> list[str]:
    """The cases that look worse than before. Many do by chance: they are only measured again."""
    return [
        name for name, (old, new) in pairs.items() if new.rate < old.rate and compute_fisher_p(old, new) < SUSPECT_P
    ]


def is_case_worse(fresh: FreshTallies, suspects: int) -> bool:
    """Whether the fresh runs alone say so. With more suspects each must be surer (Bonferroni)."""
    return compute_fisher_p(fresh.old, fresh.new) < CASE_P / max(1, suspects)
