"""May this command line run? It must be one simple command of a known program, with no flag that runs or writes more.

An allowed command comes back as `argv`, to be run with `shell=False`. Nothing is looked up on this machine.

Without `allowed`, only programs from a table of known ones run. A list of bad programs would never be complete, and a
refusal that names the setting costs less than an attack that nobody foresaw. `sandbox` stops what destroys, escapes or
runs other programs; `readonly` stops every write as well. Package managers are allowed in `sandbox`, and they run what
they install. Only the operating system can draw a boundary that holds.

With `allowed`, only what the author listed is run, and the known dangers of listed programs stay refused:

    {"git": ["status", "log"]}      `git status …` and `git log …`, without --output, --ext-diff and the like
    {"ls": None} or {"ls"}          `ls` with anything that passes its rules
    {"kubectl": ["get", "-o"]}      a program we do not know: `kubectl get …` with the flag -o and no other
    {"python3 --version"}           exactly this command line, and nothing is asked about its flags

A word that starts with a dash is never taken for data. For a known program it passes unless it can mean one of the
program's dangerous flags, as itself, abbreviated or inside a cluster. For an unknown program with listed words it
passes only if the author listed it. `--` does not change this: it can be the value of the flag before it, and to some
programs it announces a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from defserve.guard.shell.allow_list import Allowed, AllowList, allow_list
from defserve.guard.shell.known_programs import KINDS, NEVER_OPEN, ON_REQUEST, PROGRAMS, UNKNOWN
from defserve.guard.shell.program_rules import Program, ShellMode, flag_violations, operands, word_violations
from defserve.guard.shell.words import words
from defserve.guard.verdict import Verdict, Violation, refused

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_FORM = "one program and its arguments; no pipes, redirects, variables, globs or line breaks; text in single quotes"


def judge(command: str, *, mode: ShellMode = "sandbox", allowed: Allowed | None = None) -> Verdict:
    """Whether `command` may run, and as which argv. Never raises."""
    if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return refused([Violation("text", "Blocked command: it is not text")], {"form": _FORM})
    argv, found = words(command)
    if found:
        return refused(found, {"form": _FORM})
    listed = None if allowed is None else allow_list(allowed)
    found = list(_by_rules(argv, mode) if listed is None else _by_list(argv, mode, listed))
    if found:
        # Two words may break the same rule: it is named once.
        return refused(dict.fromkeys(found), _hints(argv[0], mode, listed))
    return Verdict(True, argv=tuple(argv))


def _by_rules(argv: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """The author listed nothing: known programs only."""
    if name_problem := _name_problem(argv[0]):
        yield name_problem
    elif program := PROGRAMS.get(argv[0]):
        yield from _arguments(argv, program, mode)
    else:
        yield _not_run(argv[0])


def _arguments(argv: Sequence[str], program: Program, mode: ShellMode) -> Iterator[Violation]:
    yield from flag_violations(argv[1:], program, mode, argv[0])
    yield from word_violations(argv[1:], program, mode, argv[0])


def _name_problem(name: str) -> Violation | None:
    if "/" in name:
        return Violation("path", f"Blocked program: '{name}' is named by a path")
    if "=" in name:
        return Violation("assignment", f"Blocked assignment: '{name}'")
    if not _PLAIN_NAME.fullmatch(name) and name not in KINDS:
        return Violation("program-name", f"Blocked program: {name!r} is not a plain name")
    return None


def _plain(name: str) -> str:
    """The name by which rules are looked up: `/usr/bin/python3.12` is `python`."""
    base = name.rpartition("/")[2]
    return base if base in KINDS or base in PROGRAMS else re.sub(r"[\d.-]+$", "", base)


def _not_run(name: str) -> Violation:
    kind = KINDS.get(_plain(name)) or KINDS.get(name.partition(".")[0]) or "unknown-program"
    return Violation(kind, f"Blocked program: '{name}'")


def _by_list(argv: Sequence[str], mode: ShellMode, listed: AllowList) -> Iterator[Violation]:
    """The author listed what may run."""
    name, rest = argv[0], argv[1:]
    if not listed.names(name):
        yield _name_problem(name) or Violation("not-allowed", f"Blocked program: '{name}' is not on the list")
        return
    program = PROGRAMS.get(_plain(name)) or ON_REQUEST.get(_plain(name))
    if tuple(argv) in listed.lines:
        # The author vouches for the whole line, but readonly is a promise to the caller.
        if mode == "readonly":
            yield from (found for found in _arguments(argv, program or Program(), mode) if found.rule == "write")
    elif (kind := KINDS.get(_plain(name))) in NEVER_OPEN:
        yield Violation(kind, f"Blocked program: '{name}' can run any program; only whole lines of it can be allowed")
    elif name in listed.open:
        yield from _arguments(argv, program or UNKNOWN, mode)
    elif (first := _first(rest, program)) not in listed.firsts.get(name, ()):
        yield Violation("not-allowed", f"Blocked command: '{f'{name} {first}'.strip()}' is not on the list")
    else:
        yield from _listed_first(argv, program, mode, listed.firsts[name])


def _first(rest: Sequence[str], program: Program | None) -> str:
    """The word that says what the program should do."""
    prelude = program.prelude if program else frozenset[str]()
    return next((word for word in rest if word not in prelude), "")


def _listed_first(
    argv: Sequence[str], program: Program | None, mode: ShellMode, listed: set[str]
) -> Iterator[Violation]:
    """The first word is listed. Judge by its rules or, if there are none, by the flags that are listed with it."""
    found = list(_arguments(argv, program or Program(), mode))
    if program is None or any(violation.rule == "subcommand" for violation in found):
        yield from _unlisted_flags(argv, listed)
    if program is not None and program.tasks:
        for word in filter(lambda word: word not in listed, operands(argv[1:])):
            yield Violation("not-allowed", f"Blocked command: '{argv[0]} {word}' is not on the list")
    yield from (violation for violation in found if violation.rule != "subcommand")


def _unlisted_flags(argv: Sequence[str], listed: set[str]) -> Iterator[Violation]:
    for word in argv[1:]:
        flag = word.partition("=")[0] if word.startswith("--") else word
        if word.startswith("-") and flag not in listed:
            yield Violation("flag", f"Blocked flag of {argv[0]}: '{flag}' is not on the list")


def _hints(name: str, mode: ShellMode, listed: AllowList | None) -> Mapping[str, Any]:
    if listed is not None:
        return {"form": _FORM, "allowed": listed.readable()}
    hints: dict[str, Any] = {"form": _FORM}
    if name not in PROGRAMS:
        hints["programs"] = sorted(known for known, rules in PROGRAMS.items() if mode == "sandbox" or not rules.writes)
        hints["author"] = "other programs run when the tool lists them: allowed={'program': ['first-word']}"
    return hints
