"""The page docs/reliability.md, made of what the commands wrote as JSON. `python -m tests.reliability` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.bench.report import table
from tests.chaos.carrying.mangling import ROADS

Json = Mapping[str, Any]

INTRO = """\
# Reliability

What happens to a server and its clients when the network is bad, the disk is full, the clock jumps, a process
stands still, or nothing is left? What does a server use after hours of load? What do parsers do with bytes that
nobody should send? Each answer here is a command that anybody can run. `python -m tests.reliability` makes this
page of what the commands have found. On another machine the figures differ; what must hold does not.
"""
CHAOS = """\
## Chaos

`make chaos` harms real clients and servers on loopback: ours and the official Python SDK's. Under every fault three
things hold. **Nothing hangs:** each call ends within its timeout. **Nothing acknowledged is lost:** a call that was
answered has left its mark, and no call runs twice. **The message says what happened.** After each fault the server
answers others, has closed what it had opened, and has logged no traceback. Of the official client only what it was
told is judged: how it waits and what it says is its own. Where bytes were changed or doubled, calls may run twice.
"""
ROADS_TEXT = """\
### Bad networks

A proxy between client and server harms the bytes, in one direction at a time. Each cell says how many checks passed,
of how many.

{meanings}

TCP never reorders, loses or changes bytes: these three are what a broken proxy or bad memory does. What is changed
inside a text cannot be found by anybody, so there only hanging, crashing and lasting harm count.
"""
SOAK = """\
## Soak

`make soak ARGS="--minutes {minutes:g}"` puts {scenarios} servers under load at once, each in its own way. Memory,
descriptors, threads, asyncio tasks and latencies are sampled every second. Of servers that start others (workers, a
kernel) the first process is measured, and the others are counted. The first {warm_up:.0%} of the time does not count.
The line through the rest (Theil and Sen) must not rise by more than three times its noise and a small bound; no call
may fail.

{calls:,} calls in all. *Growth* is what the line rises in the whole run, ± its noise.

![What each server used while it was under load](pictures/soak.svg)
"""
TIMERS = """\
Whatever waits for hours (idle sessions, streams, tasks, timeouts) is driven through eight hours by a clock that a
test holds: `pytest tests/soak/test_timers.py`.
"""
FUZZ = """\
## Fuzz

`make fuzz` gives every parser, judge and protocol inputs that a coverage-guided fuzzer (Atheris) makes. It starts
from `tests/fuzz/corpus` and what earlier runs have left, and adds up the figures of all runs. `ARGS="--until 30"`
goes on until each target has had 30 minutes of a core and its last quarter reached nothing new. It may be stopped at
any time. *Last new* is when an input reached code that none before had reached. Seeds: {seeds}.

`make properties` runs the property tests with 20,000 examples each. One of them compares transports: the same calls
over memory, pipes, HTTP, WebSocket, a unix socket and through a kernel give the same answers, errors included, in both
eras.
"""
REST = """\
## More

| command | what it shows |
|---|---|
| `make faults` | servers, Redis, workers and kernels are killed at random moments: nothing acknowledged is lost. \
`ARGS="--only sessions --runs 2000"` kills 500 workers and 100 times their Redis, under load \
from the official Python and TypeScript clients. \
`--only sentinel`: a Redis fails over. `--only idle`: what 10,000 idle sessions cost |
| `make attack` | attacks on servers of its own, over raw sockets, are held |
| `make conformance` | the official conformance suite |

## What falls short

- A server without descriptors says nothing of it: uvloop hangs up on new clients by itself. Those that are
  connected are answered, and connections are bounded by the descriptors that the process had when it started.
- A tool that runs out of memory gives *internal error* and an id. The reason is in the log, under that id.
- Where an allocation fails inside the JSON library (pydantic-core), the whole process ends. It says so; a supervisor
  has to start it again (`--workers` does).
- A process that is stopped in the middle of a commit to SQLite keeps the file locked. Others are told so.
- A task whose time to live is over by the wall clock is gone, even if the clock has only jumped.
- On Windows and macOS none of this was run.
"""


def reliability(chaos: Json | None, soak: Json | None, fuzz: Json | None) -> str:
    """The whole page. What was not run is left out."""
    parts = [INTRO]
    if chaos:
        parts += [CHAOS, _run(chaos), *_roads(chaos["rows"]), *_faults(chaos["rows"])]
    if soak:
        parts += [SOAK.format(**{**soak, "scenarios": len(soak["scenarios"])}), _run(soak), _scenarios(soak), TIMERS]
    if fuzz:
        parts += [FUZZ.format(seeds=_seeds(fuzz["targets"])), _run(fuzz), _targets(fuzz["targets"])]
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


def _plain_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
