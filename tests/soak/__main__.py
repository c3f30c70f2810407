"""The command `make soak`: servers under load for minutes or hours. What they use must not grow.

Each scenario runs in a process of its own, with a server of its own; all run side by side. Memory, descriptors,
threads, processes, asyncio tasks and latencies are sampled every second. The line through the samples after the warm-up
(Theil and Sen) must not rise by more than its noise and a bound. It exits with 1 if one does, or if a call failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.soak.plots import picture, write_png
from tests.soak.sampling import BOUNDS, UNITS
from tests.soak.scenarios import SCENARIOS
from tests.soak.slopes import WARM_UP, Slope, slope
from tests.soak.stage import ROOT, Stage

MINUTES = 3.0
SLACK_SECONDS = 360.0
TRANSPORTS = "calls-"
NICE = 7
"""What is taken from the other scenarios, so that most of the machine is for calls over each transport."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.alone:
        return run_alone(options.alone, options.minutes * 60, options.seed, options.json)
    names: list[str] = options.only or [*SCENARIOS]
    print(f"{len(names)} scenarios for {options.minutes:g} minutes, --seed {options.seed}", flush=True)
    began = time.monotonic()
    runs = run_all(names, options.minutes, options.seed)
    for name, run in runs.items():
        print("\n".join(report(name, run)))
    total = sum(run["calls"] for run in runs.values())
    bad = [name for name, run in runs.items() if not is_good(run)]
    print(
        f"\n{total:,} calls in {time.monotonic() - began:.0f} s; {'not flat: ' + ', '.join(bad) if bad else 'all flat'}"
    )
    if options.json:
        facts = {"minutes": options.minutes, "seed": options.seed, "warm_up": WARM_UP, "calls": total}
        options.json.write_text(json.dumps({**facts, "scenarios": runs}) + "\n")
    if options.svg:
        options.svg.write_text(picture(runs))
    if options.png and (problem := write_png(picture(runs), options.png)):
        print(problem)
    return 1 if bad else 0


def run_all(names: list[str], minutes: float, seed: int) -> dict[str, Any]:
    """Every scenario in a process; their results by name."""
    with tempfile.TemporaryDirectory(prefix="soaked") as folder:
        files = {name: Path(folder) / f"{name}.json" for name in names}
        shared = ["--minutes", str(minutes), "--seed", str(seed)]
        started = {
            name: subprocess.Popen(
                [sys.executable, "-m", "tests.soak", "--alone", name, "--json", str(file), *shared], cwd=ROOT
            )
            for name, file in files.items()
        }
        end = time.monotonic() + minutes * 60 + SLACK_SECONDS
        for process in started.values():
            try:
                process.wait(max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return {name: _result(files[name]) for name in names}


def _result(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return _judged(Stage(0, 0), "the scenario did not come to its end")


def run_alone(name: str, seconds: float, seed: int, file: Path) -> int:
    if not name.startswith(TRANSPORTS):
        os.nice(NICE)
    stage, wrong = Stage(seconds, seed), ""
    try:
        SCENARIOS[name](stage)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"[:500]
    finally:
        result = _judged(stage, wrong)
        stage.close()
    file.write_text(json.dumps(result))
    return 0


def _judged(stage: Stage, wrong: str) -> dict[str, Any]:
    series, counter = stage.series, stage.counter
    slopes = {name: slope(series.times, values) for name, values in series.values.items() if name in BOUNDS}
    found = {name: line for name, line in slopes.items() if line is not None}
    return {
        "calls": counter.total,
        "failed": counter.failed,
        "reasons": counter.reasons + ([wrong] if wrong else []),
        "facts": stage.facts,
        "slopes": {name: line._asdict() for name, line in found.items()},
        "growing": [name for name, line in found.items() if line.exceeds(BOUNDS[name])],
        "times": [round(at, 1) for at in series.times],
        "values": {name: [round(value, 3) for value in values] for name, values in series.values.items()},
    }


def is_good(run: dict[str, Any]) -> bool:
    return not (run["growing"] or run["failed"] or run["reasons"]) and run["calls"] > 0


def report(name: str, run: dict[str, Any]) -> list[str]:
    """One line, and one more for each thing that is wrong."""
    facts = "".join(f", {value:,.0f} {what}" for what, value in run["facts"].items())
    memory, p50 = (Slope(**run["slopes"][what]) if what in run["slopes"] else None for what in ("memory", "p50"))
    said = f"{name:16} {run['calls']:>11,} calls{facts}"
    if memory is not None:
        said += f"; memory {memory.start:.0f} MB {memory.growth:+.1f} (± {memory.noise:.1f})"
    if p50 is not None:
        said += f"; p50 {p50.start:.2f} ms"
    lines = [said]
    for what in run["growing"]:
        line, unit = Slope(**run["slopes"][what]), UNITS.get(what, "")
        lines.append(f"  GROWS: {what} from {line.start:.1f} by {line.growth:+.1f} {unit} (noise {line.noise:.2f})")
    lines += [f"  FAILED: {reason}" for reason in run["reasons"]]
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long (default {MINUTES:g})")
    parser.add_argument("--only", action="append", choices=[*SCENARIOS], help="repeatable")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write samples and slopes there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the samples")
    parser.add_argument("--png", type=Path, metavar="FILE", help="the same as PNG, by a headless Chromium")
    parser.add_argument("--alone", choices=[*SCENARIOS], help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
