"""The filter of the timeline: words, and `name:value` terms. What does not parse is told with its place.

survey                  a word in the method, in what it is about, or in the id
method:tools tool:add   contained in the method, in the name of a called tool
id:7 era:stateless dir:sent is:error is:slow
not:ping                whatever the term after it does not fit
"two words"             blanks and colons belong to the word
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from defserve.errors import UsageError
from defserve.inspector.recording.recorder import RecordedMessage

SLOW_MS: Final = 1_000.0
LONGEST: Final = 500

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "era": ("handshake", "stateless"),
    "dir": ("sent", "received"),
    "is": ("error", "slow"),
}
_TESTS: Final[Mapping[str, Callable[[RecordedMessage, str], bool]]] = {
    "": lambda entry, word: (
        word in entry.method.lower() or word in entry.about.lower() or word in str(entry.id or "").lower()
    ),
    "method": lambda entry, part: part in entry.method.lower(),
    "tool": lambda entry, part: entry.method == "tools/call" and part in entry.about.lower(),
    "id": lambda entry, id: entry.id is not None and str(entry.id).lower() == id,
    "era": lambda entry, era: entry.era == era,
    "dir": lambda entry, direction: entry.direction == direction,
    "is": lambda entry, what: (
        entry.error is not None if what == "error" else entry.ms is not None and entry.ms >= SLOW_MS
    ),
}
NAMES: Final = tuple(name for name in _TESTS if name)
NOT: Final = "not:"
_NAME: Final = re.compile(r"([A-Za-z]+):(?!//)")
_BLANKS: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"\S*")


class FilterProblem(UsageError):
    """A filter that does not parse: `text[start:stop]` is what is wrong with it."""

    def __init__(self, message: str, start: int, stop: int, fix: str) -> None:
        super().__init__(f"{message} (at character {start + 1})", fix=fix)
        self.start, self.stop, self.problem, self.way = start, stop, message, fix


@dataclass(frozen=True, slots=True)
class Term:
    """One term: `name` is "" for a word. `start` is where it begins in the text, `value_start` where its value does."""

    name: str
    value: str
    negated: bool
    start: int
    value_start: int
    stop: int

    def fits(self, entry: RecordedMessage) -> bool:
        return _TESTS[self.name](entry, self.value) is not self.negated


@dataclass(frozen=True, slots=True)
class Filter:
    """What a message must fit: all of its terms."""

    terms: tuple[Term, ...] = ()

    def fits(self, entry: RecordedMessage) -> bool:
        return all(term.fits(entry) for term in self.terms)


def parse(text: str) -> Filter:
    """The filter that a text says. Raises FilterProblem."""
    if len(text) > LONGEST:
        raise FilterProblem(f"a filter has up to {LONGEST} characters", LONGEST, len(text), "use fewer words")
    terms: list[Term] = []
    place = _after(_BLANKS, text, 0)
    while place < len(text):
        terms.append(term := _term(text, place))
        place = _after(_BLANKS, text, term.stop)
    return Filter(tuple(terms))


def _after(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return found.end() if found else place


def _term(text: str, start: int) -> Term:
    place, negated = start, False
    while text[place : place + len(NOT)].lower() == NOT:
        place, negated = place + len(NOT), not negated
    name = ""
    if (found := _NAME.match(text, place)) is not None:
        name = _known(found.group(1), place, found.end())
        place = found.end()
    value, stop = _value(text, place)
    if not value:
        what = text[start:place] or '""'
        raise FilterProblem(f"{what} has no value", start, stop, f"write what to look for after it: {_example(name)}")
    choices = CHOICES.get(name)
    if choices is not None and value not in choices:
        raise FilterProblem(f"{name}: cannot be {value!r}", place, stop, f"use one of {', '.join(choices)}")
    return Term(name, value, negated, start, place, stop)


def _known(name: str, start: int, stop: int) -> str:
    if (lower := name.lower()) in NAMES:
        return lower
    near = get_close_matches(lower, (*NAMES, "not"), 1)
    told = f"write {near[0]}:" if near else f"use one of {', '.join(f'{each}:' for each in (*NAMES, 'not'))}"
    raise FilterProblem(f"{name}: is not known", start, stop, f"{told}, or put the word in quotes")


def _value(text: str, place: int) -> tuple[str, int]:
    """The value that begins at a place, in lower case, and where it ends."""
    if text[place : place + 1] != '"':
        stop = _after(_WORD, text, place)
        return text[place:stop].lower(), stop
    end = text.find('"', place + 1)
    if end < 0:
        raise FilterProblem("the quote is not closed", place, len(text), 'end it with "')
    if end + 1 < len(text) and not text[end + 1].isspace():
        raise FilterProblem("something follows the quote", end + 1, _after(_WORD, text, end + 1), "put a blank between")
    return text[place + 1 : end].lower(), end + 1


def _example(name: str) -> str:
    examples = {"id": "id:7", "method": "method:tools/call", "tool": "tool:add"}
    return examples.get(name) or (f"{name}:{CHOICES[name][0]}" if name in CHOICES else "not:ping")
