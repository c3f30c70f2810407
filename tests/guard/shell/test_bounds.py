"""No command that passes prints or runs without an end, follows links on a walk, or reaches another process."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from defserve.guard.shell.grammar import parse_program_spec
from defserve.guard.shell.judgement import judge
from defserve.guard.shell.places import make_command_environment
from defserve.guard.shell.tables import PROGRAM_TABLE
from tests.guard.shell.tables.test_tables import EVERY
from tests.rows import for_each_row

HUGE = "99999999999"

# Options that say how wide, how long, how often or how many: their numbers are bounded in every program.
BOUNDED = re.compile(r"--(?:width|indent|padding|tabs?|tabsize|threads|parallel|count|seconds|months|number-width)\Z")


def test_a_number_that_says_how_much_is_printed_is_bounded_in_every_table() -> None:
    # These cut their input, or stop after so many matches.
    cutting = {"cut", "fold", "fmt", "git", "grep", "ps", "git for-each-ref", "apt"}
    unbounded = [
        f"{title} {flag}"
        for title, rules in EVERY
        for flag, option in rules.options.items()
        if BOUNDED.match(flag) and option.kinds == ("number",) and title not in cutting
    ]
    assert unbounded == []


# Options that follow links which a walk or a copy meets. `stat`, `file` and `git log` look at one named file.
FOLLOWING = re.compile(
    r"--(?:dereference.*|follow|follow-symlinks|copy-links|copy-unsafe-links|copy-dirlinks|logical)\Z"
)


def test_no_program_that_walks_or_copies_follows_links() -> None:
    named = {"stat", "file", "pwd", "realpath"}
    following = [
        f"{title} {flag}"
        for title, rules in EVERY
        for flag in rules.options
        if FOLLOWING.match(flag) and title.split()[0] not in named | {"git"}
    ]
    assert following == []
    walkers = {"grep": "-R", "rg": "-L", "fd": "-L", "find": "-L", "tree": "-l", "du": "-L", "cp": "-L", "rsync": "-L"}
    assert [
        name
        for name, flag in walkers.items()
        if flag in parse_program_spec(str(PROGRAM_TABLE[name])).options and name != "grep"
    ] == []
    assert "-R" not in parse_program_spec(str(PROGRAM_TABLE["grep"])).options


@for_each_row(
    "command",
    [
        f"seq {HUGE}",
        f"seq 1 {HUGE}",
        f"seq -{HUGE} 1",
        "seq 1 0 5",
        "seq 0 0.0 1",
        "seq 1 0.001 9999999",
        "seq nan",
        f"shuf -i 1-{HUGE}",
        f"sleep {HUGE}",
        f"factor {HUGE}{HUGE}",
        "shuf -r f",
        "shuf --repeat -e a b",
        "top -b",
        "top -n 1",
        "free -s 1",
        "tail -f x",
        "vmstat 1",
    ],
)
def test_what_would_not_end_is_refused(command: str) -> None:
    assert not judge(command)
    assert not judge(command, mode="readonly")


@for_each_row(
    "command",
    [
        "seq 5",
        "seq 10 -1 1",
        "seq -5 5",
        "seq 0 .1 1",
        "shuf -r -n 3 f",
        "top -bn1",
        "free -s 1 -c 3",
        "sleep 2",
        "kill -l",
    ],
)
def test_what_ends_passes(command: str) -> None:
    assert judge(command, mode="readonly")


def test_a_needed_option_is_named() -> None:
    assert "needs --head-count or -n" in str(judge("shuf -r f").violations[0])


@for_each_row("command", ["gunzip -k a.gz -f", "gzip a -k", "xz a -v"])
def test_a_late_option_that_chooses_nothing_passes(command: str) -> None:
    assert judge(command)


@for_each_row("command", ["gzip a -c", "gzip a -t", "xz a -l", "xz a -dk"])
def test_a_late_option_that_chooses_is_refused(command: str) -> None:
    assert not judge(command, mode="readonly")
    assert not judge(command)


HOOKS = "reference-transaction pre-commit post-checkout post-commit post-index-change post-merge post-rewrite".split()
# A form of each sub-command that changes refs, the index or the working tree.
CHANGING = [
    "git add .",
    "git commit -am x",
    "git branch new",
    "git branch -M side other",
    "git tag t",
    "git remote add up https://example.com/x",
    "git stash",
    "git worktree add w2",
    "git worktree prune",
    "git notes add -m x",
    "git checkout side",
    "git switch -c x",
    "git restore a",
    "git restore --staged .",
    "git reset --soft HEAD~1",
    "git merge --no-edit side",
    "git rm --cached b",
    "git mv b bb",
    "git update-index --refresh",
    "git submodule init",
    "git submodule sync",
    "git bundle create x.bundle main",
    "git archive -o x.zip HEAD",
    "git format-patch -1",
    "git merge-tree main side",
    "git config user.name x",
    "git clean -n",
]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git"), reason="git is needed")
@pytest.mark.parametrize("command", CHANGING)
def test_no_hook_of_a_repository_runs(tmp_path: Path, command: str) -> None:
    root = tmp_path / "r"
    root.mkdir()
    who = {f"GIT_{role}_{what}": "n@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def run(*words: str) -> None:
        subprocess.run(
            words, cwd=root, env={**make_command_environment(writing=True), **who}, check=False, capture_output=True
        )

    run("git", "init", "-q", "-b", "main", ".")
    for text in ("one", "two"):
        for name in ("a", "b"):
            (root / name).write_text(text)
        run("git", "add", ".")
        run("git", "commit", "-qm", text)
    run("git", "branch", "side")
    (root / "a").write_text("three")
    (root / ".git/hooks").mkdir(exist_ok=True)
    for name in HOOKS:
        (root / ".git/hooks" / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (root / ".git/hooks" / name).chmod(0o755)
    argv = judge(command).argv
    assert argv
    run(*argv)
    assert not (tmp_path / "ran").exists()


@for_each_row("command", ["git remote rename a b", "git remote remove a", "git remote rm a", "git bisect start"])
def test_what_runs_hooks_whatever_the_settings_say_is_refused(command: str) -> None:
    assert not judge(command)
