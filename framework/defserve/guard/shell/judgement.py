"""May this command line run? It must be one simple command of a known program, in a form known to be harmless.

An allowed command comes back as `argv`, to be run with `shell=False`. Only with a `root` is anything looked up on this
machine: links that lead out of it, and what its repository makes git run or read.

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

Whoever lists a program means its network use and what it runs, too. `readonly` still refuses what is known to write,
and what is checked about files, links and repositories is checked all the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from defserve.base.hidden_characters import iter_hidden_character_notes
from defserve.errors import find_nearest_names
from defserve.guard.shell import grammar
from defserve.guard.shell.grammar import ProgramSpecTable
from defserve.guard.shell.grammar import parse_program_spec as grammar_of
from defserve.guard.shell.places import PathRules, find_escaping_link
from defserve.guard.shell.tables import (
    DANGEROUS_OPTIONS,
    OPT_IN_PROGRAM_TABLE,
    PROGRAM_TABLE,
    PROGRAMS_WITH_HELP,
    REFUSED_PROGRAM_KINDS,
    SYNTAX_CHECK_TABLE,
    TAR_TABLE,
    VERSION_ARGUMENTS,
    WHOLE_COMMAND_KINDS,
)
from defserve.guard.verdict import Verdict, Violation, make_refused_verdict

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
_REPOSITORY_NOTE = (
    "git was refused because its repository names a program that it would run, or leads out of the root; if you trust"
    " whoever can write to the repository: Shell(trust_repository=True)"
)
_FORM = "one program and its arguments; no pipes, redirects, variables, globs or line breaks; text in single quotes"


def judge(
    command: str,
    *,
    mode: ShellMode = "sandbox",
    allowed: Allowed | None = None,
    root: str | None = None,
    only_root: bool = False,
    trust_repository: bool = False,
) -> Verdict:
    """Whether `command` may run, and as which argv. Never raises.

    `root` is the absolute path of the directory that the command will run in. Without it, no absolute path is inside,
    and nothing is looked at. `only_root`: no path outside may be named, not even those that everyone may read.
    `trust_repository`: git may run and read what the repository in `root` names.
    """
    if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return make_refused_verdict([Violation("text", "Blocked command: it is not text")], {"form": _FORM})
    argv, found = split_words(command)
    if found:
        return make_refused_verdict(found, {"form": _FORM})
    places, listed = PathRules(root or "", only_root), None if allowed is None else parse_allow_list(allowed)
    refusing = REFUSED_EFFECTS[mode] if listed is None else REFUSED_EFFECTS[mode] & {"write"}
    judged = _by_rules(argv, places) if listed is None else _by_list(argv, places, listed)
    # Two words may break the same rule: it is named once.
    named = dict.fromkeys(one for one in judged if one.rule not in EFFECTS or one.rule in refusing)
    found = list(named)[: grammar.MAX_PROBLEMS]
    if found:
        return make_refused_verdict(found, _hints(argv, mode, listed, found), _author_note(argv, listed, found))
    # A refusal is false, as a verdict.
    refusal = _look_around(argv, root, only_root, trust_repository)
    return Verdict(True, argv=tuple(argv)) if refusal is None else refusal


def _look_around(argv: Sequence[str], root: str | None, only_root: bool, trust_repository: bool) -> Verdict | None:
    """What is wrong with a judged command in the directory as it is, or None."""
    inner = argv
    while unwrapped := unwrap_limiter(inner):
        inner = unwrapped
    if root and (found := find_escaping_link(inner, root, only_root)):
        return make_refused_verdict([found])
    if root and not trust_repository and _plain(inner[0]) == "git" and not _tells_version(inner):
        from defserve.guard.shell.repositories import find_repository_problem

        if found := find_repository_problem(inner, root):
            return make_refused_verdict([found], author_note=_REPOSITORY_NOTE)
    if root and inner[0] == "sqlite3" and not _tells_version(inner):
        from defserve.guard.shell.repositories import find_database_problem

        if found := find_database_problem(inner, root):
            return make_refused_verdict([found])
    if root and inner[0] in ("python", "python3") and inner[1:2] == ["-m"]:
        from defserve.guard.shell.repositories import find_module_problem

        if found := find_module_problem(inner, root):
            return make_refused_verdict([found])
    if root and inner[0] == "ruff" and not _tells_version(inner):
        from defserve.guard.shell.repositories import find_ruff_problem

        if found := find_ruff_problem(inner, root):
            return make_refused_verdict([found])
    if root and inner[0] == "yamllint" and not _tells_version(inner):
        from defserve.guard.shell.repositories import find_yamllint_problem

        if found := find_yamllint_problem(inner, root):
            return make_refused_verdict([found])
    return None


def _by_rules(argv: Sequence[str], places: PathRules) -> Iterator[Violation]:
    """The author listed nothing: known programs only."""
    if name_problem := _name_problem(argv[0]):
        yield name_problem
    elif _tells_version(argv):
        return
    elif entry := PROGRAM_TABLE.get(argv[0]):
        yield from _arguments(argv, entry, places)
    elif judged := _judge_check_command(argv, places):
        yield from judged
    elif inner := unwrap_limiter(argv):
        yield from _by_rules(inner, places)
    else:
        yield _not_run(argv[0])


def _judge_check_command(argv: Sequence[str], places: PathRules) -> Iterator[Violation] | None:
    """An interpreter that checks a file, or runs a module of its own: None if it does not."""
    if tuple(argv[1:3]) == ("-m", "pip") and argv[0] in ("python", "python3"):
        return grammar.find_violations(PROGRAM_TABLE["pip"], argv[3:], "pip", places)
    for size in (3, 2):
        if rules := SYNTAX_CHECK_TABLE.get(tuple(argv[:size])):
            return grammar.find_violations(rules, argv[size:], " ".join(argv[:size]), places)
    return None


def unwrap_limiter(argv: Sequence[str]) -> Sequence[str]:
    """The command that gets less time or a lower priority (`timeout 5 ls`), or nothing: it is judged as if alone."""
    if argv[0] not in _LIMITS:
        return ()
    (flags, valued, first), rest = _LIMITS[argv[0]], list(argv[1:])
    while rest and (rest[0] in flags or (rest[0] in valued and len(rest) > 1 and valued[rest[0]].fullmatch(rest[1]))):
        del rest[: 1 + (rest[0] in valued)]
    if first is not None and not (rest and first.fullmatch(rest.pop(0))):
        return ()
    return rest if rest and rest[0][:1] != "-" else ()


def _arguments(argv: Sequence[str], entry: str | ProgramSpecTable, places: PathRules) -> Iterator[Violation]:
    if entry is PROGRAM_TABLE["tar"]:
        return find_tar_violations(argv[1:], places)
    return grammar.find_violations(entry, argv[1:], argv[0], places)


def _tells_version(argv: Sequence[str]) -> bool:
    """Whether a program is only asked for its version or usage: whatever else it does, it does not do now."""
    entry = PROGRAM_TABLE.get(argv[0])
    if isinstance(entry, str) and len(argv) == 2 and argv[1] in ("--version", "--help"):
        return argv[1] in grammar_of(entry).options and "plain" not in grammar_of(entry).style
    if argv[0] == "git" and len(argv) == 3 and argv[2] == "-h" and not isinstance(entry, str) and entry is not None:
        # Alone, it is the usage of every sub-command. An alias would be run.
        return argv[1] != "" and argv[1] in " ".join(entry).split()
    if argv[-1] == "--help" and argv[0] in PROGRAMS_WITH_HELP:
        return _is_subcommand(entry, argv[1:-1])
    return " ".join(argv[1:]) in VERSION_ARGUMENTS.get(_plain(argv[0]), ()) and not any(" " in word for word in argv)


def _is_subcommand(entry: str | ProgramSpecTable | None, words: Sequence[str]) -> bool:
    """Whether the table of a program knows a sub-command by these words: `pip install`, `uv pip list`."""
    for word in words:
        if entry is None or isinstance(entry, str) or word == "":
            return False
        entry = entry.get(word)
    return entry is not None


def _name_problem(name: str) -> Violation | None:
    if "/" in name:
        return Violation("path", f"Blocked program: '{name}' is named by a path")
    if "=" in name:
        return Violation("assignment", f"Blocked assignment: '{name}'")
    if not _PLAIN_NAME.fullmatch(name) and name not in REFUSED_PROGRAM_KINDS and name not in PROGRAM_TABLE:
        return Violation("program-name", f"Blocked program: {name!r} is not a plain name")
    return None


def _plain(name: str) -> str:
    """The name by which rules are looked up: `/usr/bin/python3.12` is `python`."""
    base = name.rpartition("/")[2]
    return base if base in REFUSED_PROGRAM_KINDS or base in PROGRAM_TABLE else re.sub(r"[\d.-]+$", "", base)


def _not_run(name: str) -> Violation:
    kind = (
        REFUSED_PROGRAM_KINDS.get(_plain(name))
        or REFUSED_PROGRAM_KINDS.get(name.partition(".")[0])
        or "unknown-program"
    )
    return Violation(kind, f"Blocked program: '{name}'")


def _by_list(argv: Sequence[str], places: PathRules, listed: AllowList) -> Iterator[Violation]:
    """The author listed what may run."""
    name, rest = argv[0], argv[1:]
    if not listed.has_program(name):
        yield _name_problem(name) or Violation("not-allowed", f"Blocked program: '{name}' is not on the list")
        return
    entry = PROGRAM_TABLE.get(_plain(name)) or OPT_IN_PROGRAM_TABLE.get(_plain(name))
    first = _first(rest, entry)
    if tuple(argv) in listed.lines:
        # The author vouches for the whole line, but readonly is a promise to the caller.
        yield from (found for found in _arguments(argv, entry, places) if found.rule == "write") if entry else ()
    elif (kind := REFUSED_PROGRAM_KINDS.get(_plain(name))) in WHOLE_COMMAND_KINDS:
        yield Violation(kind, f"Blocked program: '{name}' can run any program; only whole lines of it can be allowed")
    elif name not in listed.open and first not in listed.firsts.get(name, ()):
        yield Violation("not-allowed", f"Blocked command: '{f'{name} {first}'.strip()}' is not on the list")
    elif entry is None or _tells_version(argv):
        yield from _unknown(argv, listed)
    else:
        yield from _judge_known_program(argv, entry, places, listed)


def _first(rest: Sequence[str], entry: str | ProgramSpecTable | None) -> str:
    """The word that says what the program should do: behind options that leave its meaning alone (`git --no-pager`)."""
    before = entry.get("", "") if entry and not isinstance(entry, str) else ""
    options = grammar_of(before if isinstance(before, str) else "", True).options
    return next((word for word in rest if word not in options or options[word].kinds), "")


def _unknown(argv: Sequence[str], listed: AllowList) -> Iterator[Violation]:
    """A program without rules: with any arguments except known dangers, or with the listed flags only."""
    if argv[0] not in listed.open:
        yield from _find_unlisted_flags(argv, listed.firsts.get(argv[0], set()))
        return
    for flag in (word.partition("=")[0] for word in argv[1:] if word.startswith("--") and len(word) > 2):
        if any(danger.startswith(flag) for danger in DANGEROUS_OPTIONS):
            yield Violation("flag", f"Blocked flag of {argv[0]}: '{flag}'")


def _judge_known_program(
    argv: Sequence[str], entry: str | ProgramSpecTable, places: PathRules, listed: AllowList
) -> Iterator[Violation]:
    """A program with rules. A sub-command that has none is the author's word: with the listed flags only."""
    found, firsts = list(_arguments(argv, entry, places)), listed.firsts.get(argv[0], set[str]())
    if argv[0] not in listed.open:
        if any(one.rule == "subcommand" for one in found):
            yield from _find_unlisted_flags(argv, firsts)
            found = [one for one in found if one.rule != "subcommand"]
        if isinstance(entry, str) and "tasks" in grammar_of(entry).style:
            for word in (word for word in argv[1:] if not word.startswith("-") and word not in firsts):
                yield Violation("not-allowed", f"Blocked command: '{argv[0]} {word}' is not on the list")
    yield from found


def _find_unlisted_flags(argv: Sequence[str], listed: set[str]) -> Iterator[Violation]:
    for word in argv[1:]:
        flag = word.partition("=")[0] if word.startswith("--") else word
        if word.startswith("-") and flag not in listed:
            yield Violation("flag", f"Blocked flag of {argv[0]}: '{flag}' is not on the list")


def _hints(
    argv: Sequence[str], mode: ShellMode, listed: AllowList | None, found: Sequence[Violation]
) -> Mapping[str, Any]:
    if listed is not None:
        # Whatever is on a list may be what the caller wants, whether or not it looks alike.
        is_missing = any(one.rule in ("not-allowed", "path") for one in found)
        asked = " ".join((argv[0].rpartition("/")[2], *argv[1:2]))
        nearest = find_nearest_names(asked, listed.lines_to_try(), min_likeness=0) if is_missing else []
        return {"allowed": listed.format_as_hint(), "nearest": nearest}
    if argv[0] in PROGRAM_TABLE:
        return {}
    programs = sorted(known for known, entry in PROGRAM_TABLE.items() if mode == "sandbox" or _looks(entry))
    # A program that is refused by its name was meant: nothing that looks alike would do.
    asked = argv[0].rpartition("/")[2] if found[0].rule in ("unknown-program", "path") else ""
    return {"programs": programs, "nearest": find_nearest_names(asked, programs)}


def _author_note(argv: Sequence[str], listed: AllowList | None, found: Sequence[Violation]) -> str:
    if listed is None and argv[0] not in PROGRAM_TABLE:
        return (
            "a command was refused because its program is not known to be harmless; other programs run when the tool"
            " lists them: Shell(allowed={'program': ['first-word']})"
        )
    if listed is None and any(one.rule == "run" for one in found):
        return (
            "a command was refused because it runs the project's own code; it runs when the tool lists it:"
            " Shell(allowed={'npm': ['test']})"
        )
    return ""


def _looks(entry: str | ProgramSpecTable) -> bool:
    """Whether a program has a form without effects."""
    return not (isinstance(entry, str) and entry.lstrip().startswith("!"))


# -- A command line becomes words only if a shell and `shlex` cannot disagree about them.
#
# Anything that a shell would expand, split on or act on outside quotes is refused. So the rest means the same to the
# judge, to the reader and to the operating system. One exception: a glob that a program takes as a pattern.


MAX_BYTES = 4096

# The end is optional, so that text full of quotes is read once: a quote without it is refused.
_QUOTED = re.compile(r"""'[^']*('?)|"(?:[^"\\]|\\.)*("?)""")

# A glob that a program gets as it is: there is no shell, and hardly a file of such a name (`--include=*.py`).
# After these options, everybody means the pattern.
_PATTERN = re.compile(
    r"(?<!\S)--?[A-Za-z][\w-]*=[^\s;&|<>(){}$`~#\\'\"]+"
    r"|(?<=\s)(?:-i?name|-i?path|-i?wholename|-g|--glob|--iglob|--include|--exclude|--exclude-dir)\s+[^\s;&|<>(){}$`~#\\'\"]+"
)

# The program `[`, which ends with a bracket of its own.
_BRACKETS = re.compile(r"\A\s*+\[\s(.*)\s\]\s*\Z", re.DOTALL)

# What is harmless although it looks like an expansion: a git revision (`HEAD@{1}`, `v1^{commit}`), a bracket of find.
_REVISION = re.compile(r"(?<=[\w@/.-])(?:@|\^)\{[A-Za-z0-9_-]*\}|(?<!\S)@\{[A-Za-z0-9_-]+\}|(?<!\S)\\[()!](?!\S)")

_META: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("metacharacter", re.compile(r"[;&|<>()]"), "Blocked shell operator"),
    ("expansion", re.compile(r"[$`]"), "Blocked shell expansion"),
    ("escape", re.compile(r"\\"), "Blocked backslash outside quotes"),
    ("brace", re.compile(r"[{}]"), "Blocked brace expansion"),
    ("glob", re.compile(r"[*?\[\]]"), "Blocked glob outside quotes"),
    ("tilde", re.compile(r"(?:(?<=[\s=:,])|^)~"), "Blocked tilde expansion"),
    ("comment", re.compile(r"(?:(?<=\s)|^)#"), "Blocked comment"),
)


def split_words(command: str) -> tuple[list[str], list[Violation]]:
    """The words of one simple command, or why it is not one. Either list is empty."""
    if found := list(_unreadable(command)) or list(_expanding(command)):
        return [], found
    try:
        argv = shlex.split(command)
    except ValueError as problem:
        return [], [Violation("quotes", f"Blocked command: {problem}")]
    if not argv:
        return [], [Violation("empty", "Blocked command: there is nothing to run")]
    return argv, []


def _unreadable(command: str) -> Iterator[Violation]:
    """What cannot be shown to a person as it is."""
    if len(command) > MAX_BYTES or len(command.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        yield Violation("length", f"Blocked command: longer than {MAX_BYTES} bytes")
        return
    for index, what in iter_hidden_character_notes(command):
        yield Violation("hidden-text", f"Blocked {what} at position {index}")
        return


def _expanding(command: str) -> Iterator[Violation]:
    """What a shell would act on. Quoted text is cut out first; a placeholder keeps `'a'b` one word."""
    for quoted in _QUOTED.finditer(command):
        if not quoted[1] and not quoted[2]:
            yield Violation("quotes", "Blocked command: a quote is not closed")
        if quoted[0][0] == '"' and (active := re.search(r"[$`]", quoted[0])):
            yield Violation("expansion", f"Blocked shell expansion in double quotes: '{active[0]}'")
    bare = _REVISION.sub("_", _BRACKETS.sub(r"\1", _QUOTED.sub("_", command)))
    for rule, pattern, message in _META:
        if matched := pattern.search(_PATTERN.sub("_", bare) if rule == "glob" else bare):
            yield Violation(rule, f"{message}: '{matched[0]}'")


# -- The author's list of commands: whole lines, programs with their first words, programs with any arguments.


Allowed: TypeAlias = Mapping[str, Sequence[str] | None] | Collection[str]


@dataclass(frozen=True, slots=True)
class AllowList:
    """What was listed, ready to be asked."""

    lines: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    """Whole command lines."""
    firsts: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Program → the words that may follow it. Of a program without rules, also the flags it may have."""
    open: set[str] = field(default_factory=set[str])
    """Programs with any arguments that pass their rules."""

    def has_program(self, program: str) -> bool:
        return program in self.open or program in self.firsts or any(line[0] == program for line in self.lines)

    def lines_to_try(self) -> list[str]:
        """What a command may begin with, or be."""
        listed = [f"{name} {word}" for name, words in self.firsts.items() for word in words if word[:1] != "-"]
        return sorted({*listed, *self.open, *map(shlex.join, self.lines)})

    def format_as_hint(self) -> dict[str, list[str] | str]:
        """The list as a hint: what a caller may write."""
        shown: dict[str, list[str] | str] = {name: sorted(words) for name, words in self.firsts.items()}
        shown |= dict.fromkeys(self.open, "any arguments")
        return shown | {shlex.join(line): "exactly" for line in self.lines}


def parse_allow_list(allowed: Allowed) -> AllowList:
    """Read `{"git": ["status"], "ls": None, "python3 --version": None}` or `{"ls", "python3 --version"}`."""
    found = AllowList()
    for key, values in _pairs(allowed):
        program, *rest = _split(key) or [""]
        if rest:
            found.lines.add((program, *rest))
        elif not values:
            found.open.add(program)
        for value in values:
            _add(found, program, _split(value))
    return found


def _add(found: AllowList, program: str, line: list[str]) -> None:
    if len(line) == 1:
        found.firsts.setdefault(program, set()).add(line[0])
    else:
        found.lines.add((program, *line))


def _pairs(allowed: Allowed) -> list[tuple[str, Sequence[str]]]:
    if isinstance(allowed, str):
        return [(allowed, ())]
    if isinstance(allowed, Mapping):
        listed = cast("Mapping[str, Sequence[str] | None]", allowed)
        return [(name, [values] if isinstance(values, str) else values or ()) for name, values in listed.items()]
    return [(name, ()) for name in allowed]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


# -- tar: one option says what it does, and the others mean different things with each. The first word needs no dash.


_TAR_VALUED = "fC"


def find_tar_violations(words: Sequence[str], places: PathRules) -> Iterator[Violation]:
    """What the words after `tar` break."""
    words = _add_dashes(words)
    letters = {f"-{letter}" for word in words if word[:2] != "--" for letter in _cluster(word)}
    chosen = list(dict.fromkeys(str(TAR_TABLE[name]) for name in letters | set(words) if name in TAR_TABLE))
    if chosen == [str(TAR_TABLE["-x"])] and ("-O" in letters or "--to-stdout" in words):
        chosen = [str(TAR_TABLE["print"])]
    if len(chosen) == 1:
        yield from grammar.find_violations(chosen[0], words, "tar", places)
    elif list(words) not in (["--version"], ["--help"]):
        yield Violation("flag", "Blocked command: tar needs one operation, such as -t, -x or -c")


def _add_dashes(words: Sequence[str]) -> list[str]:
    """`tar xzf a.tgz` as `tar -x -z -f a.tgz`: the values follow the bundle, in the order of its letters."""
    if not words or words[0].startswith("-"):
        return list(words)
    rest, found = list(words[1:]), list[str]()
    for letter in words[0]:
        found.append(f"-{letter}")
        if letter in _TAR_VALUED and rest:
            found.append(rest.pop(0))
    return found + rest


def _cluster(word: str) -> str:
    """The letters of `-xzf`. What sticks to f or C is its value."""
    end = min((at + 1 for at, letter in enumerate(word) if letter in _TAR_VALUED), default=len(word))
    return word[1:end] if word[:1] == "-" else ""
