"""What was measured: a value per round, for each measure and contender."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple


class Figure(NamedTuple):
    """One measure of one contender, over the rounds."""

    median: float
    low: float
    high: float
    rounds: tuple[float, ...]


class Results:
    """Values by measure (`calls/add/32`) and contender, in the order they were first seen."""

    def __init__(self) -> None:
        self._rounds: dict[str, dict[str, list[float]]] = {}

    def add(self, measure: str, contender: str, value: float) -> None:
        self._rounds.setdefault(measure, {}).setdefault(contender, []).append(value)

    def figure(self, measure: str, contender: str) -> Figure | None:
        rounds = self._rounds.get(measure, {}).get(contender)
        return Figure(median(rounds), min(rounds), max(rounds), tuple(rounds)) if rounds else None

    def ratio(self, measure: str, contender: str, base_measure: str, base: str) -> float | None:
        """The median of the ratios within each round, where both saw the same machine.

        None if one was not measured, or the base is nothing.
        """
        ours, theirs = self.figure(measure, contender), self.figure(base_measure, base)
        if ours is None or theirs is None or 0 in theirs.rounds:
            return None
        return median(our / their for our, their in zip(ours.rounds, theirs.rounds, strict=True))

    def all_measures(self) -> list[str]:
        return list(self._rounds)

    def measures(self, section: str) -> list[str]:
        """The measures whose name begins with `section/`."""
        return [measure for measure in self._rounds if measure.startswith(section + "/")]

    def as_json(self) -> dict[str, dict[str, dict[str, object]]]:
        return {
            measure: {name: _figure_json(self.figure(measure, name)) for name in contenders}
            for measure, contenders in self._rounds.items()
        }


def _figure_json(figure: Figure | None) -> dict[str, object]:
    return figure._asdict() if figure else {}
