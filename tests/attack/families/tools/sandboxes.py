"""Code in the sandbox: at every level it reaches nothing, ends in time, and cannot say what only the jail may say."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.attack.controls.tools import believe_any_report, run_without_a_filter, wait_for_programs
from tests.attack.trial import Control, Family, MissingFeature, Trial

FAMILY = Family("sandbox")
OWN = Path(__file__).parents[2] / "corpora" / "programs.jsonl"
KNOWN = Path(__file__).parents[3] / "guard" / "corpora"
LEVELS = ("unrestricted", "standard", "strict", "readonly")
CANARY = "canary-5d1e9f"
SECONDS = 2.0
STARTING = 8.0
"""What a busy machine may need on top, to start a process and to end it."""

# What only the jail may say of a program.
FORGED = (
    '{"status": "unconfined", "error": "forged"}',
    '{"status": "mismatch"}',
    '{"status": "rejected"}',
    '{"status": "timeout"}',
    '[["unconfined"]]',
)

Job = tuple[str, str, float]


def programs(kind: str) -> dict[str, str]:
    """Name → source. An escape sets `result` to what it got; in a forgery, REPORT stands for the forged report."""
    rows = (json.loads(line) for line in OWN.read_text(encoding="utf-8").splitlines())
    return {row["name"]: row["code"] for row in rows if row["kind"] == kind}


def run(trial: Trial, jobs: dict[str, Job]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The outcomes by name; run without a network, beside a file and a variable that nobody may read."""
    chosen = dict(trial.choose(jobs))
    folder = trial.arena.folder / "canaries"
    folder.mkdir(exist_ok=True)
    (folder / "canary").write_text(CANARY)
    found = trial.arena.drive("sandbox_runs", list(chosen.values()), without_network=True, ATTACK_SECRET=CANARY)
    if "missing" in found:
        raise MissingFeature(f"this kernel lacks {', '.join(found['missing'])}")
    return zip(chosen, found["outcomes"], strict=True)


def source(row: dict[str, Any]) -> str:
    return row["code"] if "code" in row else "".join(piece * count for piece, count in row["repeat"])


@FAMILY.attack("escapes", Control(run_without_a_filter, "it got", "unrestricted, reads files"))
def _(trial: Trial) -> None:
    escapes = programs("escape")
    jobs = {f"{level}, {name}": (level, code, SECONDS) for level in LEVELS for name, code in escapes.items()}
    for name, outcome in run(trial, jobs):
        got = outcome["status"] == "ok" and outcome["value"]
        trial.expect(not got, f"{name}: it got {str(outcome.get('value'))[:120]}")
        trial.expect(CANARY not in str(outcome), f"{name}: it has read the canary")
        trial.expect(outcome["status"] != "refused", f"{name}: {outcome.get('error')}")


@FAMILY.attack("exhaustion", Control(wait_for_programs, "12\\.. s, timeout", "unrestricted, sleeps"))
def _(trial: Trial) -> None:
    exhausting = programs("exhausting")
    jobs = {f"{level}, {name}": (level, code, 0.7) for level in LEVELS for name, code in exhausting.items()}
    for name, outcome in run(trial, jobs):
        took = outcome.get("seconds", 0)
        trial.expect(took < 0.7 + STARTING, f"{name}: {took:.1f} s, {outcome['status']}")
        trial.expect(outcome["status"] != "refused", f"{name}: {outcome.get('error')}")


@FAMILY.attack(
    "forged reports", Control(believe_any_report, "the host believes rejected", "unrestricted, replaces json.dumps*")
)
def _(trial: Trial) -> None:
    """Whatever a program writes and wherever, only the jail says that it was not confined or not judged."""
    jobs: dict[str, Job] = {}
    for level in ("unrestricted", "standard"):
        for name, code in programs("forgery").items():
            for report in FORGED:
                jobs[f"{level}, {name}, {report}"] = level, code.replace("REPORT", repr(report)), STARTING
    for name, outcome in run(trial, jobs):
        is_judged = name.startswith("standard") and outcome["status"] == "rejected"
        held = outcome["status"] not in ("refused", "rejected") or is_judged
        trial.expect(held, f"{name}: the host believes {outcome['status']}")
        late = outcome["status"] == "timeout" and outcome.get("seconds", 0) < STARTING / 2
        trial.expect(not late, f"{name}: the host believes it ran out of time")
        if outcome["status"] not in ("refused", "rejected", "timeout"):
            trial.expect(outcome["layers"], f"{name}: no layers are reported")


@FAMILY.attack("the code corpora", Control(run_without_a_filter, "is in its outcome", "unrestricted, imp02"))
def _(trial: Trial) -> None:
    """Every attack known to the judge, unjudged; and what the judge lets through at its level."""
    rows = [json.loads(line) for line in (KNOWN / "code.jsonl").read_text().splitlines() if line]
    more = [json.loads(line) for line in (KNOWN / "code_more.jsonl").read_text().splitlines() if line]
    attacks = [row for row in rows + trial.random.sample(more, 100) if row["category"] not in ("dos", "benign")]
    jobs: dict[str, Job] = {}
    for row in attacks:
        told = source(row) + "\nresult = repr(globals().get('PWN'))[:10_000]"
        jobs[f"unrestricted, {row['id']}"] = "unrestricted", told, SECONDS
        for level in ("standard", "strict", "readonly"):
            if row["expected"].get(level) == "B":
                jobs[f"{level}, {row['id']}"] = level, source(row), SECONDS
    for name, outcome in run(trial, jobs):
        everything = str(outcome)
        for found in (CANARY, "root:x:", "uid="):
            trial.expect(found not in everything, f"{name}: {found!r} is in its outcome")
        if not name.startswith("unrestricted"):
            trial.expect(outcome["status"] == "rejected", f"{name}: {outcome['status']}")
