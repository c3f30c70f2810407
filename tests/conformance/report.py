"""Prints where every requirement stands after the last full run of the tests: proven, failing, a gap, or unclaimed.

    python -m tests.conformance.report FILE

FILE is what `make test` has recorded. Exits with 1 when there is no record, when an id is neither proven nor a dated
gap, or when a gap has been closed and is still listed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Mapping
from pathlib import Path

from tests.conformance.recorded_run import Outcomes, RecordedRun, Sources
from tests.conformance.requirements import ALL, DOCUMENTS, GAPS, SHORT

# Status → what to do about it; an empty string is fine as it is.
REMEDY = {
    "proven": "",
    "gap": "",
    "failing": "a claiming test did not pass: mend it",
    "stale gap": "a passing test claims it: take it out of GAPS",
    "missing": "no test of that run claims it: run the slow ones too (make coverage), claim it, or date it in GAPS",
}


def status(id: str, outcomes: Outcomes, gaps: Container[str] = GAPS) -> str:
    """One of `REMEDY`'s keys. A requirement is proven when every test that claims it passed."""
    tests = outcomes.get(id, {})
    if tests and all(outcome == "passed" for outcome in tests.values()):
        return "stale gap" if id in gaps else "proven"
    if tests:
        return "failing"
    return "gap" if id in gaps else "missing"


def lines(statuses: Mapping[str, str], outcomes: Outcomes) -> list[str]:
    rows = ["", "requirement   status     what it says"]
    for requirement in ALL:
        now = statuses[requirement.id]
        note = f"  [{GAPS[requirement.id].reason}]" if now == "gap" else ""
        rows.append(f"{requirement.id:<13} {now:<10} {requirement.text}{note}")
        if now == "failing":
            rows += [f"{'':<25}{how}: {test}" for test, how in outcomes[requirement.id].items() if how != "passed"]
    rows += ["", f"{'document':<10}" + "".join(f"{name:>11}" for name in (*REMEDY, "all"))]
    for document in (*DOCUMENTS, "all"):
        counts = Counter(statuses[r.id] for r in ALL if document in (r.document, "all"))
        rows.append(f"{document:<10}" + "".join(f"{counts[name]:>11}" for name in REMEDY) + f"{counts.total():>11}")
    rows += ["", *(f"short: {figure}  [{gap.reason}]" for figure, gap in SHORT.items())]
    return rows


def complaints(statuses: Mapping[str, str]) -> list[str]:
    groups = {name: [id for id, now in statuses.items() if now == name] for name in REMEDY}
    return [f"{name} ({REMEDY[name]}): {' '.join(ids)}" for name, ids in groups.items() if ids and REMEDY[name]]


def main(path: str) -> int:
    run = RecordedRun.load(Path(path))
    if run is None:
        print("no full run of the tests is recorded; run: make test", file=sys.stderr)
        return 1
    statuses = {requirement.id: status(requirement.id, run.outcomes) for requirement in ALL}
    wrong = complaints(statuses)
    print("\n".join([*lines(statuses, run.outcomes), "", *wrong, f"the tests ran until {run.ended}, on {run.sources}"]))
    if (current := Sources.current()) != run.sources:
        print(f"stale: the files are now those of {current}; run: make test")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
