"""A store in an SQLite file: acknowledged is on the disk. Written by one thread, read by another, never by the loop.

Write-ahead log with `synchronous=FULL`: a commit returns after its fsync, and what comes together shares one. Several
processes may use one file on one machine (not over a network file system); what the loop may know without asking is
up to `sqlite_seen`. After trouble the connection is made anew with the next use, so that a disk with room again, or a
file made writable, is all it takes.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from threading import RLock
from typing import Any, Final

from defserve.errors import Refused, UsageError
from defserve.stores.sqlite.entries import LIVE, Lookup, apply_changes, find, lasting, values
from defserve.stores.sqlite.seen import BESIDE, Place, Seen
from defserve.stores.sqlite.worker import Outcome, WorkerThread
from defserve.stores.store import StoreBusy, StoreChange, StoreCorrupt, StoreFull, StoreReadOnly, StoreUnavailable

APPLICATION: Final = 0x64656673
"""The file's application id, which tells it from anybody else's SQLite file."""

MIGRATIONS: Final = (
    """
    CREATE TABLE entries (
        space TEXT NOT NULL,
        name TEXT NOT NULL,
        value BLOB NOT NULL,
        expires REAL,
        PRIMARY KEY (space, name)
    ) WITHOUT ROWID;
    CREATE INDEX expiring ON entries (expires) WHERE expires IS NOT NULL;
    """,
    # With rows in the order of their making, those written together are on few pages.
    """
    CREATE TABLE made_anew (
        space TEXT NOT NULL,
        name TEXT NOT NULL,
        value BLOB NOT NULL,
        expires REAL,
        PRIMARY KEY (space, name)
    );
    INSERT INTO made_anew SELECT space, name, value, expires FROM entries;
    DROP TABLE entries;
    ALTER TABLE made_anew RENAME TO entries;
    CREATE INDEX expiring ON entries (expires) WHERE expires IS NOT NULL;
    """,
)
"""What makes each version of the schema of the one before. `user_version` says how many were done."""

BUSY: Final = 5.0
PAGE: Final = 256

log = logging.getLogger("defserve")

Problem = type[StoreUnavailable] | type[StoreFull] | type[StoreBusy]

# Peers are told what is wrong, never where.
_READ_ONLY: Final[tuple[Problem, str]] = (StoreReadOnly, "The store cannot be written")
_BUSY: Final[tuple[Problem, str]] = (StoreBusy, "The store is kept locked by another process")
_UNREADABLE: Final[tuple[Problem, str]] = (StoreUnavailable, "The store cannot be opened, read or written")
_PROBLEMS: Final[dict[int, tuple[Problem, str]]] = {
    sqlite3.SQLITE_FULL: (StoreFull, "The disk of the store is full"),
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CORRUPT: (StoreCorrupt, "The store is damaged"),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "The store is not an SQLite file"),
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
}

# What the system says of the file beside the store's.
_CODES: Final[dict[int | None, int]] = {
    errno.EACCES: sqlite3.SQLITE_READONLY,
    errno.EPERM: sqlite3.SQLITE_READONLY,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
}

Read = Lookup | Callable[[sqlite3.Connection], Any]


class SqliteStore:
    """A Store in the file at `path`, which is made, for its owner alone, if it is not there."""

    def __init__(
        self, path: str | os.PathLike[str], *, busy: float = BUSY, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path).expanduser()
        self._clock, self._pid = clock, 0
        self._seen = seen = Seen(self.path)
        writer, reader = _Connection(self.path, busy, seen), _Connection(self.path, busy, seen)
        writing = _Writing(writer, reader, clock)
        self._writer: WorkerThread[StoreChange, bool] = WorkerThread("defserve-writer", writing, writing.leave)
        self._reader: WorkerThread[Read, Any] = WorkerThread("defserve-reader", _Reading(reader, clock), reader.drop)

    async def open(self) -> None:
        self._claim()
        await self._reader.do(lambda connection: None)

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        self._claim()
        seen = self._seen.find(space, names)
        return seen if seen is not None else await self._reader.do(Lookup(space, names))

    async def change(self, change: StoreChange) -> bool:
        self._claim()
        return await self._writer.do(change)

    async def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        sql = f"SELECT name, value FROM entries WHERE space = ? AND name > ? AND {LIVE} ORDER BY name LIMIT {PAGE}"
        after = ""
        while rows := await self._rows(sql, space, after, self._clock()):
            for name, value in rows:
                yield name, value
            after = rows[-1][0]

    async def spaces(self, prefix: str) -> AsyncIterator[str]:
        # One step over the index for each space, however much it holds.
        sql = f"SELECT space FROM entries WHERE space %s ? AND {LIVE} ORDER BY space LIMIT 1"
        rows = await self._rows(sql % ">=", prefix, self._clock())
        while rows and rows[0][0].startswith(prefix):
            yield rows[0][0]
            rows = await self._rows(sql % ">", rows[0][0], self._clock())

    async def check(self) -> list[str]:
        rows = await self._rows("PRAGMA integrity_check")
        return [text for (text,) in rows if text != "ok"]

    async def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._pid = 0  # who comes meanwhile opens it again
        await self._writer.close()
        await self._reader.close()
        self._seen.close()

    def _claim(self) -> None:
        """SQLite must not be carried into a forked process: it would go without the locks it thinks it has."""
        if self._pid != (pid := os.getpid()):
            if self._pid:
                raise UsageError(
                    "this store was opened before the process forked", fix="open one in each process, or close it first"
                )
            self._pid = pid

    async def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        self._claim()
        return await self._reader.do(lambda connection: connection.execute(sql, values).fetchall())


class _Writing:
    """Makes the changes that came together in one transaction, so that they share its fsync."""

    def __init__(self, connection: _Connection, reader: _Connection, clock: Callable[[], float]) -> None:
        self._connection, self._reader, self._clock = connection, reader, clock
        self._seen, self._version = connection.seen, -1
        self._swept = clock()

    def __call__(self, changes: Sequence[StoreChange]) -> Sequence[Outcome]:
        try:
            return self._commit(changes)
        except Exception as error:
            self._drop()
            if _is_of_one(error, changes):
                return [outcome for change in changes for outcome in self([change])]
            if _code(error) != sqlite3.SQLITE_READONLY:
                return self._failed(changes, error)
        # It may be writable by now: that shows only to connections made since.
        try:
            return self._commit(changes)
        except Exception as error:
            self._drop()
            return self._failed(changes, error)

    def _commit(self, changes: Sequence[StoreChange]) -> Sequence[Outcome]:
        connection = self._connection.get()
        connection.execute("BEGIN IMMEDIATE")
        now = self._clock()  # it may have waited for its turn
        # SQLite changes it whenever another connection has committed.
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        known = self._seen.known(is_alone=version == self._version)
        self._version = version
        made = apply_changes(connection, changes, now, known)
        if made.outcome:
            self._seen.open()
            self._sweep(connection, now)
            self._seen.begin(made.outcome)
        connection.execute("COMMIT")
        if made.outcome:
            self._seen.end(made.outcome)
        return [(True, is_made) for is_made in made.is_made]

    def leave(self) -> None:
        self._connection.drop()
        self._version = -1  # of that connection: another's may be the same by chance

    def _drop(self) -> None:
        # SQLite lets a process's connections share what it knows of a file, so one alone would not start afresh.
        self.leave()
        self._reader.drop()
        self._seen.fail()

    def _failed(self, changes: Sequence[StoreChange], error: Exception) -> Sequence[Outcome]:
        problem = self._connection.problem(error)
        # Each caller raises one of its own.
        return [(False, copy(problem)) for _ in changes]

    def _sweep(self, connection: sqlite3.Connection, now: float) -> None:
        if not 0 <= now - self._swept < 60:
            self._swept = now
            connection.execute("DELETE FROM entries WHERE expires <= ?", (now,))


class _Reading:
    """Answers all who want values by their names at once, and every other question for itself."""

    def __init__(self, connection: _Connection, clock: Callable[[], float]) -> None:
        self._connection, self._clock, self._seen = connection, clock, connection.seen

    def __call__(self, reads: Sequence[Read]) -> Sequence[Outcome]:
        wanted = {place for read in reads if isinstance(read, Lookup) for place in read.places}
        is_good, found = True, dict[Place, bytes]()
        if wanted:
            is_good, found = self._one(lambda connection: self._find(connection, wanted))
            if not is_good and _is_of_one(found, reads):
                return [outcome for read in reads for outcome in self([read])]
        return [_share(read, is_good, found) if isinstance(read, Lookup) else self._one(read) for read in reads]

    def _find(self, connection: sqlite3.Connection, wanted: set[Place]) -> dict[Place, bytes]:
        with suppress(OSError):  # who may only read has to look each time
            self._seen.open()
        number = self._seen.look()
        rows = find(connection, wanted, self._clock())
        self._seen.learn(lasting(rows), number)
        return values(rows)

    def _one(self, read: Callable[[sqlite3.Connection], Any]) -> tuple[bool, Any]:
        try:
            with self._connection.lock:
                return True, read(self._connection.get())
        except Exception as error:
            self._connection.drop()
            return False, self._connection.problem(error)


def _is_of_one(error: Exception, jobs: Sequence[object]) -> bool:
    """Whether something is wrong with one of several, such as a name that cannot be written. Then each is alone."""
    return len(jobs) > 1 and not isinstance(error, sqlite3.Error | OSError | Refused)


def _share(wanted: Lookup, is_good: bool, found: Any) -> Outcome:
    # Each caller raises an exception of its own.
    return is_good, wanted.among(found) if is_good else copy(found)


class _Connection:
    """A connection that is made when it is needed, and again after it was dropped. Used by one thread at a time."""

    def __init__(self, path: Path, busy: float, seen: Seen) -> None:
        self._path, self._busy, self.lock, self.seen = path, busy, RLock(), seen
        self._open: sqlite3.Connection | None = None

    def get(self) -> sqlite3.Connection:
        if self._open is None:
            _make_private(self._path)
            opened = sqlite3.connect(self._path, timeout=self._busy, isolation_level=None, check_same_thread=False)
            try:
                _prepare(opened)
            except BaseException:
                opened.close()
                raise
            self._open = opened
        return self._open

    def drop(self) -> None:
        """Close it, and so undo what was not committed."""
        with self.lock:
            opened, self._open = self._open, None
            if opened is not None:
                with suppress(sqlite3.Error):
                    opened.close()

    def problem(self, error: Exception) -> Exception:
        """What to tell the caller."""
        log.error("the store %s is in trouble: %s", self._path, error)
        if not isinstance(error, sqlite3.Error | OSError):
            return error
        kind, text = _PROBLEMS.get(_code(error), _UNREADABLE)
        return kind(text, data={"retry_after_ms": int(self._busy * 1000)} if kind is StoreBusy else None)


def _code(error: Exception) -> int:
    """SQLite's primary result code; the rest of it says more than anybody asks."""
    if isinstance(error, OSError):
        return _CODES.get(error.errno, 0)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _make_private(path: Path) -> None:
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    mode = path.stat().st_mode & 0o777
    real = os.path.realpath(path)
    for side in (f"{real}-wal", f"{real}-shm", f"{real}{BESIDE}"):
        # Made with the mode the file had then; one that was read-only must not stay so behind its back.
        with suppress(OSError):
            if os.stat(side).st_mode & 0o777 != mode:
                os.chmod(side, mode)


def _prepare(connection: sqlite3.Connection) -> None:
    """Settings, and the schema as this version wants it. Raises StoreUnavailable for a file that is not ours."""
    connection.execute("PRAGMA synchronous = FULL")
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != len(MIGRATIONS):
        _use_wal(connection)
        _migrate(connection)
    elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise StoreUnavailable("The SQLite file belongs to another application")


def _use_wal(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for its turn here, so of several that begin at once some have to ask again."""
    for tries_left in reversed(range(100)):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or not tries_left:
                raise
            time.sleep(0.02)


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if application != APPLICATION and not is_empty:
        raise StoreUnavailable("The SQLite file belongs to another application")
    if version > len(MIGRATIONS):
        raise StoreUnavailable(
            f"The store has version {version}, this defserve knows up to {len(MIGRATIONS)}; upgrade defserve"
        )
    for statement in ";".join(MIGRATIONS[version:]).split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    connection.execute("COMMIT")
