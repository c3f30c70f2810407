"""Both HTTP parsers: an attack on the syntax of HTTP is made on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.attack.arena import Kind
from tests.attack.trial import Control, Family, Trial

PARSERS = ("httptools", "h11")

OPEN = Kind()

Run = Callable[[Trial, Kind], None]


def on_both(
    family: Family,
    name: str,
    run: Run,
    kind: Kind = OPEN,
    *,
    controls: Sequence[Control] = (),
    are_shared: bool = False,
    growth: float = 40.0,
) -> None:
    """Add the attack once for each parser. `are_shared`: what the controls remove is no part of either."""
    for parser in PARSERS:
        at = kind.with_options("--http", parser)
        first = f"{name} ({PARSERS[0]})"
        shares = first if are_shared and parser != PARSERS[0] else ""
        title = f"{name} ({parser})"
        family.add(title, lambda trial, at=at: run(trial, at), *controls, growth=growth, shares=shares)
