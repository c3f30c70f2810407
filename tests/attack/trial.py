"""What an attack is, and how it went. An attack tries things, and says of each whether it was held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.attack.arena import Arena

NOTES = 3
"""How many failures of one attack the table shows; the JSON file has all."""


class NotTried(Exception):
    """The attack could not be made. The run fails, unless this machine lacks something that the attack needs."""

    is_missing_feature = False


class MissingFeature(NotTried):
    """The operating system cannot do what the attack needs."""

    is_missing_feature = True


@dataclass
class Trial:
    """One attack under way: the servers it may use, its own random numbers, and what was held so far."""

    arena: Arena
    random: Random
    tried: int = 0
    failures: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def expect(self, held: object, otherwise: str) -> bool:
        """Count one try. `otherwise` says what happened, exactly enough to repeat it."""
        self.tried += 1
        if not held:
            self.failures.append(otherwise)
        return bool(held)


Run = Callable[[Trial], None]


@dataclass(frozen=True)
class Attack:
    """A row of the table. `growth` is what the servers it uses may grow by, in MB; `expected` is for people."""

    family: str
    name: str
    run: Run
    growth: float = 40.0
    expected: str = ""


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

    @property
    def held(self) -> int:
        return self.tried - len(self.failures)

    @property
    def is_good(self) -> bool:
        if self.untried is not None:
            return self.untried.is_missing_feature
        return not self.failures and self.tried > 0

    @property
    def note(self) -> str:
        if self.untried is not None:
            return f"not tried: {self.untried}"
        more = len(self.failures) - NOTES
        shown = [*self.failures[:NOTES], *([f"and {more} more"] if more > 0 else []), *self.notes]
        return "; ".join(shown)


class Family:
    """Attacks of one kind, gathered by a decorator: `@family.attack("duplicate content-length")`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attacks: list[Attack] = []

    def attack(self, name: str, *, growth: float = 40.0) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            self.add(name, run, growth=growth)
            return run

        return add

    def add(self, name: str, run: Run, *, growth: float = 40.0) -> None:
        self.attacks.append(Attack(self.name, name, run, growth))
