"""What an attack is, and how it went. An attack tries things, and says of each whether it was held.

Every attack has a control: the same attack on a server without one protection succeeds. See `controls/__init__.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tests.attack.arena import Arena
    from tests.attack.controls.patching import Patch

T = TypeVar("T")

NOTES = 3
"""How many failures of one attack the table shows; the JSON file has all."""


class NotTried(Exception):
    """The attack could not be made. The run fails, unless this machine lacks something that the attack needs."""

    is_missing_feature = False


class MissingFeature(NotTried):
    """The operating system cannot do what the attack needs."""

    is_missing_feature = True


class Bitten(BaseException):
    """In a control: the attack has succeeded, as it must. No `except Exception` of an attack can swallow it."""


@dataclass(frozen=True)
class Control:
    """The same attack where one protection is missing.

    `remove` takes the protection out. `bites` is a pattern (`re.search`) for the text of the expectation that must
    fail then: others may fail, but they show nothing. `case` limits `Trial.choose` to the cases of that name.
    `here` takes the protection out of the suite's own process as well, for attacks that call the framework directly.
    """

    remove: Callable[[Patch], None]
    bites: str
    case: str = "*"
    here: bool = False

    @property
    def name(self) -> str:
        """Where the removal is found: `tests.attack.controls.http:take_any_host`."""
        return f"{self.remove.__module__}:{self.remove.__name__}"

    @property
    def title(self) -> str:
        return self.remove.__name__.replace("_", " ")


@dataclass
class Trial:
    """One attack under way: the servers it may use, its own random numbers, and what was held so far."""

    arena: Arena
    random: Random
    control: Control | None = None
    """Set in a control: the first expectation that fails as the control says ends the attack."""
    case: str = "*"
    tried: int = 0
    failures: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def expect(self, held: object, otherwise: str) -> bool:
        """Count one try. `otherwise` says what happened, exactly enough to repeat it."""
        self.tried += 1
        if not held:
            self.failures.append(otherwise)
            if self.control is not None and re.search(self.control.bites, otherwise):
                raise Bitten(otherwise)
        return bool(held)

    def choose(self, cases: Mapping[str, T]) -> Iterable[tuple[str, T]]:
        """All cases by name; in a control (or a sample of one try) only those that the control names."""
        chosen = [(name, case) for name, case in cases.items() if fnmatchcase(name, self.case)]
        if not chosen:
            raise NotTried(f"no case is called {self.case}: {', '.join(cases)[:200]}")
        return chosen


Run = Callable[[Trial], None]


@dataclass(frozen=True)
class Attack:
    """A row of the table. `growth` is what the servers it uses may grow by, in MB; `expected` is for people."""

    family: str
    name: str
    run: Run
    growth: float = 40.0
    expected: str = ""
    controls: tuple[Control, ...] = ()
    shares: str = ""
    """A row of the family that has the same controls, of the same code: they are run once for both."""


@dataclass(frozen=True)
class Bite:
    """How a control went: whether the attack succeeded without the protection, and what it said."""

    title: str
    has_bitten: bool
    said: str
    seconds: float = 0.0
    is_missing_feature: bool = False


@dataclass
class Row:
    """How an attack went."""

    attack: Attack
    tried: int = 0
    failures: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    growth: float | None = None
    """MB, of the server that grew most. None if the attack used none."""
    seconds: float = 0.0
    untried: NotTried | None = None
    bites: list[Bite] | None = None
    """One for each control; None if controls were not wanted."""

    @property
    def held(self) -> int:
        return self.tried - len(self.failures)

    @property
    def is_good(self) -> bool:
        if self.untried is not None:
            return self.untried.is_missing_feature
        return not self.failures and self.tried > 0 and self.has_control

    @property
    def has_control(self) -> bool:
        """Whether every control bit; an attack without one has shown nothing. True if none was wanted."""
        return self.bites is None or bool(self.bites and all(b.has_bitten or b.is_missing_feature for b in self.bites))

    @property
    def note(self) -> str:
        if self.untried is not None:
            return f"not tried: {self.untried}"
        more = len(self.failures) - NOTES
        missed = [f"control {bite.title!r}: {bite.said}" for bite in self.bites or () if not bite.has_bitten]
        shown = [*self.failures[:NOTES], *([f"and {more} more"] if more > 0 else []), *missed, *self.notes]
        return "; ".join(shown)

    @property
    def control(self) -> str:
        """A word for the table: `bit`, `2 bit`, `did NOT bite`, `none`."""
        if self.bites is None:
            return "-"
        if not self.bites:
            return "none"
        bitten = sum(bite.has_bitten for bite in self.bites)
        if bitten == len(self.bites):
            return "bit" if bitten == 1 else f"{bitten} bit"
        if all(bite.has_bitten or bite.is_missing_feature for bite in self.bites):
            return "not tried"
        return "did NOT bite" if not bitten else f"{len(self.bites) - bitten} of {len(self.bites)} did NOT bite"


class Family:
    """Attacks of one kind, gathered by a decorator: `@family.attack("two lengths", Control(…))`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attacks: list[Attack] = []

    def attack(self, name: str, *controls: Control, growth: float = 40.0) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            self.add(name, run, *controls, growth=growth)
            return run

        return add

    def add(self, name: str, run: Run, *controls: Control, growth: float = 40.0, shares: str = "") -> None:
        self.attacks.append(Attack(self.name, name, run, growth, controls=controls, shares=shares))
