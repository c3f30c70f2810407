"""The entries of an SQLite file: many lookups or changes in a few statements, within the caller's transaction.

Below: small values as this process last saw them.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from defserve.stores.store import MAX_LEASE_SECONDS, StoreChange, is_lease_space

UNEXPIRED_CONDITION: Final = "(expires IS NULL OR expires > ?)"

# Rows in one statement. Each statement is prepared once. Fewer statements mean that threads wait less for one another.
_MAX_BATCH_SIZE: Final = 128
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, _MAX_BATCH_SIZE)
_PUT_SIZES: Final = (*range(1, 8), *range(8, _MAX_BATCH_SIZE + 1, 8))


def _rows(marks: str, size: int) -> str:
    return ", ".join([marks] * size)


_FIND: Final = {
    # A cross join makes SQLite look up the entries, and not scan them.
    size: f"""
    WITH wanted (space, name) AS (VALUES {_rows("(?, ?)", size)})
    SELECT space, name, value, expires FROM wanted CROSS JOIN entries USING (space, name) WHERE {UNEXPIRED_CONDITION}
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
_RENEW: Final = f"UPDATE entries SET expires = ? WHERE space = ? AND {UNEXPIRED_CONDITION}"

NOTHING: Final[Mapping[EntryKey, bytes]] = {}

Row = tuple[str, str, bytes, float | None]
"""A place, its value, and when it expires."""


class EntryRequest(NamedTuple):
    """The names that one caller asks for."""

    space: str
    names: Sequence[str]

    @property
    def keys(self) -> list[EntryKey]:
        return [(self.space, name) for name in self.names]

    def pick_requested_values(self, found: dict[EntryKey, bytes]) -> dict[str, bytes]:
        return {place[1]: found[place] for place in self.keys if place in found}


def find_entries(connection: sqlite3.Connection, places: Collection[EntryKey], now: float) -> list[Row]:
    """The entries that exist; some may come twice.

    A lease that lies further ahead than any can was taken before the clock was set back. It has ended: its holder may
    be dead. One that is alive takes it again when it would renew it.
    """
    found: list[Row] = []
    latest = now + MAX_LEASE_SECONDS
    wanted = list(places)
    for start in range(0, len(wanted), _MAX_BATCH_SIZE):
        some = wanted[start : start + _MAX_BATCH_SIZE]
        size = 1 << (len(some) - 1).bit_length()
        some += some[-1:] * (size - len(some))  # asking twice does no harm
        found += connection.execute(_FIND[size], (*chain.from_iterable(some), now))
    return [row for row in found if row[3] is None or row[3] <= latest or not is_lease_space(row[0])]


def map_rows_to_values(rows: Iterable[Row]) -> dict[EntryKey, bytes]:
    return {(space, name): value for space, name, value, _ in rows}


def map_rows_to_lasting_values(rows: Iterable[Row]) -> dict[EntryKey, bytes]:
    """The values of the entries that do not expire."""
    return {(space, name): value for space, name, value, expires in rows if expires is None}


class ChangeResults(NamedTuple):
    """Which changes were made, and the new value of each place: None if it has no value, or one that expires."""

    is_made: list[bool]
    outcome: dict[EntryKey, bytes | None]


def apply_changes(
    connection: sqlite3.Connection,
    changes: Sequence[StoreChange],
    now: float,
    known: Mapping[EntryKey, bytes] = NOTHING,
) -> ChangeResults:
    """Make the changes that find what they expect, each after the ones before it.

    Values that are `known` are not looked up.
    """
    held: dict[EntryKey, bytes] = {}
    unknown: list[EntryKey] = []
    for change in changes:
        for name in change.expect:
            place = change.space, name
            value = known.get(place)
            if value is not None:
                held[place] = value
            else:
                unknown.append(place)
    if unknown:
        held |= map_rows_to_values(find_entries(connection, unknown, now))
    outcome = _Outcome(held)
    is_made = [outcome.add(change, now) for change in changes]
    outcome.write(connection, now)
    return ChangeResults(is_made, outcome.lasting)


class _Outcome:
    """The effect of changes on entries, worked out before it is written."""

    def __init__(self, held: dict[EntryKey, bytes]) -> None:
        self._held = held
        self._put: dict[EntryKey, Row] = {}
        self._drop: set[EntryKey] = set()
        self._renew: dict[str, float] = {}
        self.lasting: dict[EntryKey, bytes | None] = {}

    def add(self, change: StoreChange, now: float) -> bool:
        space, put, drop, expect, ttl, _ = change
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
        for start in range(0, len(rows), _MAX_BATCH_SIZE):
            some = rows[start : start + _MAX_BATCH_SIZE]
            # Fill up to the size of a prepared statement: writing a row twice does no harm.
            some += some[:1] * (-len(some) % 8 if len(some) > 8 else 0)
            connection.execute(_PUT[len(some)], tuple(chain.from_iterable(some)))
        for space, expires in self._renew.items():
            connection.execute(_RENEW, (expires, space, now))


# -- Small values of an SQLite file as this process last saw them. They are valid until another process writes to it.
#
# A caller that finds its value here does not wait for a thread: committing a small state, or reading a checkpoint, then
# takes about a quarter less CPU time. Two numbers in a file beside the store's file show whether another process has
# written. The first is the number of the commit that began last. It is raised inside the transaction, so only one
# process raises it at a time. The second is the number of a commit that is done. It is written after the commit, so it
# may be late. The value is read from the store if the first number has changed, or if the two differ: then a process is
# committing, or died while it did.
#
# Writing never relies on this: in its transaction the writer asks SQLite itself whether others have written.


SMALL: Final = 512
MAX_CACHED_VALUES: Final = 8192
COMMIT_COUNTER_SUFFIX: Final = "-tally"

EntryKey = tuple[str, str]
"""A space and a name."""

_BYTES: Final = 16
_BEGUN: Final = 0
_DONE: Final = 1
_NEVER: Final = -1
_HIGHEST: Final = 1 << 62


class SqliteCache:
    """The small values of the file at `path`. Any thread may ask; one thread reads and one writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[EntryKey, bytes] = {}
        self._tally: memoryview | None = None
        self._known = self._mine = _NEVER
        self._lock = Lock()

    def open(self) -> None:
        """Open the file of the numbers, or create it with the permissions of the store's file. Raises OSError."""
        if self._tally is None:
            with self._lock:
                self._tally = self._tally or _map_tally(self._path)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear_values()
            self._tally = None

    def find_values(self, space: str, names: Sequence[str]) -> dict[str, bytes] | None:
        """The values of these names; None if one of them is not known for sure. Does not wait."""
        tally, known = self._tally, self._known
        if tally is None or tally[_BEGUN] != known:
            return None
        found: dict[str, bytes] = {}
        for name in names:
            value = self._values.get((space, name))
            if value is None:
                return None
            found[name] = value
        # Values of one commit must not be mixed with those of the next.
        return found if self._known == known else None

    # -- reading -----------------------------------------------------------------------------------------

    def begin_reading(self) -> int:
        """Call before values are read. Returns the number to give to `keep_read_values`."""
        with self._lock:
            if self._tally is None:
                return _NEVER
            number = self._tally[_BEGUN]
            is_done = self._tally[_DONE] == number
            if number != self._known:
                self._clear_values()
                if is_done:
                    self._known = number
            # Values read during a commit, even one of this process, may be from before or after it.
            return number if is_done else _NEVER

    def keep_read_values(self, values: Mapping[EntryKey, bytes], number: int) -> None:
        """Keep values that were read since `begin_reading`, and that do not expire."""
        with self._lock:
            # A commit of this process may have come after the read.
            if number != _NEVER and self._known == number:
                self._store_values(values)

    # -- writing, within a transaction -------------------------------------------------------------------

    def get_values(self, *, is_alone: bool) -> Mapping[EntryKey, bytes]:
        """The values in the store as it is now; none if another connection has written to it."""
        with self._lock:
            if self._tally is None or self._tally[_BEGUN] != self._known or not is_alone:
                self._clear_values()
            return self._values

    def begin_commit(self, places: Iterable[EntryKey]) -> None:
        """Announce a commit of these places: others may see its values before its writer hears that it is done.

        Raises OSError.
        """
        with self._lock:
            # If the store is being closed, another thread may just have dropped the file.
            self._tally = tally = self._tally or _map_tally(self._path)
            self._mine = self._known = tally[_BEGUN] = _next(tally[_BEGUN])
            for place in places:
                self._values.pop(place, None)

    def finish_commit(self, outcome: Mapping[EntryKey, bytes | None]) -> None:
        """The commit is done. `outcome` holds the new values; None if a place has no value, or one that expires."""
        with self._lock:
            # Another process may have written right after the transaction ended. Then these values are out of date.
            if self._known == self._mine:
                self._store_values(outcome)
            self._set_done()

    def abort_commit(self) -> None:
        """The commit failed. Whether anything was committed is not known."""
        with self._lock:
            self._clear_values()
            self._set_done()

    def _set_done(self) -> None:
        # If another process begins a commit right now, the two numbers differ until its end. That does no harm.
        if self._tally is not None and self._tally[_BEGUN] == self._mine:
            self._tally[_DONE] = self._mine
        self._mine = _NEVER

    def _store_values(self, values: Mapping[EntryKey, bytes | None]) -> None:
        if len(self._values) + len(values) > MAX_CACHED_VALUES:
            self._values.clear()
        for place, value in values.items():
            if value is not None and len(value) <= SMALL:
                self._values[place] = value
            else:
                self._values.pop(place, None)

    def _clear_values(self) -> None:
        self._values.clear()
        self._known = _NEVER


def _next(number: int) -> int:
    """The next number. In a file that is new or was emptied, it is a random number that no process knows."""
    return number + 1 if 0 < number < _HIGHEST else 1 + int.from_bytes(os.urandom(6))


def _map_tally(path: Path) -> memoryview:
    # Links are followed, as SQLite does, so that a store has one such file under all its names.
    store = os.path.realpath(path)
    status = os.stat(store)
    try:
        file = os.open(f"{store}{COMMIT_COUNTER_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        is_new = True
    except FileExistsError:
        file = os.open(f"{store}{COMMIT_COUNTER_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o600)
        is_new = False
    try:
        if is_new and os.name == "posix":
            # The umask must not matter. And if root creates the file, the owner of the store must still have access.
            if os.geteuid() == 0:
                os.fchown(file, status.st_uid, status.st_gid)
            os.fchmod(file, status.st_mode & 0o777)
        if os.fstat(file).st_size < _BYTES:
            # A byte is written, so that the file has its space on the disk. Only the last one: another process may have
            # written its number already.
            os.lseek(file, _BYTES - 1, os.SEEK_SET)
            os.write(file, b"\0")
        return memoryview(mmap.mmap(file, _BYTES)).cast("Q")
    finally:
        os.close(file)
