"""Runs attacks: each family in a place of its own, and after every attack a look at the servers that it used."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tests.attack.arena import Arena
from tests.attack.trial import Attack, NotTried, Row, Trial

Tell = Callable[[Row], None]


def run(attacks: Sequence[Attack], seed: int, jobs: int, tell: Tell) -> list[Row]:
    """Every attack once; families side by side, the attacks of one family one after another."""
    families: dict[str, list[Attack]] = {}
    for attack in attacks:
        families.setdefault(attack.family, []).append(attack)
    with ThreadPoolExecutor(jobs) as pool:
        done = [pool.submit(run_family, family, seed, tell) for family in families.values()]
        return [row for future in done for row in future.result()]


def run_family(attacks: Iterable[Attack], seed: int, tell: Tell) -> list[Row]:
    arena, rows = Arena(), list[Row]()
    try:
        for attack in attacks:
            rows.append(run_one(attack, arena, seed))
            tell(rows[-1])
    finally:
        arena.close()
    return rows


def run_one(attack: Attack, arena: Arena, seed: int) -> Row:
    trial, row = Trial(arena, Random(f"{seed} {attack.family} {attack.name}")), Row(attack)
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
    _look_at_servers(attack, trial, row)
    row.tried, row.failures, row.notes = trial.tried, trial.failures, trial.notes
    row.seconds = time.monotonic() - began
    return row


def _look_at_servers(attack: Attack, trial: Trial, row: Row) -> None:
    """Whatever the attack was: the servers live, and have not grown by more than they may."""
    if trial.arena.grown:
        row.growth = trial.arena.grown
    for served in list(trial.arena.used):
        if not served.is_alive:
            if row.untried is None:
                trial.expect(False, f"{served.kind} has ended: {served.log.strip()[-200:]}")
            continue
        growth = max(served.growth, served.largest)
        row.growth = max(row.growth or 0.0, growth)
        if growth > attack.growth:
            trial.expect(False, f"{served.kind} grew by {growth:.0f} MB, more than {attack.growth:.0f}")
            trial.arena.drop(served)
