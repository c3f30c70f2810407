"""An attack on a server at an HTTP address."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.attack.arena import Kind
from tests.attack.trial import Control, Family, Trial

OPEN = Kind()

Run = Callable[[Trial, Kind], None]


def attack_http(
    family: Family, name: str, run: Run, kind: Kind = OPEN, *, controls: Sequence[Control] = (), growth: float = 40.0
) -> None:
    """Add the attack on a server of this kind."""
    family.add(name, lambda trial: run(trial, kind), *controls, growth=growth)
