"""What all runs of the fuzzer together have come to: a file to which each run of a target adds its own figures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SETTLED = 0.75
"""A target has been fuzzed for long enough if it found nothing new after this part of the time."""


@dataclass
class Slice:
    """One run of one target. Its seconds are those of the processor."""

    seed: int
    seconds: float = 0.0
    runs: int = 0
    growth: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Each time that more branches were reached than before in this run: at which second, and how many."""
    found: list[str] = field(default_factory=list[str])


@dataclass
class Total:
    """All runs of one target. Each continued the inputs that the one before had left."""

    seconds: float = 0.0
    runs: int = 0
    coverage: int = 0
    grew_at: float = 0.0
    """The processor second, of all, at which `coverage` was reached."""
    found: list[str] = field(default_factory=list[str])
    seeds: list[int] = field(default_factory=list[int])
    code: str = ""
    """The hash of the code that all these runs had. What was run before says little of code that has changed."""

    def plus(self, run: Slice) -> Total:
        # To reach again what was reached before is nothing new.
        more = [(at, branches) for at, branches in run.growth if branches > self.coverage]
        at, coverage = more[-1] if more else (0.0, self.coverage)
        return Total(
            seconds=round(self.seconds + run.seconds, 1),
            runs=self.runs + run.runs,
            coverage=coverage,
            grew_at=round(self.seconds + at, 1) if more else self.grew_at,
            found=[*self.found, *run.found],
            seeds=[*self.seeds, run.seed],
            code=self.code,
        )

    @property
    def is_settled(self) -> bool:
        return self.grew_at <= SETTLED * self.seconds

    def __str__(self) -> str:
        told = f"{self.seconds / 60:5.1f} core-minutes, {self.runs:>11,} inputs, {self.coverage:>5} branches"
        found = f"; FOUND {', '.join(self.found)}" if self.found else ""
        return f"{told}, last new after {self.grew_at / 60:.1f}{found}"


class Record:
    """The totals in a file. It is read again for each addition, and replaced as a whole: no stop leaves half of one."""

    def __init__(self, file: Path, published: Path | None = None) -> None:
        self._file, self._published = file, published
        """Where there is no file yet, it begins with the figures that were published."""

    def totals(self) -> dict[str, Total]:
        found: dict[str, Any] = {}
        if self._file.exists():
            found = json.loads(self._file.read_text())
        elif self._published is not None and self._published.exists():
            found = json.loads(self._published.read_text())["targets"]
        return {name: Total(**figures) for name, figures in found.items()}

    def of(self, name: str) -> Total:
        return self.totals().get(name, Total())

    def add(self, name: str, run: Slice) -> Total:
        totals = self.totals()
        total = totals[name] = totals.get(name, Total()).plus(run)
        self._write(totals)
        return total

    def begin(self, codes: Mapping[str, str]) -> list[str]:
        """Forget the runs of targets whose code is no longer the one given. Which they were."""
        totals = self.totals()
        changed = [name for name, code in codes.items() if totals.get(name, Total()).code != code]
        self._write(totals | {name: Total(code=codes[name]) for name in changed})
        return changed

    def forget(self, names: Iterable[str]) -> None:
        dropped = {*names}
        self._write({name: total for name, total in self.totals().items() if name not in dropped})

    def figures(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        totals = self.totals()
        return {name: asdict(totals[name]) for name in names if name in totals}

    def table(self, names: Iterable[str]) -> str:
        totals = self.totals()
        return "\n".join(f"{name:15} {totals[name]}" for name in names if name in totals)

    def format_sum(self, names: Iterable[str]) -> str:
        totals = self.totals()
        every = [totals[name] for name in names if name in totals]
        minutes, inputs = sum(total.seconds for total in every) / 60, sum(total.runs for total in every)
        found = sum(len(total.found) for total in every)
        return f"{len(every)} targets, {minutes:,.0f} core-minutes, {inputs:,} inputs, {found} crashes and hangs"

    def _write(self, totals: Mapping[str, Total]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        half = self._file.with_suffix(".new")
        half.write_text(json.dumps({name: asdict(total) for name, total in totals.items()}, indent=1))
        os.replace(half, self._file)


def least(totals: Mapping[str, Total], names: Iterable[str], enough: float) -> str | None:
    """Of the targets that have not had enough, or found something new lately, the one with the least processor time."""
    had = {name: totals.get(name, Total()) for name in names}
    lacking = [(total.seconds, name) for name, total in had.items() if total.seconds < enough or not total.is_settled]
    return min(lacking, default=(0.0, None))[1]
