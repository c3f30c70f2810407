"""The entries in an SQLite file: what many ask for, or change, in a few statements. Within the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from defserve.stores.store import Change

LIVE: Final = "(expires IS NULL OR expires > ?)"

# Rows of a statement, the most first. Each is prepared once; the fewer are run, the less threads wait for one another.
_SIZES: Final = (128, 64, 32, 16, 8, 4, 2, 1)


def _rows(marks: str, size: int) -> str:
    return ", ".join([marks] * size)


_FIND: Final = {
    # A cross join, so that it is the entries that are looked up.
    size: f"""
    WITH wanted (space, name) AS (VALUES {_rows("(?, ?)", size)})
    SELECT space, name, value FROM wanted CROSS JOIN entries USING (space, name) WHERE {LIVE}
    """
    for size in _SIZES
}
_PUT: Final = {
    size: f"""
    INSERT INTO entries (space, name, value, expires) VALUES {_rows("(?, ?, ?, ?)", size)}
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, expires = excluded.expires
    """
    for size in _SIZES
}
_DROP: Final = "DELETE FROM entries WHERE space = ? AND name = ?"
_RENEW: Final = f"UPDATE entries SET expires = ? WHERE space = ? AND {LIVE}"

Place = tuple[str, str]
"""A space and a name."""
T = TypeVar("T")


class Wanted(NamedTuple):
    """Names that somebody asks for."""

    space: str
    names: Sequence[str]

    @property
    def places(self) -> list[Place]:
        return [(self.space, name) for name in self.names]

    def among(self, found: dict[Place, bytes]) -> dict[str, bytes]:
        return {place[1]: found[place] for place in self.places if place in found}


def find(connection: sqlite3.Connection, places: Collection[Place], now: float) -> dict[Place, bytes]:
    """The values of those that are there."""
    found: dict[Place, bytes] = {}
    wanted = list(places)
    for start in range(0, len(wanted), _SIZES[0]):
        some = wanted[start : start + _SIZES[0]]
        size = 1 << (len(some) - 1).bit_length()
        some += some[-1:] * (size - len(some))  # it does no harm to ask twice
        rows = connection.execute(_FIND[size], (*chain.from_iterable(some), now))
        found.update({(space, name): value for space, name, value in rows})
    return found


def make(connection: sqlite3.Connection, changes: Sequence[Change], now: float) -> list[bool]:
    """Make those changes that find what they expect, each after the ones before it; say which were made."""
    held = find(connection, {(change.space, name) for change in changes for name in change.expect}, now)
    outcome = _Outcome(held)
    made = [outcome.add(change, now) for change in changes]
    outcome.write(connection, now)
    return made


class _Outcome:
    """What becomes of entries by changes, worked out before it is written."""

    def __init__(self, held: dict[Place, bytes]) -> None:
        self._held = held
        self._put: dict[Place, tuple[str, str, bytes, float | None]] = {}
        self._drop: set[Place] = set()
        self._renew: dict[str, float] = {}

    def add(self, change: Change, now: float) -> bool:
        space = change.space
        if any(self._held.get((space, name)) != value for name, value in change.expect.items()):
            return False
        expires = None if change.ttl is None else now + change.ttl
        for name in change.drop:
            self._held.pop((space, name), None)
            self._put.pop((space, name), None)
            self._drop.add((space, name))
        for name, value in change.put.items():
            self._held[space, name] = value
            self._put[space, name] = (space, name, value, expires)
        if expires is not None:
            self._renew[space] = expires
        return True

    def write(self, connection: sqlite3.Connection, now: float) -> None:
        if self._drop:
            connection.executemany(_DROP, self._drop)
        for rows in _in_sizes(list(self._put.values())):
            connection.execute(_PUT[len(rows)], tuple(chain.from_iterable(rows)))
        for space, expires in self._renew.items():
            connection.execute(_RENEW, (expires, space, now))


def _in_sizes(rows: list[T]) -> Iterator[list[T]]:
    at = 0
    for size in _SIZES:
        while len(rows) - at >= size:
            yield rows[at : at + size]
            at += size
