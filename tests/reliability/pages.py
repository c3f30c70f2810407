"""The page docs/reliability.md, made of what the commands wrote as JSON. `python -m tests.reliability` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.report import table
from tests.chaos.carrying.mangling import ROADS

Json = Mapping[str, Any]

INTRO = """\
# Reliability: chaos, soak and fuzz tests

This page shows how defserve behaves with bad networks, full disks, clock changes, paused processes, long load and
malformed input.

Every result comes from a command that you can run. `python -m tests.reliability` writes this page from their output.
"""
CHAOS = """\
## Chaos

`make chaos` injects faults into real clients and servers on loopback, with our client and the official Python SDK's.
It checks three things under every fault:

- **No call hangs.** Each one ends within its timeout.
- **No acknowledged work is lost,** and no call runs twice. (With changed or doubled bytes, calls may run twice.)
- **The error says what happened.**

After each fault, the server answers other clients, has released its resources and has logged no traceback. With the
official client, only the server's answers are checked.
"""
ROADS_TEXT = """\
### Bad networks

A proxy damages the bytes in one direction. Cells: checks passed / checks made.

{meanings}

TCP itself never loses, reorders or changes bytes, but broken proxies and bad memory do. Nobody can detect a change
inside a text, so those rows only check for hangs, crashes and lasting damage.
"""
SOAK = """\
## Soak

`make soak ARGS="--minutes {minutes:g}"` runs {scenarios} servers under load at once. It samples memory, descriptors,
threads, asyncio tasks and latency every second, and ignores the first {warm_up:.0%}. The trend of the rest (Theil–Sen)
must stay within three times its noise plus a small bound, and no call may fail. For servers with several processes, the
first one is measured.

{calls:,} calls in all. *Growth* is the trend over the whole run, ± its noise.

![What each server used while it was under load](pictures/soak.svg)
"""
TIMERS = """\
Timeouts that take hours (idle sessions, streams, tasks) are tested with a simulated clock over eight hours:
`pytest tests/soak/test_timers.py`.
"""
FUZZ = """\
## Fuzz

`make fuzz` runs a coverage-guided fuzzer (Atheris) on every parser, guard and protocol. `ARGS="--until 30"` runs until
each target has had 30 core-minutes and found nothing new in the last quarter. *Last new* is the minute at which an
input last reached new code. Figures add up all runs of the same code. Seeds: {seeds}.

`make properties` runs the property tests with 20,000 examples each. One of them makes the same calls over memory,
pipes, HTTP, WebSocket, a unix socket and a kernel, and compares all answers and errors.
"""
CAMPAIGNS = """\
## Everything that was run

`make campaigns` runs what a release needs, and records each run here: the figures as the command printed them, on which
commit and machine. *tree* is the version of the folder `framework/`: rows with the same one measured the same code.
"""
REST = """\
## Other tests

| command | what it tests |
|---|---|
| `make faults` | kills servers, Redis, workers and kernels at random: nothing acknowledged is lost. \
`ARGS="--only sessions --runs 2000"` kills 500 workers, and Redis 100 times, under load \
from the official Python and TypeScript clients. \
`--only sentinel`: a Redis failover. `--only idle`: the cost of 10,000 idle sessions |
| `make cluster` | tears a cluster of nodes, Redis and Postgres apart, and checks [what it promises](what-is-kept.md) |
| `make attack` | attacks over raw sockets |
| `make conformance` | the official conformance suite |

## Known limits

- A server without free descriptors logs nothing: uvloop closes new connections by itself. Existing clients still get
  answers.
- A tool that runs out of memory returns *internal error* with an id. The log has the reason under that id.
- If an allocation fails inside the JSON library (pydantic-core), the process ends with a message. Use a supervisor, or
  `--workers`.
- A process that is stopped during a SQLite commit keeps the file locked. Others get an error that says so.
- If the wall clock jumps past a task's time to live, the task is gone.
- None of this was run on Windows or macOS.
"""


@dataclass(frozen=True, slots=True)
class CampaignRow:
    """How one run of a campaign went, on the `framework/` called `tree`."""

    name: str
    command: str
    commit: str
    tree: str
    machine: str
    seconds: int
    figures: str
    verdict: str


def reliability(chaos: Json | None, soak: Json | None, fuzz: Json | None, campaigns: Sequence[CampaignRow] = ()) -> str:
    """The whole page. What was not run is left out."""
    parts = [INTRO]
    if chaos:
        parts += [CHAOS, _run(chaos), *_roads(chaos["rows"]), *_faults(chaos["rows"])]
    if soak:
        parts += [SOAK.format(**{**soak, "scenarios": len(soak["scenarios"])}), _run(soak), _scenarios(soak), TIMERS]
    if fuzz:
        parts += [FUZZ.format(seeds=_seeds(fuzz["targets"])), _run(fuzz), _targets(fuzz["targets"])]
    if campaigns:
        parts += [CAMPAIGNS, _campaigns(campaigns)]
    return "\n".join(part.rstrip("\n") + "\n" for part in [*parts, REST])


def _run(found: Json) -> str:
    machine = found["machine"]
    where = f"{machine['system']}, Python {machine['python']}, defserve {machine['version']}"
    seed = f"; seed {found['seed']}" if "seed" in found else ""
    return f"Run on {machine['day']}: {where}{seed}.\n"


def _roads(rows: Sequence[Json]) -> list[str]:
    carried = [row for row in rows if ", " in row["family"]]
    families = list(dict.fromkeys(row["family"] for row in carried))
    cells = {(row["family"], row["attack"]): _held(row) for row in carried}
    lines = [
        [f"{way} {road.name}", *(cells.get((family, f"{way} {road.name}"), "–") for family in families)]
        for road in ROADS
        for way in ("requests", "answers")
    ]
    harms = dict.fromkeys(road.harm for road in ROADS)
    named = {harm: ", ".join(road.name for road in ROADS if road.harm is harm) for harm in harms}
    meanings = "\n".join(f"- *{named[harm]}*: {harm.value}." for harm in harms)
    return [ROADS_TEXT.format(meanings=meanings), table(["", *families], lines) + "\n"]


def _faults(rows: Sequence[Json]) -> list[str]:
    found: list[str] = []
    others = [row for row in rows if ", " not in row["family"]]
    for family in dict.fromkeys(row["family"] for row in others):
        lines = [[row["attack"], row["expected"], _held(row)] for row in others if row["family"] == family]
        found += [f"### {family.capitalize()}\n", _plain_table(["fault", "expected", "looks"], lines)]
    return found


def _held(row: Json) -> str:
    if row["not_tried"] is not None:
        return "not tried"
    return f"{row['held']}/{row['tried']}" if row["good"] else f"**{row['held']}/{row['tried']}**"


def _scenarios(soak: Json) -> str:
    lines = [
        [
            name,
            f"{run['calls']:,}",
            *(_growth(run["slopes"].get(measure), unit) for measure, unit in _MEASURES),
            "flat" if not (run["growing"] or run["failed"] or run["reasons"]) else "**not flat**",
        ]
        for name, run in soak["scenarios"].items()
    ]
    return table(["scenario", "calls", *(measure for measure, _ in _MEASURES), ""], lines) + "\n"


_MEASURES = (("memory", " MB"), ("descriptors", ""), ("threads", ""), ("tasks", ""), ("p50", " ms"))


def _growth(line: Json | None, unit: str) -> str:
    if line is None:
        return "–"
    return f"{line['start']:.3g}{unit} {line['growth']:+.2g} ± {line['noise']:.1g}"


def _targets(targets: Json) -> str:
    lines = [
        [
            name,
            f"{total['seconds'] / 60:.1f}",
            f"{total['runs']:,}",
            str(total["coverage"]),
            f"{total['grew_at'] / 60:.1f}",
            str(len(total["found"])),
        ]
        for name, total in targets.items()
    ]
    return table(["target", "core-minutes", "inputs", "branches", "last new", "crashes and hangs"], lines) + "\n"


def _seeds(targets: Json) -> str:
    """All that were used, those in a row as a range."""
    rows: list[list[int]] = []
    for seed in sorted({seed for total in targets.values() for seed in total["seeds"]}):
        if rows and seed == rows[-1][1] + 1:
            rows[-1][1] = seed
        else:
            rows.append([seed, seed])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in rows)


def _campaigns(rows: Sequence[CampaignRow]) -> str:
    lines = [
        [row.name, f"`{row.command}`", row.commit, row.tree, row.machine, f"{row.seconds} s", row.figures, row.verdict]
        for row in rows
    ]
    head = ["campaign", "command", "commit", "tree", "run on", "took", "figures", "verdict"]
    return _plain_table(head, lines)


def _plain_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
