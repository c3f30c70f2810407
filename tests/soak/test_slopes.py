from __future__ import annotations

from random import Random

from tests.rows import for_each_row
from tests.soak.slopes import Bound, slope

BOUND = Bound(4.0)


def series(random: Random, rise: float, noise: float, wild: int = 0) -> list[float]:
    values = [100 + rise * n / 100 + random.gauss(0, noise) for n in range(100)]
    for n in random.sample(range(100), wild):
        values[n] += 1000
    return values


@for_each_row(
    ("rise", "noise", "wild", "is_growth"),
    [
        (0, 1, 0, False),
        (0, 1, 15, False),
        (3, 0.1, 0, False),  # less than is allowed
        (20, 1, 0, True),
        (20, 1, 15, True),
        (20, 30, 0, False),  # not more than its noise
        (-50, 1, 0, False),
    ],
)
def test_a_growth_beyond_noise_and_bound_is_found(rise: float, noise: float, wild: int, is_growth: bool):
    found = slope(range(100), series(Random(1), rise, noise, wild))
    assert found is not None
    assert found.exceeds(BOUND) == is_growth, found


def test_what_happens_in_the_warm_up_does_not_count():
    values = [float(n) for n in range(33)] + [33.0] * 67
    found = slope(range(100), values)
    assert found is not None and not found.exceeds(Bound(0.0)), found


def test_a_long_run_is_judged_as_a_short_one():
    found = slope(range(20_000), [n / 1000 for n in range(20_000)])
    assert found is not None and 12 < found.growth < 14


def test_too_few_samples_say_nothing():
    assert slope([1, 2, 3], [1, 2, 3]) is None
