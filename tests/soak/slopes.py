"""Whether a series of samples goes up by more than its noise. Robust: a few wild samples decide nothing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

WARM_UP = 1 / 3
"""The share of a run that is not judged: caches fill, the allocator finds its size."""
MOST_POINTS = 300
NOISE = 3.0
"""How many times the median deviation from the line a growth must be, to be one."""


class Bound(NamedTuple):
    """What a measure may grow by in a whole run: so much, and so large a part of what it was."""

    absolute: float
    relative: float = 0.0


class Slope(NamedTuple):
    """A measure over a run, after the warm-up."""

    start: float
    growth: float
    """From the beginning to the end, by the line."""
    noise: float

    def exceeds(self, bound: Bound) -> bool:
        allowed = bound.absolute + bound.relative * abs(self.start)
        return self.growth > allowed and self.growth > NOISE * self.noise


def slope(times: Sequence[float], values: Sequence[float]) -> Slope | None:
    """The line through the samples (Theil and Sen): the median of the slopes between all pairs. None for too few."""
    points = _thinned([(t, v) for t, v in zip(times, values, strict=True) if t >= WARM_UP * times[-1]])
    if len(points) < 5:
        return None
    rises = [
        (value - before) / (at - then)
        for n, (at, value) in enumerate(points)
        for then, before in points[:n]
        if at > then
    ]
    rise = median(rises)
    offset = median(value - rise * at for at, value in points)
    noise = median(abs(value - rise * at - offset) for at, value in points)
    begin, end = points[0][0], points[-1][0]
    return Slope(offset + rise * begin, rise * (end - begin), noise)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Medians of neighbours, if there are more points than pairs can be looked at."""
    size = -(-len(points) // MOST_POINTS)
    groups = [points[n : n + size] for n in range(0, len(points), size)] if size > 1 else [[p] for p in points]
    return [(median(t for t, _ in group), median(v for _, v in group)) for group in groups]
