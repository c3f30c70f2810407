"""Shell commands and URLs, judged and never run. The corpora here were written apart from the guard and its tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from defserve.guard import network, shell
from tests.attack.controls.patching import Removal
from tests.attack.controls.tools import (
    know_no_arguments,
    let_readonly_write,
    read_any_file,
    read_no_awk,
    read_no_jq,
    read_no_sed,
    refuse_every_command,
    run_any_program,
    take_any_character,
    take_private_addresses,
    write_any_file,
)
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("commands")
OWN = Path(__file__).parents[2] / "corpora"
KNOWN = Path(__file__).parents[3] / "guard" / "corpora"
FALSE_ALARMS = 0.01
"""How many everyday commands may be refused."""

PASSES = "passes"


def without(remove: Removal, bites: str = PASSES) -> Control:
    return Control(remove, bites, here=True)


# Each kind of attack is held by a part of the judge. Without that part it passes.
CONTROLS = {
    "awk runs, writes or reads elsewhere": without(read_no_awk),
    "sed runs, writes or reads elsewhere": without(read_no_sed),
    "sed writes in place": without(let_readonly_write),
    "jq reads the environment or files": without(read_no_jq),
    "find runs or writes": without(know_no_arguments),
    "wrappers and shells": without(run_any_program),
    "git config sets what a later command runs": without(know_no_arguments),
    "git runs, reads elsewhere or talks": without(know_no_arguments),
    "git writes": without(let_readonly_write),
    "a second operand or a flag is written": without(let_readonly_write),
    "archives run or leave": without(know_no_arguments),
    "writes to trusted places": without(write_any_file),
    "reads of secrets": without(read_any_file),
    "sort, date, hostname and others": without(know_no_arguments),
    "curl and wget, allowed by the author": without(know_no_arguments),
    "downloads are written": without(let_readonly_write),
}

Case = dict[str, Any]


def read(file: Path) -> list[Case]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]


def attacks(trial: Trial, cases: list[Case]) -> None:
    for case in cases:
        for mode in case["modes"]:
            verdict = shell.judge(case["command"], mode=mode, allowed=case.get("allowed"))
            trial.expect(not verdict, f"{mode}: {case['command']!r} passes ({case['note']})")


def _groups() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in read(OWN / "shell_attacks.jsonl"):
        found.setdefault(case["note"], []).append(case)
    return found


for _note, _cases in _groups().items():
    FAMILY.add(_note, lambda trial, cases=_cases: attacks(trial, cases), CONTROLS[_note])


@FAMILY.attack("everyday commands", without(refuse_every_command, "are refused"))
def _(trial: Trial) -> None:
    for mode in ("sandbox", "readonly"):
        cases = [case for case in read(OWN / "shell_everyday.jsonl") if mode in case["modes"]]
        refused = [case["command"] for case in cases if not shell.judge(case["command"], mode=mode)]
        share = len(refused) / len(cases)
        trial.expect(share <= FALSE_ALARMS, f"{mode}: {len(refused)} of {len(cases)} are refused: {refused[:8]}")
        if refused and share <= FALSE_ALARMS:
            trial.notes.append(f"{mode} refuses {', '.join(refused)}")


@FAMILY.attack("the guard's own corpora", without(know_no_arguments, ": True$"))
def _(trial: Trial) -> None:
    for name in ("shell", "shell_more"):
        for case in read(KNOWN / f"{name}.jsonl"):
            for mode in ("sandbox", "readonly"):
                verdict = shell.judge(case["command"], mode=mode, allowed=case.get("allowed"))
                trial.expect(bool(verdict) == (case[mode] == "A"), f"{mode}: {case['command']!r}: {bool(verdict)}")


@FAMILY.attack("mutations", without(take_any_character))
def _(trial: Trial) -> None:
    """An everyday command with a metacharacter in it, outside quotes, is refused or the character is data."""
    pieces = [*";id |id &id &&id $(id) `id` >out <f $HOME <(id)".split(), "\nid", "\x00", "\r\nid", "\u2028id"]
    plain = [case["command"] for case in read(OWN / "shell_everyday.jsonl") if not set(case["command"]) & set("'\"\\")]
    for _ in range(3_000):
        command = trial.random.choice(plain)
        at = trial.random.randrange(len(command) + 1)
        mutated = command[:at] + trial.random.choice(pieces) + command[at:]
        trial.expect(not shell.judge(mutated), f"{mutated!r} passes")


@FAMILY.attack("URLs", without(take_private_addresses, ": True$"))
def _(trial: Trial) -> None:
    for file in (OWN / "urls.jsonl", KNOWN / "url.jsonl", KNOWN / "url_more.jsonl"):
        for case in read(file):
            verdict = network.judge(case["url"])
            trial.expect(bool(verdict) == (case["expected"] != "B"), f"{case['url']!r}: {bool(verdict)}")
