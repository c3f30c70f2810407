"""Shell commands and URLs, judged and never run. The corpora here were written apart from the guard and its tests."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from defserve.guard import network, shell
from tests.attack.controls.patching import Removal
from tests.attack.controls.tools import (
    know_no_arguments,
    let_readonly_write,
    list_public_folders,
    read_any_file,
    read_no_awk,
    read_no_jq,
    read_no_sed,
    refuse_every_command,
    run_any_program,
    take_any_character,
    take_private_addresses,
    trust_every_repository,
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


# -- what a repository brings along, whatever the author lists -------------------------------------------

BROUGHT = {
    "textconv": ("config", '[diff "x"]\n\ttextconv = evil\n'),
    "a diff program": ("config", '[diff "x"]\n\tcommand = evil\n'),
    "a filter": ("config", '[filter "y"]\n\tclean = evil\n'),
    "an included file": ("config", "[include]\n\tpath = ../more\n"),
    "settings of a worktree": ("config.worktree", '[diff "x"]\n\ttextconv = evil\n'),
    "files elsewhere": ("config", "[core]\n\tworktree = /etc\n"),
    "objects elsewhere": ("objects/info/alternates", "/srv/other/objects\n"),
    "settings elsewhere": ("commondir", "/srv/other/.git\n"),
}
LISTS: tuple[Any, ...] = (None, {"git": ["diff"]}, {"git": None}, {"git diff"})


def make_repository(folder: str) -> Path:
    git = Path(folder, ".git")
    for name in ("objects/info", "refs/heads"):
        (git / name).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text("[core]\n\tbare = false\n")
    return git


@FAMILY.attack("what a repository brings along", without(trust_every_repository))
def _(trial: Trial) -> None:
    for what, (name, text) in BROUGHT.items():
        with TemporaryDirectory() as folder:
            git = make_repository(folder)
            for allowed in LISTS:
                verdict = shell.judge("git diff", root=folder, allowed=allowed)
                trial.expect(verdict, f"an honest repository is refused with {allowed}")
            with (git / name).open("a") as stream:
                stream.write(text)
            for allowed in LISTS:
                verdict = shell.judge("git diff", root=folder, allowed=allowed)
                trial.expect(not verdict, f"{what} passes with {allowed}")


@FAMILY.attack("a repository that is elsewhere", without(trust_every_repository))
def _(trial: Trial) -> None:
    with TemporaryDirectory() as folder, TemporaryDirectory() as other:
        make_repository(other)
        Path(folder, ".git").write_text(f"gitdir: {other}/.git\n")
        for allowed in LISTS:
            trial.expect(not shell.judge("git diff", root=folder, allowed=allowed), f"it passes with {allowed}")


@FAMILY.attack("this folder only", without(list_public_folders))
def _(trial: Trial) -> None:
    with TemporaryDirectory() as folder:
        trial.expect(shell.judge("ls .", root=folder, only_root=True), "the folder itself is refused")
        for place in ("/", "/etc", "/var", "/opt", "/home", "/tmp", "/usr/share"):
            for allowed in (None, {"ls": None}):
                verdict = shell.judge(f"ls {place}", root=folder, only_root=True, allowed=allowed)
                trial.expect(not verdict, f"{place} passes with {allowed}")


@FAMILY.attack("URLs", without(take_private_addresses, ": True$"))
def _(trial: Trial) -> None:
    for file in (OWN / "urls.jsonl", KNOWN / "url.jsonl", KNOWN / "url_more.jsonl"):
        for case in read(file):
            verdict = network.judge(case["url"])
            trial.expect(bool(verdict) == (case["expected"] != "B"), f"{case['url']!r}: {bool(verdict)}")
