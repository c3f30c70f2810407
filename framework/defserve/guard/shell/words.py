"""A command line becomes words only if a shell and `shlex` cannot disagree about them.

Anything that a shell would expand, split on or act on outside quotes is refused. So the rest means the same to the
judge, to the reader and to the operating system. One exception: a glob that a program takes as a pattern.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from defserve.guard.text import hidden
from defserve.guard.verdict import Violation

MAX_BYTES = 4096

# The end is optional, so that text full of quotes is read once: a quote without it is refused.
_QUOTED = re.compile(r"""'[^']*('?)|"(?:[^"\\]|\\.)*("?)""")

# A glob that a program gets as it is: there is no shell, and hardly a file of such a name (`--include=*.py`).
# After these options, everybody means the pattern.
_PATTERN = re.compile(
    r"(?<!\S)--?[A-Za-z][\w-]*=[^\s;&|<>(){}$`~#\\'\"]+"
    r"|(?<=\s)(?:-i?name|-i?path|-i?wholename|-g|--glob|--iglob|--include|--exclude|--exclude-dir)\s+[^\s;&|<>(){}$`~#\\'\"]+"
)

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


def words(command: str) -> tuple[list[str], list[Violation]]:
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
    for index, what in hidden(command):
        yield Violation("hidden-text", f"Blocked {what} at position {index}")
        return


def _expanding(command: str) -> Iterator[Violation]:
    """What a shell would act on. Quoted text is cut out first; a placeholder keeps `'a'b` one word."""
    for quoted in _QUOTED.finditer(command):
        if not quoted[1] and not quoted[2]:
            yield Violation("quotes", "Blocked command: a quote is not closed")
        if quoted[0][0] == '"' and (active := re.search(r"[$`]", quoted[0])):
            yield Violation("expansion", f"Blocked shell expansion in double quotes: '{active[0]}'")
    bare = _REVISION.sub("_", _QUOTED.sub("_", command))
    for rule, pattern, message in _META:
        if matched := pattern.search(_PATTERN.sub("_", bare) if rule == "glob" else bare):
            yield Violation(rule, f"{message}: '{matched[0]}'")
