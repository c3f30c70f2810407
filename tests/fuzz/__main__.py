"""The command `make fuzz`: every target under a coverage-guided fuzzer (Atheris) for some minutes.

What was found to reach new code is kept in `.fuzz/corpus` and continued by the next run; `--keep` adds some
of it to `tests/fuzz/corpus`. It exits with 1 if a target crashed or hung; the input that did it is in `.fuzz/found`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
SEEDS = Path(__file__).parent / "corpus"
WORK = ROOT / ".fuzz"
HANG_SECONDS = 20
MOST_MB = 2000
LONGEST = 4096
KEPT_BYTES = 9_000
"""Of each target, so that all of them together stay small."""
KEPT_FILES = 20
SETTLED = 0.75
"""A target has been fuzzed for long enough if it found nothing new after this part of the time."""
_STATUS = re.compile(r"#(\d+)\s+(INITED|NEW|REDUCE|pulse|DONE|RELOAD)\s+cov: (\d+)")


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print("there is no Atheris for this Python: its targets are run by the tests only, on what is kept of inputs")
        return 0
    names: list[str] = options.only or [*TARGETS]
    each = options.minutes * 60 * options.jobs / len(names) if options.share else options.minutes * 60
    print(f"{len(names)} targets, {each / 60:.3g} minutes each, --seed {options.seed}", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = dict(zip(names, pool.map(partial(fuzz, seconds=each, seed=options.seed), names), strict=True))
    if options.keep:
        for name in names:
            keep(name)
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "minutes": each / 60, "targets": runs}, indent=1))
    return 1 if any(run["found"] for run in runs.values()) else 0


def fuzz(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Run one target, and tell how it went."""
    corpus, found = WORK / "corpus" / name, WORK / "found" / name
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = SEEDS / name
    options = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MOST_MB}",
        f"-max_len={LONGEST}",
        f"-artifact_prefix={found}{os.sep}",
    ]
    command = [sys.executable, "-m", "tests.fuzz.engine", name, *options, str(corpus)]
    if seeds.exists():
        command.append(str(seeds))
    before, began = {*found.iterdir()}, time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        run = _follow(process.stderr, began)
    run["seconds"] = round(time.monotonic() - began, 1)
    run["is_settled"] = run["last_new"] <= SETTLED * run["seconds"]
    run["found"] = sorted(str(file.relative_to(ROOT)) for file in {*found.iterdir()} - before)
    if process.returncode and not run["found"] and not run["is_done"]:
        run["found"] = [f"exit code {process.returncode}"]
    quiet = run["seconds"] - run["last_new"]
    told = (
        f"{run['runs']:>10,} runs, {run['coverage']:>5} branches, nothing new for {quiet:.0f} of {run['seconds']:.0f} s"
    )
    print(f"{name:15} {told}{'; FOUND ' + ', '.join(run['found']) if run['found'] else ''}", flush=True)
    if run["found"]:
        print("\n".join(f"    {line}" for line in run["tail"]), flush=True)
    return run


def _follow(lines: Any, began: float) -> dict[str, Any]:
    """What the fuzzer says while it runs, and when it last found something new."""
    run: dict[str, Any] = {"runs": 0, "coverage": 0, "last_new": 0.0, "is_done": False, "tail": []}
    for line in lines:
        if status := _STATUS.search(line):
            run["runs"] = max(run["runs"], int(status[1]))
            if int(status[3]) > run["coverage"]:
                run["coverage"], run["last_new"] = int(status[3]), round(time.monotonic() - began, 1)
        elif line.startswith("Done "):
            run["is_done"] = True  # its alarm clock may still go off while the interpreter ends
        else:
            run["tail"] = [*run["tail"][-24:], line.rstrip()[:300]]
    return run


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
    parser.add_argument("--only", action="append", choices=[*TARGETS], help="repeatable")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--keep", action="store_true", help="add some of what was found to tests/fuzz/corpus")
    return parser


if __name__ == "__main__":
    sys.exit(main())
