"""git: which sub-commands look, which change, and which flags run a program or write outside the repository.

An unknown sub-command is refused, since an alias of the repository's own configuration may run anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from defserve.guard.shell.places import written
from defserve.guard.shell.program_rules import (
    Program,
    ProgramCheck,
    ShellMode,
    flag_violations,
    is_flag,
    operands,
    spelt,
    word_violations,
)
from defserve.guard.verdict import Violation

_RUNS = (
    "--exec",
    "--exec-path",
    "--upload-pack",
    "--receive-pack",
    "--ext-diff",
    "--textconv",
    "--filters",
    "--config",
    "--template",
)
_WRITES_FILES = ("--output", "--output-directory", "--open-files-in-pager", "--separate-git-dir")
_ALWAYS = _RUNS + _WRITES_FILES
_HARMLESS = frozenset({"--text", "--filter"})

# Before the sub-command. `-c`, `--exec-path`, `--git-dir` and the rest choose what git itself runs.
GLOBAL = frozenset("--no-pager -P --no-optional-locks --literal-pathspecs --no-replace-objects".split())

_LISTING = frozenset(
    "-a --all -r --remotes -v -l --list --show-current --contains --no-contains --merged --no-merged --sort --format"
    " --points-at --verbose --color --no-color --column --no-column --abbrev --no-abbrev -i --ignore-case -n -#".split()
)
_LISTING_OPERANDS = frozenset("-l --list --contains --no-contains --merged --no-merged --points-at".split())


def _listing(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """`branch` and `tag` with a name create it; with a listing flag they look."""
    flags = {flag for word in words for flag in spelt(word)}
    if mode == "readonly" and (flags - _LISTING or (operands(words) and not flags & _LISTING_OPERANDS)):
        yield Violation("write", "Blocked write: only listing branches and tags")


def _remote_names(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """A remote may name a helper (`ext::sh -c id`) or hide a flag for ssh (`ssh://-oProxyCommand=…`)."""
    for word in words:
        if re.search(r"::|//[^/]*@?-|@-", word):
            yield Violation("remote", f"Blocked remote: '{word}'")


def _refspecs(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    for word in operands(words):
        if word[:1] in ("+", ":"):
            yield Violation("delete", f"Blocked refspec: '{word}' overwrites or deletes")


def _whole_tree(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """Throwing away one file's changes is an edit; throwing away all of them is a deletion."""
    for word in operands(words):
        if re.fullmatch(r"[./]+|:[/!(].*|.*\*.*", word):
            yield Violation("delete", f"Blocked path: '{word}' throws away every change")


def _reflog(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    first = next(iter(operands(words)), "show")
    if first not in ("show", "exists", "list") and not first.startswith("HEAD"):
        yield Violation("action", f"Blocked git command: 'git reflog {first}'")


_CONFIG_READS = frozenset(
    "--get --get-all --get-regexp --list -l --name-only --show-origin --show-scope -z --null".split()
)
_CONFIG_SCOPES = frozenset("--global --local --system --worktree".split())
_CONFIG_SETS = frozenset({"user.name", "user.email"})


def _config(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """Most settings name a program to run, so only the author's name is set; any may be looked at."""
    flags = {word for word in words if is_flag(word)}
    rest = operands(words)
    if rest[:1] in (["get"], ["list"]):
        flags, rest = flags | {"--get"}, rest[1:]
    if extra := flags - _CONFIG_READS - _CONFIG_SCOPES:
        yield Violation("flag", f"Blocked flag of git config: '{min(extra)}'")
    reading = bool(flags & _CONFIG_READS) or len(rest) == 1
    if not reading and (len(rest) != 2 or rest[0] not in _CONFIG_SETS):
        yield Violation("setting", "Blocked git setting: only user.name and user.email are set")
    elif not reading and mode == "readonly":
        yield Violation("write", "Blocked write: 'git config'")


def _look(*danger: str, valued: str = "", checks: tuple[ProgramCheck, ...] = ()) -> Program:
    return Program(danger=_ALWAYS + danger, harmless=_HARMLESS, valued=valued, checks=checks)


def _change(*danger: str, valued: str = "", checks: tuple[ProgramCheck, ...] = ()) -> Program:
    return Program(danger=_ALWAYS + danger, harmless=_HARMLESS, valued=valued, writes=True, checks=checks)


def _actions(reads: set[str], acts: set[str] | None = None) -> Program:
    return Program(danger=_ALWAYS, reads=frozenset(reads), acts=frozenset(acts or ()), checks=(_remote_names,))


_READING = (
    "status log diff show shortlog blame ls-files ls-tree rev-parse rev-list describe cat-file diff-tree diff-index"
    " diff-files name-rev merge-base for-each-ref show-ref show-branch count-objects whatchanged range-diff cherry"
    " check-ignore check-attr version verify-pack"
)
_FORCE = ("--force", "-f")

# Not even when an author lists them: as first words these open everything.
_RUNNERS = frozenset("bisect filter-branch difftool mergetool hook shell daemon instaweb send-email credential".split())

SUBCOMMANDS: dict[str, Program] = {
    **{name: _look() for name in _READING.split()},
    "fsck": _look("--lost-found"),
    "grep": _look("-O", valued="efABCm"),
    "ls-remote": _look(checks=(_remote_names,)),
    "branch": _look("-D", "-M", "-C", *_FORCE, "--edit-description", checks=(_listing,)),
    "tag": _look("-d", "--delete", "-s", "-u", "-v", *_FORCE, valued="mF", checks=(_listing,)),
    "remote": _actions({"", "-v", "--verbose", "show", "get-url"}, {"add", "rename", "set-url", "update"}),
    "stash": _actions({"list", "show"}, {"", "push", "pop", "apply", "save", "branch", "-u"}),
    "reflog": _look(checks=(_reflog,)),
    "worktree": _actions({"list"}),
    "notes": _actions({"", "list", "show"}),
    "submodule": _actions({"", "status", "summary"}),
    "config": Program(checks=(_config,)),
    "add": _change("-i", "-p", "-e", "--interactive", "--patch", "--edit"),
    "commit": _change("--edit", "-e", "-p", "--patch", "--interactive", valued="mFCcSt"),
    "push": _change(
        *_FORCE,
        "--force-with-lease",
        "--mirror",
        "--delete",
        "-d",
        "--prune",
        valued="o",
        checks=(_remote_names, _refspecs),
    ),
    "pull": _change(*_FORCE, checks=(_remote_names,)),
    "fetch": _change(*_FORCE, "--update-head-ok", checks=(_remote_names,)),
    "clone": _change("-u", "-c", "--server-option", valued="obj", checks=(_remote_names, written)),
    "init": _change(valued="b", checks=(written,)),
    "checkout": _change(*_FORCE, "-B", "-p", "--patch", valued="b", checks=(_whole_tree,)),
    "switch": _change(*_FORCE, "-C", "--force-create", "--discard-changes", valued="c"),
    "restore": _change("-p", "--patch", valued="s", checks=(_whole_tree,)),
    "reset": _change("--hard", "--merge", "--keep", "-p", "--patch"),
    "merge": _change("-s", "--strategy", "-e", "--edit", valued="mFX"),
    "rebase": _change("-x", "-i", "--interactive", "-s", "--strategy", valued="X"),
    "cherry-pick": _change("-e", "--edit", "--strategy", valued="mX"),
    "revert": _change("-e", "--edit", "--strategy", valued="mX"),
    "mv": _change(*_FORCE, checks=(written,)),
    "apply": _change("--unsafe-paths", "--directory", "--build-fake-ancestor", valued="pC"),
}


def git(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """What a git command line, without `git`, breaks."""
    if list(words) in (["--version"], ["-v"]):
        return
    rest = list(words)
    while rest and is_flag(rest[0]):
        flag = rest.pop(0)
        if flag == "-C" and rest:
            rest.pop(0)
        elif flag not in GLOBAL:
            yield Violation("flag", f"Blocked flag of git: '{flag}' before the sub-command")
            return
    name = rest[0] if rest else ""
    if name in _RUNNERS:
        yield Violation("wrapper", f"Blocked git command: '{name}' can run any program")
        return
    if (sub := SUBCOMMANDS.get(name)) is None:
        yield Violation("subcommand", f"Blocked git command: '{name}'")
        return
    yield from flag_violations(rest[1:], sub, mode, f"git {name}")
    yield from word_violations(rest[1:], sub, mode, f"git {name}", rule="action")
