"""Whether a regular expression can take much longer to fail than its text is long.

Python's matcher tries every way to read a text before it gives up. What counts is how many ways there are. Here a
pattern becomes an automaton whose states are the characters of the pattern. Two ways from a state back to itself with
the same text double with every repetition (exponential). Two loops, one after the other, that share a text can divide
it at every place (quadratic or worse). What is atomic or possessive is read in one way only, so only its inside counts.

That `search` begins anew at every character is not counted: it multiplies by the length of the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias, TypeVar

_parser: Any = re._parser  # type: ignore[attr-defined]  # pyright: ignore

# As plain numbers: millions of questions are asked, and those to a flag take ten times as long.
ASCII, DOTALL, IGNORECASE = int(re.ASCII), int(re.DOTALL), int(re.IGNORECASE)
# A repetition up to this many times is not a loop.
FEW = 8
# Characters at which the classes of Python (\w, \d, \s) begin or end, up to a few beyond ASCII.
_ENDS = (0, 9, 10, 11, 14, 28, 32, 33, 48, 58, 65, 91, 95, 96, 97, 123, 133, 134, 160, 161, 170, 171, 0x660, 0x66A)

Letters: TypeAlias = int
"""A set of characters, as bits."""
Steps: TypeAlias = "list[list[tuple[int, Letters]]]"
"""The states after each state, and with which characters."""
T = TypeVar("T")


@dataclass(slots=True)
class Part:
    """A piece of a pattern: the states it can begin and end with, and the ways to pass it without a character.

    Each with the characters that may come at that point: the one that is read, or the next one.
    """

    begins: list[tuple[int, Letters]] = field(default_factory=list[tuple[int, Letters]])
    ends: list[tuple[int, Letters]] = field(default_factory=list[tuple[int, Letters]])
    passes: list[Letters] = field(default_factory=list[Letters])


class Automaton:
    def __init__(self, tree: Any, flags: int, ends: Iterable[int]) -> None:
        self._letters = [chr(end) for end in sorted(set(ends))]
        self._all = (1 << len(self._letters)) - 1
        self._alike: dict[str, Letters] = {}
        """The characters that differ in their case only."""
        for place, letter in enumerate(self._letters):
            self._alike[letter.lower()] = self._alike.get(letter.lower(), 0) | 1 << place
        self.steps: Steps = []
        self.atoms: list[int] = []
        """The atomic group that each state is in, or 0."""
        self.loose: set[tuple[int, int]] = set()
        """The steps that can be given back."""
        self.inner: list[tuple[Any, int]] = []
        """What is read by itself: atomic groups, and what looks ahead."""
        self._atom = self._count = 0
        self._sequence(tree, flags)

    # -- pieces ------------------------------------------------------------------------------------------

    def _sequence(self, tree: Any, flags: int) -> Part:
        whole = Part(passes=[self._all])
        for operation, argument in tree:
            whole = self._joined(whole, self._piece(str(operation), argument, flags))
        return whole

    def _piece(self, name: str, argument: Any, flags: int) -> Part:
        if (letters := self._single(name, argument, flags)) is not None:
            self.steps.append([])
            self.atoms.append(self._atom)
            return Part([(len(self.steps) - 1, letters)], [(len(self.steps) - 1, self._all)])
        if name.endswith("REPEAT"):
            least, most, body = argument
            return self._repeated(least, most, body, flags, name == "POSSESSIVE_REPEAT")
        if name == "BRANCH":
            branches = [self._sequence(branch, flags) for branch in argument[1]]
            return Part(*([one for each in branches for one in getattr(each, kind)] for kind in Part.__slots__))
        if name == "SUBPATTERN":
            return self._sequence(argument[3], (flags | argument[1]) & ~argument[2])
        if name == "ATOMIC_GROUP":
            return self._atomic(argument, flags)
        if name in ("ASSERT", "ASSERT_NOT"):
            self.inner.append((argument[1], flags))
            ahead = self._certain(argument[1], flags) if argument[0] > 0 and len(argument[1]) == 1 else 0
            return Part(passes=[(ahead if name == "ASSERT" else self._all & ~ahead) if ahead else self._all])
        return Part(passes=[] if str(argument) == "AT_END_STRING" else [self._all])

    def _joined(self, left: Part, right: Part) -> Part:
        self._connect(left.ends, right.begins)
        return Part(
            left.begins + [(state, here & skip) for skip in left.passes for state, here in right.begins],
            right.ends + [(state, here & skip) for skip in right.passes for state, here in left.ends],
            [one & other for one in left.passes for other in right.passes if one & other],
        )

    def _connect(
        self, ends: list[tuple[int, Letters]], begins: list[tuple[int, Letters]], possessive: bool = False
    ) -> None:
        for end, after in ends:
            self.steps[end] += [(begin, here & after) for begin, here in begins if here & after]
            if not (possessive or self._atom):
                self.loose.update((end, begin) for begin, _ in begins)

    def _repeated(self, least: int, most: int, body: Any, flags: int, possessive: bool) -> Part:
        part = self._atomic(body, flags) if possessive else self._sequence(body, flags)
        # A possessive repetition goes on as long as it can.
        left = self._all & ~self._certain(body, flags) if possessive else self._all
        if most > FEW:
            self._connect(part.ends, part.begins, possessive)
            part.ends = [(state, here & left) for state, here in part.ends]
        return Part(part.begins, part.ends, part.passes if least else [left])

    def _atomic(self, body: Any, flags: int) -> Part:
        self.inner.append((body, flags))
        outside = self._atom
        self._count += 1
        self._atom = outside or self._count
        part = self._sequence(body, flags)
        self._atom = outside
        return part

    # -- characters --------------------------------------------------------------------------------------

    def _certain(self, body: Any, flags: int) -> Letters:
        """The characters that a piece takes by themselves, whatever follows."""
        if len(body) != 1:
            return 0
        name, argument = str(body[0][0]), body[0][1]
        if name == "SUBPATTERN":
            return self._certain(argument[3], flags)
        if name == "BRANCH":
            found = 0
            for branch in argument[1]:
                found |= self._certain(branch, flags)
            return found
        return self._single(name, argument, flags) or 0

    def _single(self, name: str, argument: Any, flags: int) -> Letters | None:
        """The characters that a piece of one character matches; None if it is longer, or shorter."""
        if name == "ANY":
            return self._those(lambda letter: bool(flags & DOTALL) or letter != "\n")
        if name == "GROUPREF":
            return self._all
        if name in ("LITERAL", "NOT_LITERAL"):
            same = self._literal(argument, flags)
            return same if name == "LITERAL" else self._all & ~same
        if name == "IN":
            negated = str(argument[0][0]) == "NEGATE"
            found = 0
            for item in argument[negated:]:
                found |= self._within(item, flags)
            return self._all & ~found if negated else found
        return None

    def _those(self, fits: Callable[[str], bool]) -> Letters:
        return sum(1 << place for place, letter in enumerate(self._letters) if fits(letter))

    def _literal(self, code: int, flags: int) -> Letters:
        if flags & IGNORECASE:
            return self._alike.get(chr(code).lower(), 0)
        return 1 << self._letters.index(chr(code)) if chr(code) in self._letters else 0

    def _within(self, item: Any, flags: int) -> Letters:
        operation, argument = item
        if str(operation) == "LITERAL":
            return self._literal(argument, flags)
        if str(operation) == "RANGE":
            low, high = chr(argument[0]), chr(argument[1])
            if not flags & IGNORECASE:
                return self._those(lambda letter: low <= letter <= high)
            return self._those(
                lambda letter: any(low <= one <= high for one in (letter.lower(), letter.upper()) if len(one) == 1)
            )
        kind = str(argument).removeprefix("CATEGORY_")
        category, ascii = _CATEGORIES[kind.removeprefix("NOT_")], bool(flags & ASCII)
        found = self._those(lambda letter: category(letter, ascii))
        return self._all & ~found if kind.startswith("NOT_") else found


_CATEGORIES: dict[str, Callable[[str, bool], bool]] = {
    "DIGIT": lambda letter, ascii: letter.isdecimal() and (not ascii or letter.isascii()),
    "SPACE": lambda letter, ascii: letter in " \t\n\r\f\v" if ascii else letter.isspace(),
    "WORD": lambda letter, ascii: (letter.isalnum() and (not ascii or letter.isascii())) or letter == "_",
}


# -- ways ------------------------------------------------------------------------------------------------


def problem(pattern: str | bytes, flags: int = 0) -> str | None:
    """How many ways there may be to read a text by this pattern: "exponential", "quadratic", or None if few."""
    state = _parser.State()
    tree = _parser.parse(pattern, flags, state)
    flags = int(state.flags) | (ASCII if isinstance(pattern, bytes) else 0)
    ends = {*_ENDS, *_ends(tree)}
    waiting: list[tuple[Any, int]] = [(tree, flags)]
    found: set[str] = set()
    for part, own in waiting:
        automaton = Automaton(part, own, ends)
        waiting += automaton.inner
        found.add(_ways(automaton))
    return next((kind for kind in ("exponential", "quadratic") if kind in found), None)


def _ends(tree: Any) -> Iterator[int]:
    """Where the sets of characters that a pattern names begin and end, in either case."""
    for item in _members(tree):
        name, *argument = _members(item) or [""]
        if str(name) in ("LITERAL", "NOT_LITERAL", "RANGE"):
            low, high = argument[0] if str(name) == "RANGE" else argument * 2
            yield from (low, min(high + 1, sys.maxunicode))
            yield from map(ord, chr(low).swapcase()[:1])
        else:
            yield from _ends(item)


def _members(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, list | tuple | _parser.SubPattern) else []


def _ways(automaton: Automaton) -> str:
    steps, atoms = automaton.steps, automaton.atoms
    loops = _loops(steps)
    home = {state: place for place, loop in enumerate(loops) for state in loop}
    for loop in loops:
        if _doubles(steps, atoms, loop):
            return "exponential"
    for place, loop in enumerate(loops):
        if not any(one in loop and other in loop for one, other in automaton.loose):
            continue
        onward = _onward(steps, loop)
        for other in {home[state] for state in onward if state in home} - {place}:
            if _divides(steps, loop, onward, loops[other]):
                return "quadratic"
    return ""


def _doubles(steps: Steps, atoms: list[int], loop: set[int]) -> bool:
    """Whether two ways lead from a state of a loop back to it with the same text."""

    def apart(one: int, other: int) -> bool:
        return one != other and not (atoms[one] and atoms[one] == atoms[other])

    for state in loop:
        if not atoms[state]:
            edges = [edge for edge in steps[state] if edge[0] in loop]
            if any(one[0] == other[0] and one[1] & other[1] for one, other in combinations(edges, 2)):
                return True
    back: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def after(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
        for one, here in steps[pair[0]]:
            for other, there in steps[pair[1]]:
                if here & there and one in loop and other in loop:
                    back.setdefault((one, other), []).append(pair)
                    yield one, other

    same = {(state, state) for state in loop}
    pairs = _reached(same, after)
    return any(apart(*pair) for pair in _reached(same & pairs, lambda pair: back.get(pair, ())))


def _divides(steps: Steps, first: set[int], between: set[int], second: set[int]) -> bool:
    """Whether a text leads around the first loop, around the second, and from the first to the second."""

    def after(three: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
        for one, a in steps[three[0]]:
            for other, b in steps[three[1]] if one in first else ():
                for last, c in steps[three[2]] if a & b and other in between else ():
                    if a & b & c and last in second:
                        yield one, other, last

    return any((one, two, two) in _reached([(one, one, two)], after) for one in first for two in second)


def _loops(steps: Steps) -> list[set[int]]:
    """The states that can be reached from each other, in groups."""
    ahead = [_onward(steps, [after for after, _ in edges]) for edges in steps]
    found: list[set[int]] = []
    for state, reached in enumerate(ahead):
        if state in reached and not any(state in loop for loop in found):
            found.append({other for other in reached if state in ahead[other]})
    return found


def _onward(steps: Steps, begin: Iterable[int]) -> set[int]:
    return _reached(begin, lambda state: (after for after, _ in steps[state]))


def _reached(begin: Iterable[T], after: Callable[[T], Iterable[T]]) -> set[T]:
    waiting = list(begin)
    found = set(waiting)
    while waiting:
        for one in after(waiting.pop()):
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found
