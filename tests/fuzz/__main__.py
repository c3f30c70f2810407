"""The command `make fuzz`: every target under a coverage-guided fuzzer (Atheris).

What was found to reach new code is kept in `.fuzz/corpus` and continued by the next run; `--keep` adds some
of it to `tests/fuzz/corpus`. The figures of all runs are added up in `.fuzz/record.json`, which begins with those of
docs/reliability.md. It exits with 1 if a target crashed or hung; the input that did it is in `.fuzz/found`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from tests.fuzz.record import Record, Slice, least
from tests.fuzz.slices import SEEDS, WORK, fuzz, read_code
from tests.fuzz.targets import TARGETS

PUBLISHED = Path(__file__).parent.parent / "reliability" / "results" / "fuzz.json"
SLICE_SECONDS = 120
"""So much of each target that runs is lost at most when `--until` is stopped."""
KEPT_BYTES = 9_000
"""Of each target, so that all of them together stay small."""
KEPT_FILES = 20

Choose = Callable[[Collection[str]], str | None]
"""Which target is next, given those that must not be."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print(
            "Atheris is not installed (see .fuzz/install.log), so only the tests run the targets, on inputs that "
            "were kept. Where there is no wheel of it, clang builds it: apt-get install clang libclang-rt-dev"
        )
        return 0
    names: list[str] = options.only or [*TARGETS]
    record, found = Record(WORK / "record.json", PUBLISHED), 0
    if options.fresh:
        record.forget(names)
        for name in names:
            shutil.rmtree(WORK / "corpus" / name, ignore_errors=True)
    if options.until and (changed := record.begin({name: read_code(name) for name in names})):
        print(f"begun again, because their code has changed: {', '.join(changed)}", flush=True)
    choose, seconds = _plan(options, names, record)
    print(f"{len(names)} targets, --seed {options.seed}", flush=True)
    try:
        found = run(record, choose, lambda name, seed: fuzz(name, seconds, seed), options.seed, options.jobs)
    except KeyboardInterrupt:
        print("stopped; what was running is not counted", flush=True)
    if options.keep:
        for name in names:
            keep(name)
    print(f"\n{record.table(names)}\n\nin all {record.format_sum(names)}")
    if options.json:
        options.json.write_text(json.dumps({"targets": record.figures(names)}, indent=1))
    return 1 if found else 0


def _plan(options: argparse.Namespace, names: list[str], record: Record) -> tuple[Choose, float]:
    """Which targets are run, in which order, and for how many seconds each time."""
    if options.until:
        return lambda taken: least(record.totals(), {*names} - {*taken}, options.until * 60), SLICE_SECONDS
    left, shared = iter(names), options.jobs / len(names) if options.share else 1
    return lambda taken: next(left, None), options.minutes * 60 * shared


def run(record: Record, choose: Choose, fuzz: Callable[[str, int], Slice], seed: int, jobs: int) -> int:
    """Run targets, so many side by side, and add each run to the record. How many crashes and hangs there were.

    A target that has crashed or hung is not run again: it would end at the same place.
    """
    running: dict[Future[Slice], str] = {}
    broken: dict[str, int] = {}
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and (name := choose([*running.values(), *broken])) is not None:
                # Another seed each time: the same one would try the same changes again.
                running[pool.submit(fuzz, name, seed + len(record.of(name).seeds))] = name
            if not running:
                return sum(broken.values())
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                name, one = running.pop(done), done.result()
                if one.found:
                    broken[name] = len(one.found)
                print(f"{name:15} {record.add(name, one)}", flush=True)


def keep(name: str) -> None:
    """Add some of the inputs that reached something new, as far as there is room for them."""
    target, found = SEEDS / name, WORK / "corpus" / name
    target.mkdir(parents=True, exist_ok=True)
    room = KEPT_BYTES - sum(file.stat().st_size for file in target.iterdir())
    # The longest that fit reach most.
    fitting = [file for file in found.iterdir() if file.stat().st_size <= KEPT_BYTES // KEPT_FILES]
    for file in sorted(fitting, key=lambda file: file.stat().st_size, reverse=True)[:KEPT_FILES]:
        room -= file.stat().st_size
        if room < 0:
            break
        shutil.copy(file, target / file.name[:12])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long, each target (default 1)")
    parser.add_argument("--share", action="store_true", help="--minutes are those of all targets together")
    parser.add_argument(
        "--until",
        type=float,
        metavar="MINUTES",
        help="go on until the runs of each target, those before of the same code included, have used so many minutes "
        "of a core, and the last quarter of them reached nothing new; stop it at any time",
    )
    parser.add_argument("--fresh", action="store_true", help="forget the runs before, and the inputs that they left")
    parser.add_argument("--only", action="append", choices=[*TARGETS], help="repeatable")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="of the first run of a target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of all runs there, too")
    parser.add_argument("--keep", action="store_true", help="add some of what was found to tests/fuzz/corpus")
    return parser


if __name__ == "__main__":
    sys.exit(main())
