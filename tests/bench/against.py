"""Two revisions in one run: this checkout and another commit, their rounds interleaved, compared as ratios.

Servers over stdio and HTTP run side by side and take turns by the burst. The stores are measured in this process, so
each round of theirs is a process of its own (`state_round.py`), one revision after the other. The other commit brings
its own server scripts and its own measuring of stores, so that names may differ between the two.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from .contenders import SERVERS, Contender, HttpContender
from .environment import ROOT
from .http_measure import measure_http_calls
from .measure import FULL, Run, in_turn, measure_calls, measure_lists, measure_start, measure_stateless
from .processes import ServerFailed
from .report import label, rounded, table
from .results import Results
from .targets import SUBJECT

# Two contenders instead of nine leave time for more rounds, which narrow the spread.
PLAN = FULL._replace(start_rounds=10, list_rounds=4, call_rounds=4, http_rounds=4, state_rounds=8)
FEW = 4
NEEDED = ("framework", "tests")
# Of these sections more is better; of all others less is.
RATES = ("calls", "relist", "http", "state-commits", "state-writes")


class Revision(NamedTuple):
    """A checkout and the name its figures go by."""

    name: str
    root: Path

    @property
    def servers(self) -> Path:
        return self.root / SERVERS.relative_to(ROOT)

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.root / "framework", self.servers

    def stdio(self) -> Contender:
        return Contender(self.name, self.servers / "defserve_server.py", ("async", "sync", "inline"), paths=self.paths)

    def http(self) -> HttpContender:
        return HttpContender(self.name, self.servers / "defserve_http.py", paths=self.paths)


THIS = Revision(SUBJECT, ROOT)


def check_out(revision: str, folder: Path) -> Revision:
    """Unpack another commit of this repository into `folder`. Raises SystemExit if there is no such commit."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run(
        [*git, "rev-parse", "--short", "--verify", f"{revision}^{{commit}}"], capture_output=True, text=True
    )
    if found.returncode != 0:
        raise SystemExit(f"--against {revision}: {found.stderr.strip()}")
    name = found.stdout.strip()
    archive = subprocess.run([*git, "archive", name, *NEEDED], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return Revision(name, folder)


class StateRounds:
    """The sections of stores: a process for each revision and round."""

    def __init__(self, revisions: Sequence[Revision], section: str) -> None:
        self._revisions, self._section = revisions, section

    def __call__(self, run: Run) -> None:
        for turn in range(run.plan.state_rounds):
            for revision in in_turn(self._revisions, turn):
                run.say(f"{self._section} of {revision.name} {turn + 1}/{run.plan.state_rounds}")
                for measure, value in self._one_round(run, revision).items():
                    run.results.add(measure, revision.name, value)

    def _one_round(self, run: Run, revision: Revision) -> dict[str, float]:
        # -P: the folder of the script is this checkout's, and would come before the revision's own.
        command = [run.launch.python, "-P", Path(__file__).with_name("state_round.py"), self._section]
        done = subprocess.run(
            [*command, str(run.plan.commits)],
            env=run.launch.environment_with((revision.root, *revision.paths)),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ServerFailed(f"{revision.name}: {self._section} failed\n{done.stderr[-2000:]}")
        return json.loads(done.stdout)


def sections(other: Revision) -> dict[str, Callable[[Run], None]]:
    """What can be compared, by the name that `--only` takes."""
    both = (THIS, other)
    return {
        "start": measure_start,
        "calls": measure_calls,
        "stateless": measure_stateless,
        "lists": measure_lists,
        "http-calls": measure_http_calls,
        **{name: StateRounds(both, name) for name in ("state-commits", "state-writes", "state-depth", "state-patch")},
    }


class Comparison(NamedTuple):
    """The ratio of this checkout's figure to the other's: median and quartiles of the ratios within each round."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, results: Results, measure: str, other: str) -> Comparison | None:
        """None if one of the two was not measured."""
        ours, theirs = results.figure(measure, SUBJECT), results.figure(measure, other)
        if ours is None or theirs is None:
            return None
        ratios = [our / their for our, their in zip(ours.rounds, theirs.rounds, strict=True)]
        if len(ratios) == 1:
            return cls(*ratios * 3, rounds=1)
        low, median, high = quantiles(ratios, n=4, method="inclusive")
        return cls(median, low, high, len(ratios))

    def verdict(self, measure: str) -> str:
        """`better` or `worse` if three quarters of the rounds agree on it and are more than a few, else nothing."""
        if self.rounds < FEW or self.low <= 1 <= self.high:
            return ""
        return "better" if (self.low > 1) == (measure.split("/")[0] in RATES) else "worse"


def as_markdown(results: Results, other: str, facts: dict[str, str]) -> str:
    """The report: a row for each measure of both."""
    rows: list[list[str]] = []
    for measure in results.all_measures():
        ours, theirs = results.figure(measure, SUBJECT), results.figure(measure, other)
        compared = Comparison.of(results, measure, other)
        if ours is None or theirs is None or compared is None:
            continue
        spread = f"{compared.low:.3f}–{compared.high:.3f}"
        section, name = measure.split("/")[0], label(measure)
        medians = [rounded(theirs.median), rounded(ours.median)]
        rows.append([f"{section}: {name}", *medians, f"{compared.median:.3f}", spread, compared.verdict(measure)])
    parts = [
        f"# This checkout against {other}",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        "Ratios are of this checkout to the other, within each round: the median, and the quartiles as their spread. "
        f"More is better for {', '.join(RATES)}; less for the rest. "
        "A busy machine moves all of them, cpu too: compare with itself first (--against HEAD).",
        table(["", other, "this", "ratio", "spread", ""], rows),
    ]
    return "\n\n".join(parts) + "\n"
