"""May this command line run? It must be one simple command of a known program, in a form known to be harmless.

An allowed command comes back as `argv`, to be run with `shell=False`. Nothing is looked up on this machine.

Without `allowed`, only programs from the tables run, with the options and operands that the tables name. A list of bad
programs or options would never be complete, and a refusal that names the setting costs less than an attack that nobody
foresaw. What a form does follows from the tables as well: `readonly` refuses what writes, uses the network or runs
other programs. `sandbox` allows writing in the working directory, git and package managers with their network. It
refuses what deletes, other programs of the network, and what runs the project's own code.
Package managers run what they install. Only the operating system can draw a boundary that holds.

With `allowed`, only what the author listed is run, and listed programs that are known keep to their forms:

    {"git": ["status", "log"]}      `git status …` and `git log …`, without --output, --ext-diff and the like
    {"ls": None} or {"ls"}          `ls` in any form that its table names
    {"kubectl": ["get", "-o"]}      a program we do not know: `kubectl get …` with the flag -o and no other
    {"python3 --version"}           exactly this command line, and nothing is asked about its flags

Whoever lists a program means its network use and what it runs, too. `readonly` still refuses what is known to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from defserve.guard.shell import grammar, tar
from defserve.guard.shell.allow_list import Allowed, AllowList, allow_list
from defserve.guard.shell.places import Places
from defserve.guard.shell.specs import Table
from defserve.guard.shell.specs import grammar as grammar_of
from defserve.guard.shell.tables import CHECKS, KINDS, NEVER_OPEN, ON_REQUEST, PROGRAMS, UNKNOWN_DANGERS, VERSIONED
from defserve.guard.shell.words import words
from defserve.guard.verdict import Verdict, Violation, refused

ShellMode: TypeAlias = Literal["sandbox", "readonly"]

EFFECTS = frozenset({"write", "network-use", "run"})
REFUSED_EFFECTS: Mapping[ShellMode, frozenset[str]] = {
    "sandbox": frozenset({"run"}),
    "readonly": EFFECTS,
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_TIME = re.compile(r"\d{1,4}(?:\.\d{1,3})?[sm]?")
_NICENESS = re.compile(r"\d{1,2}")
# Programs that give another one less time or a lower priority: options without and with a value, and what comes first.
_LIMITS: Mapping[str, tuple[frozenset[str], Mapping[str, re.Pattern[str]], re.Pattern[str] | None]] = {
    "timeout": (frozenset({"--preserve-status"}), {"-k": _TIME}, _TIME),
    "nice": (frozenset(), {"-n": _NICENESS}, None),
    "time": (frozenset({"-p"}), {}, None),
}
_FORM = "one program and its arguments; no pipes, redirects, variables, globs or line breaks; text in single quotes"


def judge(
    command: str, *, mode: ShellMode = "sandbox", allowed: Allowed | None = None, root: str | None = None
) -> Verdict:
    """Whether `command` may run, and as which argv. Never raises.

    `root` is the absolute path of the directory that the command will run in. Without it, no absolute path is inside.
    """
    if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return refused([Violation("text", "Blocked command: it is not text")], {"form": _FORM})
    argv, found = words(command)
    if found:
        return refused(found, {"form": _FORM})
    places, listed = Places(root or ""), None if allowed is None else allow_list(allowed)
    refusing = REFUSED_EFFECTS[mode] if listed is None else REFUSED_EFFECTS[mode] & {"write"}
    judged = _by_rules(argv, places) if listed is None else _by_list(argv, places, listed)
    # Two words may break the same rule: it is named once.
    found = list(dict.fromkeys(one for one in judged if one.rule not in EFFECTS or one.rule in refusing))
    if found:
        return refused(found, _hints(argv, mode, listed, found))
    return Verdict(True, argv=tuple(argv))


def _by_rules(argv: Sequence[str], places: Places) -> Iterator[Violation]:
    """The author listed nothing: known programs only."""
    if name_problem := _name_problem(argv[0]):
        yield name_problem
    elif _tells_version(argv):
        return
    elif entry := PROGRAMS.get(argv[0]):
        yield from _arguments(argv, entry, places)
    elif judged := _checked(argv, places):
        yield from judged
    elif inner := _limited(argv):
        yield from _by_rules(inner, places)
    else:
        yield _not_run(argv[0])


def _checked(argv: Sequence[str], places: Places) -> Iterator[Violation] | None:
    """An interpreter that checks a file, or runs a module of its own: None if it does not."""
    if tuple(argv[1:3]) == ("-m", "pip") and argv[0] in ("python", "python3"):
        return grammar.violations(PROGRAMS["pip"], argv[3:], "pip", places)
    for size in (3, 2):
        if rules := CHECKS.get(tuple(argv[:size])):
            return grammar.violations(rules, argv[size:], " ".join(argv[:size]), places)
    return None


def _limited(argv: Sequence[str]) -> Sequence[str]:
    """The command that gets less time or a lower priority (`timeout 5 ls`), or nothing: it is judged as if alone."""
    if argv[0] not in _LIMITS:
        return ()
    (flags, valued, first), rest = _LIMITS[argv[0]], list(argv[1:])
    while rest and (rest[0] in flags or (rest[0] in valued and len(rest) > 1 and valued[rest[0]].fullmatch(rest[1]))):
        del rest[: 1 + (rest[0] in valued)]
    if first is not None and not (rest and first.fullmatch(rest.pop(0))):
        return ()
    return rest if rest and rest[0][:1] != "-" else ()


def _arguments(argv: Sequence[str], entry: str | Table, places: Places) -> Iterator[Violation]:
    if entry is PROGRAMS["tar"]:
        return tar.violations(argv[1:], places)
    return grammar.violations(entry, argv[1:], argv[0], places)


def _tells_version(argv: Sequence[str]) -> bool:
    """Whether a program is only asked for its version or usage: whatever else it does, it does not do now."""
    entry = PROGRAMS.get(argv[0])
    if isinstance(entry, str) and len(argv) == 2 and argv[1] in ("--version", "--help"):
        return argv[1] in grammar_of(entry).options and "plain" not in grammar_of(entry).style
    return " ".join(argv[1:]) in VERSIONED.get(_plain(argv[0]), ()) and not any(" " in word for word in argv)


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


def _by_list(argv: Sequence[str], places: Places, listed: AllowList) -> Iterator[Violation]:
    """The author listed what may run."""
    name, rest = argv[0], argv[1:]
    if not listed.names(name):
        yield _name_problem(name) or Violation("not-allowed", f"Blocked program: '{name}' is not on the list")
        return
    entry = PROGRAMS.get(_plain(name)) or ON_REQUEST.get(_plain(name))
    first = _first(rest, entry)
    if tuple(argv) in listed.lines:
        # The author vouches for the whole line, but readonly is a promise to the caller.
        yield from (found for found in _arguments(argv, entry, places) if found.rule == "write") if entry else ()
    elif (kind := KINDS.get(_plain(name))) in NEVER_OPEN:
        yield Violation(kind, f"Blocked program: '{name}' can run any program; only whole lines of it can be allowed")
    elif name not in listed.open and first not in listed.firsts.get(name, ()):
        yield Violation("not-allowed", f"Blocked command: '{f'{name} {first}'.strip()}' is not on the list")
    elif entry is None or _tells_version(argv):
        yield from _unknown(argv, listed)
    else:
        yield from _known(argv, entry, places, listed)


def _first(rest: Sequence[str], entry: str | Table | None) -> str:
    """The word that says what the program should do: behind options that leave its meaning alone (`git --no-pager`)."""
    before = entry.get("", "") if entry and not isinstance(entry, str) else ""
    options = grammar_of(before if isinstance(before, str) else "", True).options
    return next((word for word in rest if word not in options or options[word].kinds), "")


def _unknown(argv: Sequence[str], listed: AllowList) -> Iterator[Violation]:
    """A program without rules: with any arguments except known dangers, or with the listed flags only."""
    if argv[0] not in listed.open:
        yield from _unlisted_flags(argv, listed.firsts.get(argv[0], set()))
        return
    for flag in (word.partition("=")[0] for word in argv[1:] if word.startswith("--") and len(word) > 2):
        if any(danger.startswith(flag) for danger in UNKNOWN_DANGERS):
            yield Violation("flag", f"Blocked flag of {argv[0]}: '{flag}'")


def _known(argv: Sequence[str], entry: str | Table, places: Places, listed: AllowList) -> Iterator[Violation]:
    """A program with rules. A sub-command that has none is the author's word: with the listed flags only."""
    found, firsts = list(_arguments(argv, entry, places)), listed.firsts.get(argv[0], set[str]())
    if argv[0] not in listed.open:
        if any(one.rule == "subcommand" for one in found):
            yield from _unlisted_flags(argv, firsts)
            found = [one for one in found if one.rule != "subcommand"]
        if isinstance(entry, str) and "tasks" in grammar_of(entry).style:
            for word in (word for word in argv[1:] if not word.startswith("-") and word not in firsts):
                yield Violation("not-allowed", f"Blocked command: '{argv[0]} {word}' is not on the list")
    yield from found


def _unlisted_flags(argv: Sequence[str], listed: set[str]) -> Iterator[Violation]:
    for word in argv[1:]:
        flag = word.partition("=")[0] if word.startswith("--") else word
        if word.startswith("-") and flag not in listed:
            yield Violation("flag", f"Blocked flag of {argv[0]}: '{flag}' is not on the list")


def _hints(
    argv: Sequence[str], mode: ShellMode, listed: AllowList | None, found: Sequence[Violation]
) -> Mapping[str, Any]:
    name = argv[0]
    if listed is not None:
        return {"form": _FORM, "allowed": listed.readable()}
    hints: dict[str, Any] = {"form": _FORM}
    if name not in PROGRAMS:
        hints["programs"] = sorted(known for known, entry in PROGRAMS.items() if mode == "sandbox" or _looks(entry))
        hints["author"] = "other programs run when the tool lists them: allowed={'program': ['first-word']}"
    elif any(one.rule == "run" for one in found):
        hints["author"] = "what runs the project's own code runs when the tool lists it: allowed={'npm': ['test']}"
    return hints


def _looks(entry: str | Table) -> bool:
    """Whether a program has a form without effects."""
    return not (isinstance(entry, str) and entry.lstrip().startswith("!"))
