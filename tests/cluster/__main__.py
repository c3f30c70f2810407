"""A cluster in network namespaces that is torn apart by a schedule, and a checker that reads its history.

make cluster ARGS="--minutes 10 --seed 7 --json FILE"
make cluster ARGS="--mutants": the checker finds each of five faults that are put into the code on purpose

The promises it checks stand in docs/what-is-kept.md. Needs root, Linux, haproxy, Redis, Postgres and libfaketime.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.attack.trial import MissingFeature
from tests.chaos.families.clocks import library
from tests.cluster.campaign import Campaign, Result
from tests.cluster.cluster import NotPossible, check_programs
from tests.cluster.machines import NoMachines
from tests.cluster.mutants import MUTANTS
from tests.cluster.schedule import KINDS
from tests.faults.process import ROOT, Broken

MINUTES, MUTANT_MINUTES = 10.0, 1.0
BACK = 15
"""The version that is upgraded from: so many commits back, where no tag names a release."""
# A mutant needs few faults: those that bring its mistake to light.
MUTANT_FAULTS = {"worker dies", "cut", "delay"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of the schedule of each cluster (%(default)g)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="of the schedule")
    parser.add_argument("--clusters", type=int, default=1, help="how many at once, each with a seed of its own")
    parser.add_argument("--only", action="append", choices=sorted(KINDS), help="only faults of this kind; repeatable")
    parser.add_argument(
        "--from", dest="start", default="", help="the commit that the nodes begin with; `none`: this one"
    )
    parser.add_argument(
        "--mutants",
        nargs="*",
        choices=[*MUTANTS, []],
        help="faults in the code itself, which must be found; by default all",
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--quiet", action="store_true", help="do not tell each fault when it comes")
    options = parser.parse_args(arguments)
    try:
        check_programs()
        library()
        return run_mutants(options) if options.mutants is not None else run_clusters(options)
    except (NotPossible, NoMachines, MissingFeature) as error:
        print(f"no cluster can be made here: {error}", file=sys.stderr)
        return 1


def run_clusters(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="dscluster-old-") as folder:
        old = check_out(options.start or find_start(), Path(folder)) if options.start != "none" else None
        seeds = range(options.seed, options.seed + options.clusters)
        with ThreadPoolExecutor(len(seeds)) as pool:
            runs = [pool.submit(run_one, seed, number, old, options) for number, seed in enumerate(seeds)]
            results = [each.result() for each in runs]
    print(format_results(results))
    if options.json:
        options.json.write_text(json.dumps([to_json(each) for each in results], indent=2) + "\n")
    return 1 if any(each.violations for each in results) else 0


def run_one(seed: int, number: int, old: Path | None, options: argparse.Namespace) -> Result:
    began = time.monotonic()

    def tell(text: str) -> None:
        if not options.quiet:
            print(f"  seed {seed}, {time.monotonic() - began:4.0f} s: {text}", flush=True)

    only = set(options.only) if options.only else None
    campaign = Campaign(seed, options.minutes, number=number, old=old, only=only, tell=tell)
    try:
        return campaign.run()
    except Broken as broken:
        from tests.cluster.checker import Violation

        campaign.result.violations.append(Violation("comes-back", str(broken)))
        return campaign.result


def run_mutants(options: argparse.Namespace) -> int:
    """Each mutant is found, and found for what it does."""
    missed, chosen = 0, options.mutants or list(MUTANTS)
    for name in chosen:
        mutant = MUTANTS[name]
        campaign = Campaign(options.seed, MUTANT_MINUTES, mutant=name, only=MUTANT_FAULTS, official=False)
        result = campaign.run()
        promises = Counter(each.promise for each in result.violations)
        is_found = bool(promises.keys() & set(mutant.promises))
        missed += not is_found
        told = ", ".join(f"{promise} ×{times}" for promise, times in promises.most_common())
        print(f"{name:20}  {'found' if is_found else 'MISSED'}: {told or 'nothing'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults in the code were found")
    return 1 if missed else 0


# -- The version before.


def find_start() -> str:
    """The last release, or a commit some way back."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or f"HEAD~{BACK}"


def check_out(commit: str, folder: Path) -> Path:
    """The package as it was at a commit. Raises NotPossible."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "framework"], capture_output=True, check=False)
    if archive.returncode:
        raise NotPossible(f"there is no commit {commit} to upgrade from: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


# -- What was seen.


def format_results(results: Iterable[Result]) -> str:
    results = list(results)
    faults, operations, failovers = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    for each in results:
        faults += each.faults
        operations += each.operations
        failovers += each.failovers
    lines = ["", f"{'fault':20} {'times':>6}"]
    lines += [f"{kind:20} {times:6}" for kind, times in sorted(faults.items())]
    lines += ["", f"{'operation':20} {'ok':>8} {'refused':>8} {'unknown':>8}"]
    for kind in sorted({kind for kind, _ in operations} - {"fault"}):
        counts = [operations[kind, outcome] for outcome in ("ok", "failed", "unknown")]
        lines.append(f"{kind:20} {counts[0]:8} {counts[1]:8} {counts[2]:8}")
    lines.append("")
    for each in results:
        lines += [f"seed {each.seed}: {note}" for note in each.notes]
        lines += [f"BROKEN {violation.promise}: {violation.text}" for violation in each.violations]
        verdict = f"{len(each.violations)} violations, kept in {each.folder}" if each.violations else "no violation"
        lines.append(f"seed {each.seed}: {each.minutes:.1f} minutes, {sum(each.faults.values())} faults, {verdict}")
    total = sum(times for (kind, _), times in operations.items() if kind != "fault")
    lines.append(
        f"in all {sum(each.minutes for each in results):.1f} minutes of schedule, {sum(faults.values())} faults, "
        f"{failovers['redis']} failovers of Redis and {failovers['postgres']} of Postgres, {total} operations, "
        f"{sum(len(each.violations) for each in results)} violations"
    )
    return "\n".join(lines)


def to_json(result: Result) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "minutes": round(result.minutes, 2),
        "faults": dict(result.faults),
        "failovers": dict(result.failovers),
        "operations": {f"{kind} {outcome}": times for (kind, outcome), times in sorted(result.operations.items())},
        "violations": [list(each) for each in result.violations],
        "notes": result.notes,
    }


if __name__ == "__main__":
    sys.exit(main())
