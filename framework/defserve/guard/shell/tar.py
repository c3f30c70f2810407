"""tar: one option says what it does, and the others mean different things with each. The first word needs no dash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from defserve.guard.shell import grammar
from defserve.guard.shell.places import Places
from defserve.guard.shell.tables import TAR
from defserve.guard.verdict import Violation

_VALUED = "fC"


def violations(words: Sequence[str], places: Places) -> Iterator[Violation]:
    """What the words after `tar` break."""
    words = _dashed(words)
    letters = {f"-{letter}" for word in words if word[:2] != "--" for letter in _cluster(word)}
    chosen = list(dict.fromkeys(str(TAR[name]) for name in letters | set(words) if name in TAR))
    if chosen == [str(TAR["-x"])] and ("-O" in letters or "--to-stdout" in words):
        chosen = [str(TAR["print"])]
    if len(chosen) == 1:
        yield from grammar.violations(chosen[0], words, "tar", places)
    elif list(words) not in (["--version"], ["--help"]):
        yield Violation("flag", "Blocked command: tar needs one of -t, -x, -c, -r, -u and -d")


def _dashed(words: Sequence[str]) -> list[str]:
    """`tar xzf a.tgz` as `tar -x -z -f a.tgz`: the values follow the bundle, in the order of its letters."""
    if not words or words[0].startswith("-"):
        return list(words)
    rest, found = list(words[1:]), list[str]()
    for letter in words[0]:
        found.append(f"-{letter}")
        if letter in _VALUED and rest:
            found.append(rest.pop(0))
    return found + rest


def _cluster(word: str) -> str:
    """The letters of `-xzf`. What sticks to f or C is its value."""
    end = min((at + 1 for at, letter in enumerate(word) if letter in _VALUED), default=len(word))
    return word[1:end] if word[:1] == "-" else ""
