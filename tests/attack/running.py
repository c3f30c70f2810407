"""Runs attacks: each family in a place of its own, after every attack a look at its servers, and its controls."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tests.attack.arena import Arena
from tests.attack.controlling import Controller
from tests.attack.trial import Attack, Bite, NotTried, Row, Trial

Tell = Callable[[Row], None]


def run(
    attacks: Sequence[Attack], seed: int, jobs: int, tell: Tell, modules: Mapping[str, str] | None = None,
    *, sample: bool = False,
) -> list[Row]:  # fmt: skip
    """Every attack once; families side by side, the attacks of one family one after another.

    `modules` says where a family's attacks are found: their controls are run then, each beside its family.
    """
    families: dict[str, list[Attack]] = {}
    for attack in attacks:
        families.setdefault(attack.family, []).append(attack)
    with ThreadPoolExecutor(jobs) as pool:
        done = []
        for name, family in families.items():
            rows = pool.submit(run_family, family, seed, tell, sample=sample)
            bites = pool.submit(run_controls, family, seed, modules[name]) if modules is not None else None
            done.append((rows, bites))
        for rows, bites in done:
            for row, bitten in zip(rows.result(), bites.result() if bites is not None else (), strict=False):
                row.bites = bitten
        return [row for rows, _ in done for row in rows.result()]


def run_family(attacks: Iterable[Attack], seed: int, tell: Tell, *, sample: bool = False) -> list[Row]:
    arena, rows = Arena(), list[Row]()
    try:
        for attack in attacks:
            rows.append(run_one(attack, arena, seed, sample=sample))
            tell(rows[-1])
    finally:
        arena.close()
    return rows


def run_controls(attacks: Iterable[Attack], seed: int, module: str) -> list[list[Bite]]:
    controller, done = Controller(module), dict[str, list[Bite]]()
    try:
        for attack in attacks:
            done[attack.name] = done.get(attack.shares) or controller.run(attack, seed)
    finally:
        controller.close()
    return list(done.values())


def run_one(attack: Attack, arena: Arena, seed: int, *, sample: bool = False) -> Row:
    """`sample`: only the case that its control names."""
    case = attack.controls[0].case if sample and attack.controls else "*"
    trial, row = Trial(arena, Random(f"{seed} {attack.family} {attack.name}"), case=case), Row(attack)
    arena.used, arena.grown = set(), 0.0
    began = time.monotonic()
    try:
        attack.run(trial)
    except NotTried as reason:
        row.untried = reason
    except Exception as error:
        # An attack that breaks itself has shown nothing.
        where = traceback.extract_tb(error.__traceback__)[-1]
        row.untried = NotTried(f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})")
    growth = arena.expect_bounded(trial, attack.growth, wants_alive=row.untried is None)
    row.growth = growth
    row.tried, row.failures, row.notes = trial.tried, trial.failures, trial.notes
    row.seconds = time.monotonic() - began
    return row
