"""The command: kill servers, their Redis or Postgres and the servers of a kernel at random moments.

Nothing that was acknowledged is lost, and no call of a kernel runs twice. Workers are replaced, and no call fails.

A run is one kill. Its seed is printed with what went wrong, and `--seed` starts from there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import NamedTuple

from tests.faults.kernel import kill_backends
from tests.faults.killing import Tally, kill_postgres, kill_redis, kill_servers, share_postgres, share_redis
from tests.faults.killing_tasks import kill_on_postgres, kill_on_redis, kill_on_sqlite
from tests.faults.process import Broken
from tests.faults.rolling import reload_with_sessions, reload_workers
from tests.faults.sessions.idle import keep_idle
from tests.faults.sessions.killing import kill_sharing
from tests.faults.sessions.sentinel import fail_over
from tests.faults.trouble import fill_the_disk, forbid_writing
from tests.stores.postgres_server import find_postgres

RUNS = 200
STORY = 10
RESTART_SECONDS = 1.0


class Story(NamedTuple):
    """What tells it, what it needs, how many of the runs it gets, and how many are told together."""

    tell: Callable[[int, int], Tally]
    needs_redis: bool = False
    needs_postgres: bool = False
    share: float = 1.0
    length: int = STORY


STORIES: dict[str, Story] = {
    "servers": Story(kill_servers),
    "redis": Story(kill_redis, needs_redis=True),
    "workers": Story(share_redis, needs_redis=True, share=0.1),
    "postgres": Story(kill_postgres, needs_postgres=True),
    "workers-postgres": Story(share_postgres, needs_postgres=True, share=0.1),
    # All in one: the clients are many, and the longer they talk the more may go wrong. Of 6 faults one is of Redis.
    "sessions": Story(kill_sharing, needs_redis=True, share=0.3, length=100_000),
    "sentinel": Story(fail_over, needs_redis=True, share=0.01),
    "idle": Story(keep_idle, needs_redis=True, share=50, length=100_000),
    "tasks": Story(kill_on_sqlite),
    "tasks-redis": Story(kill_on_redis, needs_redis=True),
    "tasks-postgres": Story(kill_on_postgres, needs_postgres=True),
    "kernel": Story(kill_backends, share=0.25),
    "rolling": Story(reload_workers, share=0.1),
    "rolling-sessions": Story(reload_with_sessions, needs_redis=True, share=0.1),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how often to kill (default {RUNS})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many stories at a time")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000_000)
    parser.add_argument("--only", action="append", choices=[*STORIES, "trouble"], help="repeatable")
    options = parser.parse_args(arguments)
    chosen: list[str] = options.only or [*STORIES, "trouble"]
    failed = 0
    for name, story in STORIES.items():
        if name in chosen and story.needs_redis and shutil.which("redis-server") is None:
            print(f"{name:11}  skipped: there is no redis-server (apt-get install redis-server)")
        elif name in chosen and story.needs_postgres and find_postgres() is None:
            print(f"{name:11}  skipped: there is no Postgres (apt-get install postgresql)")
        elif name in chosen:
            failed += tell(name, story, max(1, round(options.runs * story.share)), options.jobs, options.seed)
    if "trouble" in chosen:
        failed += cause_trouble()
    return 1 if failed else 0


def tell(name: str, story: Story, runs: int, jobs: int, seed: int) -> int:
    """Some runs, in stories of a store each; how many went wrong."""
    lengths = [min(story.length, runs - start) for start in range(0, runs, story.length)]
    began, tally, failed = time.monotonic(), Tally(), 0
    with ThreadPoolExecutor(jobs) as pool:
        told = [(seed + n, length, pool.submit(story.tell, seed + n, length)) for n, length in enumerate(lengths)]
        for at, length, future in told:
            try:
                tally += future.result()
            except Broken as broken:
                failed += 1
                again = f"--only {name} --runs {max(length, round(length / story.share))}"
                print(f"{name:11}  BROKEN: {broken} ({again} --seed {at})")
    print(f"{name:11}  {summary(tally, failed)}, in {time.monotonic() - began:.0f} s")
    return failed + is_slow(tally)


def summary(tally: Tally, failed: int) -> str:
    said = f"{tally.runs:,} runs, {tally.acknowledged:,} acknowledged"
    said += f", {tally.rollbacks:,} rollbacks: " if tally.rollbacks else ": "
    said += f"{failed} broken stories" if failed else "0 lost, 0 unreadable"
    if len(tally.restarts) < 2:
        return said
    worst = quantiles(tally.restarts, n=20)[-1]
    slow = " TOO SLOW" if is_slow(tally) else ""
    return f"{said}; of use again after {median(tally.restarts):.2f} s (p95 {worst:.2f} s){slow}"


def is_slow(tally: Tally) -> bool:
    """By the median: the disk is shared with whatever else runs."""
    return bool(tally.restarts) and median(tally.restarts) >= RESTART_SECONDS


def cause_trouble() -> int:
    try:
        how = fill_the_disk()
        forbid_writing()
    except Broken as broken:
        print(f"trouble      BROKEN: {broken}")
        return 1
    print(f"trouble      a full disk ({how}) and a read-only file: told, and survived without a restart")
    return 0


if __name__ == "__main__":
    sys.exit(main())
