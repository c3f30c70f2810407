"""A command runs only if it is one simple command of a known program that cannot do more than it says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from defserve.guard.shell.grammar import MAX_PROBLEMS
from defserve.guard.shell.judgement import ShellMode, judge
from defserve.guard.shell.tables import OPT_IN_PROGRAM_TABLE, PROGRAM_TABLE, REFUSED_PROGRAM_KINDS
from tests.effort import cpu_within
from tests.rows import for_each_row

CORPORA = Path(__file__).parents[1] / "corpora"
CASES: list[dict[str, Any]] = [
    json.loads(line)
    for name in ("shell", "shell_more", "shell_everyday", "shell_attacks")
    for line in (CORPORA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
]
MODES: list[ShellMode] = ["sandbox", "readonly"]


@pytest.mark.parametrize("mode", MODES)
def test_the_corpora_are_judged_as_they_say(mode: ShellMode) -> None:
    wrong = [
        (case["command"], case[mode], [str(found) for found in verdict.violations])
        for case in CASES
        if bool(verdict := judge(case["command"], mode=mode, allowed=case.get("allowed"))) != (case[mode] == "A")
    ]
    assert wrong == []


def test_what_readonly_allows_sandbox_allows() -> None:
    assert [case for case in CASES if case["readonly"] == "A" and case["sandbox"] == "B"] == []


@for_each_row(
    ("command", "argv"),
    [
        ("git status", ("git", "status")),
        ("  ls\t-la  ", ("ls", "-la")),
        ("echo 'rm -rf /'", ("echo", "rm -rf /")),
        ("grep -rn \"a;b\" 'my src'", ("grep", "-rn", "a;b", "my src")),
        ('echo it"\'"s', ("echo", "it's")),
    ],
)
def test_an_allowed_command_comes_back_as_words(command: str, argv: tuple[str, ...]) -> None:
    assert judge(command).argv == argv


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no such shell")
def test_what_passes_is_split_as_a_shell_would_split_it() -> None:
    passed = [(case["command"], argv) for case in CASES if (argv := judge(case["command"]).argv)]
    # `printf` in front makes the command's words data.
    script = "".join(f"printf '%s\\0' {command}\nprintf '\\n\\0'\n" for command, _ in passed)
    run = subprocess.run(["/bin/sh"], input=script.encode(), capture_output=True, check=True)
    seen = [tuple(words.decode().split("\0")[:-1]) for words in run.stdout.split(b"\n\0")[:-1]]
    assert seen == [argv for _, argv in passed]


def test_a_refused_command_has_no_words() -> None:
    assert judge("rm x").argv is None


@for_each_row(
    ("command", "rule"),
    [
        ("ls; id", "metacharacter"),
        ("echo $HOME", "expansion"),
        ('echo "$HOME"', "expansion"),
        ("\\ls", "escape"),
        ("ls {a,b}", "brace"),
        ("ls *", "glob"),
        ("ls ~", "tilde"),
        ("ls # x", "comment"),
        ("ls 'a", "quotes"),
        ("", "empty"),
        ("ls\nid", "hidden-text"),
        ("ls " + "a" * 5000, "length"),
        ("/bin/ls", "path"),
        ("X=1 ls", "assignment"),
        ("ｌｓ", "program-name"),
        ("sudo ls", "wrapper"),
        ("bash -c id", "shell"),
        ("python3.12 -c 1", "interpreter"),
        ("mkfs.ext4 x", "delete"),
        ("vim x", "interactive"),
        ("curl http://x", "network"),
        ("frobnicate", "unknown-program"),
        ("find . -delete", "flag"),
        ("sort --compress=id x", "flag"),
        ("git lol", "subcommand"),
        ("sed 1e x", "script"),
        ("cp x /etc/passwd", "place"),
        ("cat /etc/shadow", "secret"),
        ("kill -9 -1", "flag"),
    ],
)
def test_a_refusal_names_its_rule(command: str, rule: str) -> None:
    assert rule in {violation.rule for violation in judge(command).violations}


def test_a_write_in_readonly_says_that_it_is_one() -> None:
    assert str(judge("sort -o out in", mode="readonly").violations[0]) == "Blocked write flag of sort: '-o'"
    assert [found.rule for found in judge("mkdir d", mode="readonly").violations] == ["write"]


def test_a_refusal_of_an_unknown_program_says_what_would_run_and_the_author_how_to_allow_it() -> None:
    verdict = judge("frobnicate x", mode="readonly")
    assert "ls" in verdict.hints["programs"] and "cp" not in verdict.hints["programs"]
    assert "allowed=" in verdict.author_note and "allowed=" not in str(verdict.hints)


def test_a_refusal_by_the_list_shows_the_list() -> None:
    verdict = judge("git push", allowed={"git": ["status", "log"], "ls": None, "python3 --version": None})
    assert verdict.hints["allowed"] == {"git": ["log", "status"], "ls": "any arguments", "python3 --version": "exactly"}


@for_each_row(
    ("allowed", "command", "may"),
    [
        ({"git": ["status"]}, "git status", True),
        ({"git": ("status",)}, "git log", False),
        ({"git": []}, "git log", True),
        ({"git": None}, "git -c a=b log", False),
        ({"git": ["log --oneline"]}, "git log --oneline", True),
        ({"git": ["log --oneline"]}, "git log", False),
        ({"ls"}, "ls -la", True),
        (["ls", "cat"], "cat x", True),
        ("ls", "ls -la", True),
        ("ls", "l", False),
        ({"python3 --version"}, "python3 --version", True),
        ({"python3 --version"}, "python3 '--version' ", True),
        ({"python3 --version"}, "python3", False),
        ({"python3", "python3 -c 1"}, "python3 -c 1", True),
        ({"python3", "python3 -c 1"}, "python3 -c 2", False),
        ({"unbalanced '"}, "ls", False),
        ({""}, "ls", False),
        ({}, "ls", False),
    ],
)
def test_an_author_may_list_words_programs_or_whole_lines(allowed: Any, command: str, may: bool) -> None:
    assert bool(judge(command, allowed=allowed)) is may


@for_each_row("flag", ["--output=x", "--outp=x", "--ext-diff", "--ext", "--textconv", "--exec=x"])
def test_a_dangerous_flag_is_refused_in_every_spelling_and_every_place(flag: str) -> None:
    listed = {"git": ["log"]}
    assert not judge(f"git log {flag}", allowed=listed)
    assert not judge(f"git log main {flag}", allowed=listed)
    assert not judge(f"git log -n {flag}", allowed=listed)
    assert not judge(f"git log -- {flag}", allowed=listed)


def test_a_listed_program_nobody_knows_has_no_flags_but_the_listed_ones() -> None:
    listed = {"tool": ["get", "--all"]}
    assert judge("tool get x --all", allowed=listed)
    assert judge("tool get --all=x", allowed=listed)
    for flag in ("-o", "--al", "--output", "-", "--"):
        assert not judge(f"tool get {flag}", allowed=listed)


def test_readonly_holds_even_for_a_whole_line_the_author_listed() -> None:
    assert judge("git push", allowed=["git push"])
    assert judge("hostname me", allowed=["hostname me"])
    assert not judge("git push", mode="readonly", allowed=["git push"])


def test_no_program_is_known_and_notorious_at_once() -> None:
    assert set(PROGRAM_TABLE) & set(REFUSED_PROGRAM_KINDS) == set()
    assert set(PROGRAM_TABLE) & set(OPT_IN_PROGRAM_TABLE) == set()


@for_each_row("name", sorted(REFUSED_PROGRAM_KINDS))
def test_no_notorious_program_runs_unless_it_is_listed(name: str) -> None:
    for words in ("", " x", " -c id", " --version x", " -e --version"):
        assert not judge(name + words)


@given(st.text() | st.text(alphabet="ls git-o'\"\\$`;|&<>(){}[]*?~#=\n\t\x00e1/.,s!"), st.sampled_from(MODES))
@example("sed s", "sandbox")
@example("sed 's/'", "sandbox")
@example("awk -F", "sandbox")
@example("kill -s", "sandbox")
@example("tar", "readonly")
def test_any_text_is_judged_and_what_passes_means_the_same_to_a_shell(text: str, mode: ShellMode) -> None:
    for allowed in (None, {"ls": ["x"]}, {"git", "ls", "s"}):
        verdict = judge(text, mode=mode, allowed=allowed)
        assert verdict.allowed is (verdict.argv is not None) is not bool(verdict.violations)
        if verdict.argv is not None:
            assert judge(shlex.join(verdict.argv), mode=mode, allowed=allowed).argv == verdict.argv


@given(
    st.sampled_from(sorted(PROGRAM_TABLE)),
    st.lists(st.text(alphabet="-aeiorstxcfC=/.{}'\"1,;|>$@:+ ", max_size=8), max_size=5),
)
def test_any_arguments_of_a_known_program_are_judged(program: str, words: list[str]) -> None:
    for mode in MODES:
        verdict = judge(shlex.join([program, *words]), mode=mode)
        assert verdict or verdict.violations


@for_each_row("value", [b"ls", None, 3, ["ls"]])
def test_what_is_not_text_is_refused(value: object) -> None:
    assert [found.rule for found in judge(cast(Any, value)).violations] == ["text"]


@pytest.mark.slow
@for_each_row(
    "text",
    [
        "ls " + "a" * 10_000,
        "'" * 4095,
        '"\\' * 2047,
        "sed '" + "s/a/b/;" * 580 + "'",
        "sed '" + "/" * 4000 + "'",
        "sed '" + "1," * 2000 + "'",
        "sed 's/" + "\\/" * 2000 + "'",
        "awk '" + "|" * 4000 + "'",
        "awk '" + "/[" * 1900 + "'",
        "awk '" + "/(/ " * 1000 + "'",
        "git log " + "-" * 4000,
        "git log " + "--output " * 450,
        "tar " + "x" * 4000,
        "cp " + "../" * 1300,
        "find . " + "-a " * 1300,
        "awk '/" + "[^x]" * 22 + "'",
        "ps -o '" + "pid= pid " * 18 + "!'",
        "ps -o '" + "pid= pid " * 400 + "!'",
        "ss '" + "state " * 600 + "!'",
        "chmod " + "u+x," * 1000 + "! f",
    ],
)
def test_hostile_text_is_judged_in_no_time(text: str) -> None:
    assert cpu_within(1, lambda: judge(text))


def test_a_listed_ssh_runs_no_program_of_this_machine() -> None:
    for command in ("ssh -oProxyCommand=x host", "ssh -o ProxyCommand=x host", "ssh -F x host", "ssh -S x host"):
        assert not judge(command, allowed={"ssh": None})
    for command in ("scp -S x a host:b", "scp -oProxyCommand=x a host:b", "scp host:a .git/hooks/pre-commit"):
        assert not judge(command, allowed={"scp": None})
    assert judge("ssh -p 22 me@host ls -la", allowed={"ssh": None})
    assert judge("scp -r src host:/srv/src", allowed={"scp": None})


def test_a_refusal_names_the_first_problems_of_a_command_only() -> None:
    for command in (
        "git log " + " ".join(f"--x{number}" for number in range(500)),
        "cat " + " ".join(f"/root/{number}" for number in range(300)),
    ):
        assert len(judge(command).violations) == MAX_PROBLEMS
