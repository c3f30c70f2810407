"""Checks for programs whose operands need more than a table: archives, signals and a few others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from defserve.guard.shell.places import written
from defserve.guard.shell.program_rules import ShellMode, is_flag, operands
from defserve.guard.verdict import Violation

_TAR_LETTERS = frozenset("xtcrudzjJZavfpCkOhm")
_TAR_VALUED = "fC"
_TAR_LONG = frozenset(
    "--extract --get --list --create --append --update --diff --compare --gzip --bzip2 --xz --zstd --verbose --file"
    " --directory --keep-old-files --to-stdout --exclude --exclude-vcs --strip-components --no-same-owner --wildcards"
    " --auto-compress --dereference --one-top-level --no-same-permissions --totals --version --help".split()
)
_TAR_WRITES = frozenset("-x -c -r -u --extract --get --create --append --update".split())


def tar(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """Known flags only, written in full; the first word may be a bundle without a dash; no archive on another host."""
    flags: set[str] = set()
    for index, word in enumerate(words):
        if word.startswith("--"):
            flags.add(word.partition("=")[0])
        elif is_flag(word) or index == 0:
            letters = word.lstrip("-")
            # `-xfa.tar`: what sticks to f or C is its value. A bundle without a dash has no such values.
            cut = re.match(rf"[^{_TAR_VALUED}]*[{_TAR_VALUED}]", letters) if is_flag(word) else None
            flags |= {f"-{letter}" for letter in (cut[0] if cut else letters)}
        if ":" in word and not word.startswith(("--exclude=", "/", "./")):
            yield Violation("remote", f"Blocked archive on another host: '{word}'")
    for flag in sorted(flags - _TAR_LONG - {f"-{letter}" for letter in _TAR_LETTERS}):
        yield Violation("flag", f"Blocked flag of tar: '{flag}'")
    if mode == "readonly" and (
        flags & _TAR_WRITES or not flags & {"-t", "--list", "-d", "--diff", "--version", "--help"}
    ):
        yield Violation("write", "Blocked write: tar may only list ('tar tf')")
    if flags & _TAR_WRITES:
        # Extracting writes wherever it is told; creating writes the archive, and reads its other operands.
        extracting = flags & {"-x", "--extract", "--get"}
        yield from written(words[1:] if extracting else list(_archive(words)), mode)


def _archive(words: Sequence[str]) -> Iterator[str]:
    """What may be the archive's name: a flag's own value, or the word after a flag or the bundle."""
    for before, word in zip(["-", *words], words, strict=False):
        if is_flag(word) or ((before == words[0] or is_flag(before)) and before != "-C"):
            yield word


def unzip(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    looks = bool(words) and re.fullmatch(r"-[ltvzq]+", words[0]) is not None and words[0].strip("-q") != ""
    if mode == "readonly" and not looks:
        yield Violation("write", "Blocked write: unzip may only list ('unzip -l')")
    yield from written(words, mode)


def kill(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """One signal, then processes by number: no groups, no 'all I may signal', no jobs."""
    if words in (["-l"], ["-L"]):
        return
    rest = list(words)
    if rest[:1] == ["-s"]:
        rest = rest[2:] if len(rest) > 1 and re.fullmatch(r"[A-Z0-9]+", rest[1]) else rest
    elif rest and re.fullmatch(r"-(?:[A-Z][A-Z0-9+]*|\d{1,2})", rest[0]) and len(rest) > 1:
        rest = rest[1:]
    for word in rest or [""]:
        if not re.fullmatch(r"[1-9]\d*", word):
            yield Violation("process", f"Blocked process: '{word}' is not one process")
    if mode == "readonly":
        yield Violation("write", "Blocked effect: 'kill'")


def modes(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """chmod may set no set-user-id and no set-group-id bit: they let others run a file with its owner's rights."""
    for word in words:
        if re.fullmatch(r"0*[2-7][0-7]{3}", word) or re.search(r"(?:^|[,=])[ugoa]*[+=][rwxXt]*s", word):
            yield Violation("mode", f"Blocked mode: '{word}' lends its owner's rights")


def second_is_written(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """`uniq in out` and `xxd in out` write their second operand."""
    pairs = zip(["", *words], words, strict=False)
    second = [w for before, w in pairs if not is_flag(w) and not (re.fullmatch(r"-[a-z]", before) and w.isdigit())][1:]
    if second and mode == "readonly":
        yield Violation("write", f"Blocked write: '{second[0]}'")
    yield from written(second, mode)


def no_operands(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """`hostname x` sets it."""
    if rest := operands(words):
        yield Violation("write", f"Blocked write: '{rest[0]}'")


def processes(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """`ps e` shows other processes' environments; `ps -e` all processes. The word after a flag may be its value."""
    for before, word in zip(["", *words], words, strict=False):
        if re.fullmatch(r"[A-Za-z]*e[A-Za-z]*", word) and not re.search(r"^-.*[opuUgGtCqs]$|^--", before):
            yield Violation("secret", f"Blocked flag of ps: '{word}' shows environments")


def date(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """An operand that is no format sets the clock."""
    for before, word in zip(["", *words], words, strict=False):
        if not is_flag(word) and not word.startswith("+") and before not in ("-d", "--date", "-r", "--reference", "-f"):
            yield Violation("write", f"Blocked operand of date: '{word}'")


def local_only(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """No operand names another host."""
    for word in operands(words):
        if ":" in word:
            yield Violation("remote", f"Blocked remote: '{word}'")


def node_packages(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """`owner/name` is a repository on the network; `@scope/name` and `./name` are not."""
    for word in operands(words):
        if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(?:#.*)?", word):
            yield Violation("package", f"Blocked package source: '{word}'")


def packages(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """Packages come by name, from the machine's configured source, or from the working directory."""
    for word in words:
        if re.search(r"://|^(?:git\+|git@|file:|link:|github:|gitlab:|bitbucket:)|@(?:file|git|https?):", word):
            yield Violation("package", f"Blocked package source: '{word}'")
    yield from written(words, mode)
