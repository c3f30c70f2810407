"""What is known of one program, and how its flags are read: as GNU tools do, abbreviations and clusters included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from defserve.guard.verdict import Violation

ShellMode: TypeAlias = Literal["sandbox", "readonly"]
ProgramCheck: TypeAlias = Callable[[Sequence[str], ShellMode], Iterator[Violation]]


@dataclass(frozen=True, slots=True)
class Program:
    """The rules of a program, or of a sub-command. Every field refuses something; an empty one refuses nothing."""

    danger: tuple[str, ...] = ()
    """Flags that are always refused: they run another program, load settings, or write to a place of their own."""
    writing: tuple[str, ...] = ()
    """Flags that make a reading program write: not in readonly."""
    harmless: frozenset[str] = frozenset()
    """Complete flags that a dangerous one begins with. They would be taken for its abbreviation."""
    only: frozenset[str] | None = None
    """If given, the only flags that pass, written in full. `-#` stands for a number."""
    valued: str = ""
    """Letters that take a value: what follows in the same word is not a flag."""
    writes: bool = False
    """It changes something: not in readonly, and its operands are judged as places."""
    reads: frozenset[str] | None = None
    """If given, the first words that only read."""
    acts: frozenset[str] = frozenset()
    """With `reads`: the first words that change something."""
    tasks: bool = False
    """Every operand is a task of its own: if first words are listed, all operands must be."""
    prelude: frozenset[str] = frozenset()
    """Flags that may stand before the first word and leave its meaning alone."""
    checks: tuple[ProgramCheck, ...] = ()


def is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def operands(words: Iterable[str]) -> list[str]:
    """The words that are no flags. A flag's value in its own word counts as an operand: more is judged, never less."""
    return [word for word in words if not is_flag(word)]


def spelt(word: str, valued: str = "") -> list[str]:
    """The flags one word spells: `--out=x` is `--out`; `-uo` is `-u`, `-o`; `-to` is `-t` if t takes a value."""
    if word.startswith("--"):
        return [word.partition("=")[0]] if len(word) > 2 else []
    if re.fullmatch(r"-\d+", word):
        return ["-#"]
    letters: list[str] = []
    for letter in word[1:] if is_flag(word) else "":
        letters.append(f"-{letter}")
        if letter in valued:
            break
    return letters


def names(flag: str, danger: str) -> bool:
    """Whether `flag` as typed can mean `danger`: itself, or an abbreviation of a long one."""
    return flag == danger or (flag.startswith("--") and danger.startswith(flag))


def flag_violations(words: Sequence[str], program: Program, mode: ShellMode, title: str) -> Iterator[Violation]:
    """What the flags of `words` break.

    `--` changes nothing: it may be the value of the flag before it, and then what follows are flags after all.
    """
    refused = program.danger + (program.writing if mode == "readonly" else ())
    for word in filter(is_flag, words):
        for flag in spelt(word, program.valued):
            if flag in program.harmless:
                continue
            if match := next((danger for danger in refused if names(flag, danger)), None):
                rule, kind = ("flag", "flag") if match in program.danger else ("write", "write flag")
                yield Violation(rule, f"Blocked {kind} of {title}: '{flag}'")
            elif program.only is not None and flag not in program.only:
                yield Violation("flag", f"Blocked flag of {title}: '{flag}' is not among those known to be harmless")


def word_violations(
    words: Sequence[str], program: Program, mode: ShellMode, title: str, rule: str = "subcommand"
) -> Iterator[Violation]:
    """What the first word and the program's own checks refuse. `rule` is the rule that an unknown first word breaks."""
    if program.reads is not None:
        first = words[0] if words else ""
        # `git remote -v remove x`: behind a flag, the first operand is the word that counts as well.
        for word in [first, *operands(words)[:1]] if is_flag(first) else [first]:
            if word not in program.reads and word not in program.acts:
                yield Violation(rule, f"Blocked command: '{title} {word}'")
            elif word not in program.reads and mode == "readonly":
                yield Violation("write", f"Blocked write: '{title} {word}'")
    if program.writes and mode == "readonly":
        yield Violation("write", f"Blocked write: '{title}'")
    for check in program.checks:
        yield from check(words, mode)
