"""One run of one target: Atheris in a process of its own, what it says while it runs, and what it has found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.fuzz.record import Slice

ROOT = Path(__file__).parents[2]
SEEDS = Path(__file__).parent / "corpus"
WORK = ROOT / ".fuzz"
SLOW_SECONDS = 10
"""No input may take more of the processor."""
HANG_SECONDS = 300
"""By the clock, as an input that waits uses no processor. A busy machine may give a run a small part of a core."""
MOST_MB = 2000
LONGEST = 4096
_STATUS = re.compile(r"#(\d+)\s+(INITED|NEW|REDUCE|pulse|DONE|RELOAD)\s+cov: (\d+)")
_STAT_TIMES = slice(11, 13)
"""utime and stime, counted after the name in /proc/PID/stat."""


def fuzz(name: str, seconds: float, seed: int) -> Slice:
    """Run one target for so long by the clock. If it crashed or hung, the last lines it said are printed."""
    corpus, found = WORK / "corpus" / name, WORK / "found" / name
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = SEEDS / name
    options = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed}",
        f"-timeout={HANG_SECONDS}",
        f"-report_slow_units={SLOW_SECONDS}",
        f"-rss_limit_mb={MOST_MB}",
        f"-max_len={LONGEST}",
        f"-artifact_prefix={found}{os.sep}",
    ]
    command = [*_engine(name), *options, str(corpus), *([str(seeds)] if seeds.exists() else [])]
    before = {*found.iterdir()}
    # What an exception says comes on standard output, everything else on standard error.
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    with process.stdout as lines:
        run, is_done, tail = follow(lines, seed, lambda: _processor_seconds(process.pid))
    code, run.seconds = _ended(process)
    left = {*found.iterdir()} - before
    run.found = sorted(str(file.relative_to(ROOT)) for file in left if not _was_only_late(name, file))
    if code and not left and not is_done:
        run.found = [f"exit code {code}"]
    if run.found:
        print("\n".join(f"    {line}" for line in tail), flush=True)
    return run


def read_code(name: str) -> str:
    """The hash of the code that a target runs now."""
    program = "import sys; from tests.fuzz.targets import hash_code; print(hash_code(sys.argv[1]))"
    command = [sys.executable, "-W", "ignore", "-c", program, name]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]


def follow(lines: Iterable[str], seed: int, clock: Callable[[], float]) -> tuple[Slice, bool, list[str]]:
    """What the fuzzer says while it runs: its figures, whether it came to its end, and its last other lines."""
    run, is_done, tail = Slice(seed), False, list[str]()
    for line in lines:
        if status := _STATUS.search(line):
            run.runs, branches = max(run.runs, int(status[1])), int(status[3])
            if not run.growth or branches > run.growth[-1][1]:
                run.growth.append((clock(), branches))
        elif line.startswith("Done "):
            is_done = True  # its alarm clock may still go off while the interpreter ends
        else:
            tail = [*tail[-24:], line.rstrip()[:300]]
    return run, is_done, tail


def _engine(name: str) -> list[str]:
    return [sys.executable, "-m", "tests.fuzz.engine", name]


def _processor_seconds(pid: int) -> float:
    """Of a process that runs."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_STAT_TIMES]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _ended(process: subprocess.Popen[str]) -> tuple[int, float]:
    """The exit code of a process, and the processor seconds that it has used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _was_only_late(name: str, file: Path) -> bool:
    """Whether an input that took long by the clock takes little of the processor; then its file is removed."""
    if not file.name.startswith(("slow-unit-", "timeout-")):
        return False
    process = subprocess.Popen(
        [*_engine(name), f"-timeout={HANG_SECONDS}", "-runs=1", str(file)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    code, seconds = _ended(process)
    if code or seconds > SLOW_SECONDS:
        return False
    file.unlink()
    return True
