"""Programs that take a program: `sed`, `awk`, `jq`, `find`. Their small languages are judged, not only their flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from defserve.guard.shell.places import written
from defserve.guard.shell.program_rules import ShellMode, is_flag
from defserve.guard.verdict import Violation

_ADDRESS = re.compile(r"\s*(?:\d+(?:~\d+)?|\$|/(?:[^/\\\[]|\\.|\[[^\]/]*\])*/[IM]*)")
_END = re.compile(r"\s*(?:;|$|(?=\}))")
_LABEL = re.compile(r"\s*\w*\s*(?:;|$)")
_SIMPLE = "dDgGhHnNpPxzl="
_TEXT = "aic"


def _sed_problem(script: str) -> str | None:
    """Why a sed script is not known to be harmless. Only what this grammar knows passes."""
    at = 0
    while at < len(script):
        if script[at] in " \t;}":
            at += 1
            continue
        if found := _ADDRESS.match(script, at):
            at = found.end()
            if second := re.compile(r"\s*,\s*").match(script, at):
                last = re.compile(r"[+~]\d+").match(script, second.end()) or _ADDRESS.match(script, second.end())
                if not last:
                    return "an address it does not know"
                at = last.end()
        at += len(script[at:]) - len(script[at:].lstrip(" \t!"))
        if at == len(script):
            return "an address without a command"
        command, at = script[at], at + 1
        if command == "{":
            continue
        if command in _TEXT:
            return None  # the rest of the line is text
        end = _substitution(script, at, command) if command in "sy" else _plain(script, at, command)
        if end is None:
            return f"the command '{command}'"
        at = end
    return None


def _plain(script: str, at: int, command: str) -> int | None:
    pattern = _END if command in _SIMPLE else _LABEL if command in ":btT" else None
    if command in "qQ":
        pattern = re.compile(r"\s*\d*" + _END.pattern)
    found = pattern.match(script, at) if pattern else None
    return found.end() if found else None


def _substitution(script: str, at: int, command: str) -> int | None:
    """The index after `s/…/…/flags`, or None if a flag writes (`w`), runs (`e`) or is unknown."""
    if at >= len(script) or (mark := script[at]).isalnum() or mark in "\\ \n;":
        return None
    part = rf"((?:[^\\{re.escape(mark)}]|\\.)*){re.escape(mark)}"
    found = re.compile(re.escape(mark) + part + part).match(script, at)
    # Some seds let `[/]` hide the mark, others do not. Where they differ, the script is refused.
    if not found or re.search(r"\[[^\]]*$", found[1]):
        return None
    flags = re.compile((r"[gpiImM0-9]*" if command == "s" else "") + _END.pattern).match(script, found.end())
    return flags.end() if flags else None


def sed(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """The script is the first operand, or the values of `-e`; files are written only with `-i`."""
    scripts: list[str] = []
    rest: list[str] = []
    in_place, pending = False, False
    for word in words:
        if pending:
            scripts.append(word)
            pending = False
        elif word in ("-e", "--expression"):
            pending = True
        elif word.startswith("--expression="):
            scripts.append(word.partition("=")[2])
        elif is_flag(word):
            in_place = in_place or word.startswith("--in-place") or (word[1] != "-" and "i" in word)
            yield from _sed_flag(word)
        else:
            rest.append(word)
    if not scripts:
        scripts, rest = rest[:1], rest[1:]
    for script in scripts or [""]:
        if problem := _sed_problem(script) if script else "there is none":
            yield Violation("script", f"Blocked sed script: {problem}")
    if in_place:
        if mode == "readonly":
            yield Violation("write", "Blocked write flag of sed: '-i'")
        yield from written(rest, mode)


def _sed_flag(word: str) -> Iterator[Violation]:
    """Letters in a cluster may not take values, so that no script hides in one (`-nes/a/b/e`)."""
    known = r"-[nErsuz]*(?:i(?:\.[\w-]+)?)?|--(?:quiet|silent|regexp-extended|separate|posix|sandbox|null-data|debug)"
    if not re.fullmatch(known + r"|--in-place(?:=\.[\w-]+)?|--unbuffered|--version|--help|--", word):
        yield Violation("flag", f"Blocked flag of sed: '{word}'")


_AWK_ACTS = re.compile(r"\b(?:system|getline|close|ENVIRON|PROCINFO|SYMTAB|FUNCTAB|ARGV)\b|@|(?<!\|)\|(?!\|)|\|&|/inet")
_AWK_TOKEN = re.compile(
    r"""
    (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<slash>/)
    | [\w.]+ | \+\+ | -- | \s+ | [^"\#\\]
    """,
    re.VERBOSE | re.ASCII,
)
# A slash inside brackets ends the expression for one awk and not for another, so there it is not known.
_AWK_EXPRESSION = re.compile(r"/(?:[^/\\\[\]\n]|\\[^\n]|\[(?!\^?\])(?:\[:\w+:\]|\\[^\]/\n]|[^\]\[/\\\n])+\])*/")
_AWK_BEFORE_EXPRESSION = frozenset("print printf return in else do case".split())
_AWK_BEFORE_EITHER = frozenset(") length ++ --".split())


def _awk_code(program: str) -> str | None:
    """The program without its strings and regular expressions, or None if they cannot be found for sure."""
    code, at, before = "", 0, ""
    while at < len(program):
        if (found := _AWK_TOKEN.match(program, at)) is None:
            return None
        token = found[0]
        if found["slash"]:
            if before in _AWK_BEFORE_EITHER:
                return None
            divides = bool(before) and (before[-1] in '"]' or re.fullmatch(r"[\w.]+", before, re.ASCII) is not None)
            if not divides or before in _AWK_BEFORE_EXPRESSION:
                if (found := _AWK_EXPRESSION.match(program, at)) is None:
                    return None
                token = '""'
        elif found["text"]:
            token = '""'
        code, at = code + token, found.end()
        before = token if token.strip() else before
    return code


def _awk_writes(code: str) -> bool:
    """Whether a `>` may redirect: inside an action, and not inside parentheses, where it compares."""
    braces = brackets = 0
    for mark in code.replace(">=", ""):
        braces += (mark == "{") - (mark == "}")
        brackets += (mark == "(") - (mark == ")")
        if mark == ">" and braces and not brackets:
            return True
    return False


def awk(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """The program may compute and print: no commands, pipes, redirects, includes or environment."""
    rest = list(words)
    while rest and is_flag(rest[0]):
        word = rest.pop(0)
        if word in ("-F", "-v") and rest:
            word += rest.pop(0)
        if not re.fullmatch(r"-F.+|-v\w+=.*|--posix|--version|--", word, re.DOTALL):
            yield Violation("flag", f"Blocked flag of awk: '{word}'")
    program = rest[0] if rest else ""
    code = _awk_code(program)
    if found := _AWK_ACTS.search(program if code is None else code):
        yield Violation("script", f"Blocked awk program: '{found[0]}'")
    # Before the first brace there is only a pattern, and there `>` compares.
    elif _awk_writes(code) if code is not None else ">" in program.partition("{")[2].replace(">=", ""):
        yield Violation("script", "Blocked awk program: '>' may write a file; compare in parentheses, or use >=")
    for word in filter(is_flag, rest[1:]):
        yield Violation("flag", f"Blocked flag of awk: '{word}' after the program")


def jq(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """A filter may not read the environment or other filters. `.env` is a field."""
    for word in words:
        if word.endswith((".json", ".jsonl", ".ndjson")):
            continue
        if found := re.search(r"(?<![.\w\"])env\b|\$ENV\b|\$__prog|\bimport\b|\binclude\b|\binput_filename\b", word):
            yield Violation("script", f"Blocked jq filter: '{found[0]}'")


_FIND = frozenset(
    """
    -H -L -P -O1 -O2 -O3 -a -amin -and -anewer -atime -cmin -cnewer -ctime -d -daystart -depth
    -empty -executable -false -follow -fstype -gid -group -help -ilname -iname -inum -ipath -iregex
    -iwholename -links -lname -ls -maxdepth -mindepth -mmin -mount -mtime -name -newer -newerat
    -newerct -newermt -newermm -nogroup -noleaf -not -nouser -nowarn -o -or -path -perm -print
    -print0 -printf -prune -quit -readable -regex -regextype -samefile -size -true -type -uid -used
    -user -version --version --help -warn -wholename -writable -xdev -xtype
    """.split()
)


def find(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """Tests and prints only: no action that runs, deletes or writes, known or yet to come."""
    for word in filter(is_flag, words):
        # `-mtime -7`, `-perm -u+x`: values that start with a dash.
        if word not in _FIND and not re.fullmatch(r"-\d+[a-zA-Z]?|-[ugoa]+[+=][rwxst]+", word):
            yield Violation("flag", f"Blocked find action: '{word}'")
