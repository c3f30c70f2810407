"""The entries of an SQLite file: many lookups or changes in a few statements, within the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from defserve.stores.sqlite.cache import Place
from defserve.stores.store import StoreChange

LIVE: Final = "(expires IS NULL OR expires > ?)"

# Rows in one statement. Each statement is prepared once. Fewer statements mean that threads wait less for one another.
_MOST: Final = 128
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, _MOST)
_PUT_SIZES: Final = (*range(1, 8), *range(8, _MOST + 1, 8))


def _rows(marks: str, size: int) -> str:
    return ", ".join([marks] * size)


_FIND: Final = {
    # A cross join makes SQLite look up the entries, and not scan them.
    size: f"""
    WITH wanted (space, name) AS (VALUES {_rows("(?, ?)", size)})
    SELECT space, name, value, expires FROM wanted CROSS JOIN entries USING (space, name) WHERE {LIVE}
    """
    for size in _SIZES
}
_PUT: Final = {
    size: f"""
    INSERT INTO entries (space, name, value, expires) VALUES {_rows("(?, ?, ?, ?)", size)}
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, expires = excluded.expires
    """
    for size in _PUT_SIZES
}
_DROP: Final = "DELETE FROM entries WHERE space = ? AND name = ?"
_RENEW: Final = f"UPDATE entries SET expires = ? WHERE space = ? AND {LIVE}"


NOTHING: Final[Mapping[Place, bytes]] = {}

Row = tuple[str, str, bytes, float | None]
"""A place, its value, and when it expires."""


class Lookup(NamedTuple):
    """The names that one caller asks for."""

    space: str
    names: Sequence[str]

    @property
    def places(self) -> list[Place]:
        return [(self.space, name) for name in self.names]

    def among(self, found: dict[Place, bytes]) -> dict[str, bytes]:
        return {place[1]: found[place] for place in self.places if place in found}


def find(connection: sqlite3.Connection, places: Collection[Place], now: float) -> list[Row]:
    """The entries that exist; some may come twice."""
    found: list[Row] = []
    wanted = list(places)
    for start in range(0, len(wanted), _MOST):
        some = wanted[start : start + _MOST]
        size = 1 << (len(some) - 1).bit_length()
        some += some[-1:] * (size - len(some))  # asking twice does no harm
        found += connection.execute(_FIND[size], (*chain.from_iterable(some), now))
    return found


def values(rows: Iterable[Row]) -> dict[Place, bytes]:
    return {(space, name): value for space, name, value, _ in rows}


def lasting(rows: Iterable[Row]) -> dict[Place, bytes]:
    """The values of the entries that do not expire."""
    return {(space, name): value for space, name, value, expires in rows if expires is None}


class ChangeResults(NamedTuple):
    """Which changes were made, and the new value of each place: None if it has no value, or one that expires."""

    is_made: list[bool]
    outcome: dict[Place, bytes | None]


def apply_changes(
    connection: sqlite3.Connection, changes: Sequence[StoreChange], now: float, known: Mapping[Place, bytes] = NOTHING
) -> ChangeResults:
    """Make the changes that find what they expect, each after the ones before it.

    Values that are `known` are not looked up.
    """
    held: dict[Place, bytes] = {}
    unknown: list[Place] = []
    for change in changes:
        for name in change.expect:
            place = change.space, name
            value = known.get(place)
            if value is not None:
                held[place] = value
            else:
                unknown.append(place)
    if unknown:
        held |= values(find(connection, unknown, now))
    outcome = _Outcome(held)
    is_made = [outcome.add(change, now) for change in changes]
    outcome.write(connection, now)
    return ChangeResults(is_made, outcome.lasting)


class _Outcome:
    """The effect of changes on entries, worked out before it is written."""

    def __init__(self, held: dict[Place, bytes]) -> None:
        self._held = held
        self._put: dict[Place, Row] = {}
        self._drop: set[Place] = set()
        self._renew: dict[str, float] = {}
        self.lasting: dict[Place, bytes | None] = {}

    def add(self, change: StoreChange, now: float) -> bool:
        space, put, drop, expect, ttl = change
        held = self._held
        for name, value in expect.items():
            if held.get((space, name)) != value:
                return False
        for name in drop:
            place = space, name
            held.pop(place, None)
            self._put.pop(place, None)
            self._drop.add(place)
            self.lasting[place] = None
        expires = now + ttl if ttl is not None else None
        for name, value in put.items():
            place = space, name
            held[place] = value
            self._put[place] = space, name, value, expires
            self.lasting[place] = value if expires is None else None
        if expires is not None:
            self._renew[space] = expires
        return True

    def write(self, connection: sqlite3.Connection, now: float) -> None:
        if self._drop:
            connection.executemany(_DROP, self._drop)
        rows = list(self._put.values())
        for start in range(0, len(rows), _MOST):
            some = rows[start : start + _MOST]
            # Fill up to the size of a prepared statement: writing a row twice does no harm.
            some += some[:1] * (-len(some) % 8 if len(some) > 8 else 0)
            connection.execute(_PUT[len(some)], tuple(chain.from_iterable(some)))
        for space, expires in self._renew.items():
            connection.execute(_RENEW, (expires, space, now))
