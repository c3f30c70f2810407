"""A store in an SQLite file: an acknowledged change is on the disk. One thread writes, another reads.

It uses a write-ahead log with `synchronous=FULL`: a commit returns after its fsync, and changes that come together
share one. Several processes may use one file on one machine, but not over a network file system. Once a change is
acknowledged to one of them, none of them reads an older value. `SqliteCache` has the values that the event loop may
return without asking a thread. After an error the next use opens a new connection, so the store recovers as soon as the
disk has room again or the file can be written.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread
from typing import Any, Final, Generic, TypeVar

from defserve.base.redaction import get_logger
from defserve.errors import Refused, UsageError
from defserve.stores.files import UNOWNED_VALUES_PROBLEM, make_newer_format_message
from defserve.stores.sqlite_entries import (
    COMMIT_COUNTER_SUFFIX,
    UNEXPIRED_CONDITION,
    EntryKey,
    EntryRequest,
    SqliteCache,
    apply_changes,
    find_entries,
    map_rows_to_lasting_values,
    map_rows_to_values,
)
from defserve.stores.store import (
    PERMANENT_SPACES,
    SpaceFamily,
    StoreBusy,
    StoreChange,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

APPLICATION: Final = 0x64656673
"""The application id of the file, which tells it from SQLite files of other programs."""

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
    # Rows are in the order they were written, so rows written together are on few pages.
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
    # From here on spaces name their server. What does not, and lasts, is not upgraded: see `UNOWNED_VALUES_PROBLEM`.
    "",
)
"""Each script upgrades a file to the next format. `user_version` counts the scripts that were run. That is the format
of the file: of its schema and of the values in it."""

FIRST_FORMAT_NAMING_SERVERS: Final = 3
"""The first format in which spaces name their server."""
BUSY: Final = 5.0
PAGE: Final = 256

log = get_logger()

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

# For the log, which may say where.
_BEGIN_ANEW: Final = "or move it away, with the files whose names begin like its own: a new one is made"
_FIXES: Final[dict[int, str]] = {
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_READONLY: "let the user of this process write the file and its folder",
    sqlite3.SQLITE_PERM: "let the user of this process write the file and its folder",
    sqlite3.SQLITE_CORRUPT: f"restore it from a backup, {_BEGIN_ANEW}",
    sqlite3.SQLITE_NOTADB: f"name another file, {_BEGIN_ANEW}",
    sqlite3.SQLITE_BUSY: "find the process that keeps it locked, and end it or give it a file of its own",
    sqlite3.SQLITE_LOCKED: "find the process that keeps it locked, and end it or give it a file of its own",
}

# Errors of the system about the cache's file → codes of SQLite.
_CODES: Final[dict[int | None, int]] = {
    errno.EACCES: sqlite3.SQLITE_READONLY,
    errno.EPERM: sqlite3.SQLITE_READONLY,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
}

Read = EntryRequest | Callable[[sqlite3.Connection], Any]


class SqliteStore:
    """A Store in the file at `path`. A missing file is created, for its owner alone."""

    def __init__(
        self, path: str | os.PathLike[str], *, busy: float = BUSY, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path).expanduser()
        self._clock, self._pid = clock, 0
        self._cache = cache = SqliteCache(self.path)
        writer, reader = _Connection(self.path, busy, cache), _Connection(self.path, busy, cache)
        work = _WriterWork(writer, reader, clock)
        reading = _ReaderWork(reader, clock, work.leave_moved_file)
        self._writer: WorkerThread[StoreChange, bool] = WorkerThread("defserve-writer", work, work.leave)
        self._reader: WorkerThread[Read, Any] = WorkerThread("defserve-reader", reading, reader.drop)

    async def open(self) -> None:
        self._claim()
        await self._reader.do(lambda connection: None)

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        self._claim()
        known = self._cache.find_values(space, names)
        return known if known is not None else await self._reader.do(EntryRequest(space, names))

    async def change(self, change: StoreChange) -> bool:
        self._claim()
        return await self._writer.do(change)

    async def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        where = f"space = ? AND name > ? AND {UNEXPIRED_CONDITION}"
        sql = f"SELECT name, value FROM entries WHERE {where} ORDER BY name LIMIT {PAGE}"
        after = ""
        while rows := await self._rows(sql, space, after, self._clock()):
            for name, value in rows:
                yield name, value
            after = rows[-1][0]

    async def spaces(self, prefix: str) -> AsyncIterator[str]:
        # One step over the index for each space, however much it holds.
        sql = f"SELECT space FROM entries WHERE space %s ? AND {UNEXPIRED_CONDITION} ORDER BY space LIMIT 1"
        rows = await self._rows(sql % ">=", prefix, self._clock())
        while rows and rows[0][0].startswith(prefix):
            yield rows[0][0]
            rows = await self._rows(sql % ">", rows[0][0], self._clock())

    async def check(self) -> list[str]:
        return [text for (text,) in await self._rows("PRAGMA integrity_check") if text != "ok"]

    async def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._pid = 0  # a call that comes meanwhile opens it again
        await self._writer.close()
        await self._reader.close()
        self._cache.close()

    def _claim(self) -> None:
        """Refuse to work in a forked process: there SQLite would not have the locks that it believes it has."""
        if self._pid != (pid := os.getpid()):
            if self._pid:
                raise UsageError(
                    "this store was opened before the process forked",
                    fix="open a store in each process, or close it before the fork",
                )
            self._pid = pid

    async def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        self._claim()
        return await self._reader.do(lambda connection: connection.execute(sql, values).fetchall())


class _WriterWork:
    """Makes the changes that came together in one transaction, so that they share its fsync."""

    def __init__(self, connection: _Connection, reader: _Connection, clock: Callable[[], float]) -> None:
        self._connection, self._reader, self._clock = connection, reader, clock
        self._cache, self._version = connection.cache, -1
        self._swept = clock()

    def __call__(self, changes: Sequence[StoreChange], is_retry: bool = False) -> Sequence[bool | Exception]:
        try:
            return self._commit(changes)
        except Exception as error:
            # The connections of a process share SQLite's knowledge of a file, so both are closed to start afresh.
            self.leave()
            self._reader.drop()
            self._cache.abort_commit()
            if _one_is_at_fault(error, changes):
                return [outcome for change in changes for outcome in self([change])]
            # Only a new connection sees that a file can be written again.
            if _code(error) == sqlite3.SQLITE_READONLY and not is_retry:
                return self(changes, is_retry=True)
            problem = self._connection.problem(error)
            # Each caller raises an exception of its own.
            return [copy(problem) for _ in changes]

    def _commit(self, changes: Sequence[StoreChange]) -> Sequence[bool]:
        self.leave_moved_file()
        with self._connection.lock:
            return self._commit_locked(changes)

    def _commit_locked(self, changes: Sequence[StoreChange]) -> Sequence[bool]:
        connection = self._connection.get()
        connection.execute("BEGIN IMMEDIATE")
        now = self._clock()  # after the wait for the lock
        # SQLite changes this number whenever another connection has committed.
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        known = self._cache.get_values(is_alone=version == self._version)
        self._version = version
        made = apply_changes(connection, changes, now, known)
        if made.outcome:
            self._cache.open()
            self._sweep(connection, now)
            self._cache.begin_commit(made.outcome)
        connection.execute("COMMIT")
        if made.outcome:
            self._cache.finish_commit(made.outcome)
        return made.is_made

    def leave(self) -> None:
        with self._connection.lock:
            self._connection.drop()
            self._version = -1  # the version belongs to that connection; another's may be the same by chance

    def leave_moved_file(self) -> None:
        """Go on with the file that is at the path now, if another one was put there: what is written to the old one is
        lost. Either thread calls it, and closes both connections: SQLite's locks tell them apart no more."""
        if self._connection.is_moved or self._reader.is_moved:
            self.leave()
            self._reader.drop()
            self._cache.close()
            log.warning(
                "the store %s was removed or replaced while it was in use: from now on the file that is there counts",
                self._connection.path,
            )

    def _sweep(self, connection: sqlite3.Connection, now: float) -> None:
        if not 0 <= now - self._swept < 60:
            self._swept = now
            connection.execute("DELETE FROM entries WHERE expires <= ?", (now,))


class _ReaderWork:
    """Answers all lookups together, and every other question by itself."""

    def __init__(
        self, connection: _Connection, clock: Callable[[], float], leave_moved_file: Callable[[], None]
    ) -> None:
        self._connection, self._clock, self._cache = connection, clock, connection.cache
        self._leave_moved_file = leave_moved_file

    def __call__(self, reads: Sequence[Read]) -> Sequence[Any]:
        places = {place for read in reads if isinstance(read, EntryRequest) for place in read.keys}
        found: Any = self._one(lambda connection: self._find(connection, places)) if places else {}
        if isinstance(found, Exception) and _one_is_at_fault(found, reads):
            return [outcome for read in reads for outcome in self([read])]
        return [_share(read, found) if isinstance(read, EntryRequest) else self._one(read) for read in reads]

    def _find(self, connection: sqlite3.Connection, places: set[EntryKey]) -> dict[EntryKey, bytes]:
        with suppress(OSError):  # a process that may not write reads from the store each time
            self._cache.open()
        number = self._cache.begin_reading()
        rows = find_entries(connection, places, self._clock())
        self._cache.keep_read_values(map_rows_to_lasting_values(rows), number)
        return map_rows_to_values(rows)

    def _one(self, read: Callable[[sqlite3.Connection], Any]) -> Any:
        """What it reads, or the exception for its caller."""
        try:
            self._leave_moved_file()
            with self._connection.lock:
                return read(self._connection.get())
        except Exception as error:
            self._connection.drop()
            return self._connection.problem(error)


def _one_is_at_fault(error: Exception, jobs: Sequence[object]) -> bool:
    """Whether one of several jobs is at fault, such as a name that cannot be written. Then each is done alone."""
    return len(jobs) > 1 and not isinstance(error, sqlite3.Error | OSError | Refused)


def _share(lookup: EntryRequest, found: dict[EntryKey, bytes] | Exception) -> dict[str, bytes] | Exception:
    # Each caller raises an exception of its own.
    return copy(found) if isinstance(found, Exception) else lookup.pick_requested_values(found)


class _Connection:
    """A connection that is opened when it is needed, and again after it was dropped. Used by one thread at a time."""

    def __init__(self, path: Path, busy: float, cache: SqliteCache) -> None:
        self.path, self._busy, self.lock, self.cache = path, busy, RLock(), cache
        self._open: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None

    @property
    def is_moved(self) -> bool:
        """Whether it is open, and its path does not lead to its file any more."""
        if (file := self._file) is None:
            return False
        try:
            return not os.path.samestat(file, os.stat(self.path))
        except FileNotFoundError:
            return True

    def get(self) -> sqlite3.Connection:
        if self._open is None:
            _make_private(self.path)
            file = os.stat(self.path)  # if another is put there now, it is found moved, and opened again
            opened = sqlite3.connect(self.path, timeout=self._busy, isolation_level=None, check_same_thread=False)
            try:
                _prepare(opened)
            except BaseException:
                opened.close()
                raise
            self._open, self._file = opened, file
        return self._open

    def drop(self) -> None:
        """Close it, which undoes what was not committed."""
        with self.lock:
            opened, self._open, self._file = self._open, None, None
            if opened is not None:
                with suppress(sqlite3.Error):
                    opened.close()

    def problem(self, error: Exception) -> Exception:
        """The exception for the caller."""
        if not isinstance(error, sqlite3.Error | OSError):
            log.error("the store %s is in trouble: %s", self.path, error)
            return error
        log.error("the store %s is in trouble: %s; fix: %s", self.path, error, self._fix(error))
        kind, text = _PROBLEMS.get(_code(error), _UNREADABLE)
        return kind(text, data={"retry_after_ms": int(self._busy * 1000)} if kind is StoreBusy else None)

    def _fix(self, error: Exception) -> str:
        """What to do, for the log. Does not raise, though the folders themselves may be the trouble."""
        try:
            folder = self.path.absolute().parent
        except OSError:
            return "start this process in a folder that exists, or name the file by its absolute path"
        with suppress(OSError):  # a folder above cannot be entered
            if not folder.is_dir():
                return f"make its folder: mkdir -p {folder}"
        return _FIXES.get(_code(error), "look at the owner and the permissions of the file and its folder")


def _code(error: Exception) -> int:
    """SQLite's primary result code, without its extension."""
    if isinstance(error, OSError):
        return _CODES.get(error.errno, 0)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _make_private(path: Path) -> None:
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    mode, real = path.stat().st_mode & 0o777, os.path.realpath(path)
    for side in (f"{real}-wal", f"{real}-shm", f"{real}{COMMIT_COUNTER_SUFFIX}"):
        # They were created with the mode the file had then. If it was read-only, they must not stay so.
        with suppress(OSError):
            if os.stat(side).st_mode & 0o777 != mode:
                os.chmod(side, mode)


def _prepare(connection: sqlite3.Connection) -> None:
    """Set up a connection, and bring the file to the format of this version.

    Raises StoreUnavailable, with the file untouched, if it belongs to another program or a later version, or if 0.1.0
    wrote something that lasts: it does not say which server that belongs to.
    """
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN")  # so that another process cannot set the file up between two of our looks at it
    found = _format(connection)
    connection.execute("COMMIT")
    if found == len(MIGRATIONS):
        return
    _use_wal(connection)
    connection.execute("BEGIN IMMEDIATE")
    found = _format(connection)  # another process may have migrated it meanwhile
    migrate_sqlite_format(connection, found)
    connection.execute("COMMIT")


def migrate_sqlite_format(connection: sqlite3.Connection, found: int) -> None:
    """Bring a file of the format `found` to that of this version, within the caller's transaction."""
    for statement in ";".join(MIGRATIONS[found:]).split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _refuse_unnamed(connection: sqlite3.Connection, found: int) -> None:
    """Raises StoreUnavailable if a file of an earlier format has a value that lasts and names no server."""
    if not 0 < found < FIRST_FORMAT_NAMING_SERVERS:
        return
    for name in PERMANENT_SPACES:
        size = len(name) if isinstance(name, SpaceFamily) else -1
        sql = f"SELECT 1 FROM entries WHERE {'space' if size < 0 else f'substr(space, 1, {size})'} = ? LIMIT 1"
        if connection.execute(sql, (name,)).fetchone() is not None:
            raise StoreUnavailable(UNOWNED_VALUES_PROBLEM)


def _format(connection: sqlite3.Connection) -> int:
    """The format of the file; 0 if it is new. Raises StoreUnavailable if this version cannot use it."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION and (
        version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    ):
        raise StoreUnavailable("The SQLite file belongs to another application")
    if version > len(MIGRATIONS):
        raise StoreUnavailable(make_newer_format_message("The store", version, len(MIGRATIONS)))
    _refuse_unnamed(connection, version)
    return version


def _use_wal(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for a lock here. If several processes begin at once, some have to try again."""
    for tries_left in reversed(range(100)):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or not tries_left:
                raise
            time.sleep(0.02)


# -- A thread that works for event loops: it takes all jobs that are waiting at once.


J = TypeVar("J")
R = TypeVar("R")

MAX_BATCH_JOBS: Final = 512
"""Jobs in one group."""


class WorkerThread(Generic[J, R]):
    """Hands jobs to `work`, in a thread of its own, in the order they came.

    `work` returns for each job its result, or the exception that its caller is to raise. It should not raise. If it
    does, every caller of the group gets a RuntimeError with that cause, and the thread goes on. The thread starts with
    the first job, and again in a process that was forked meanwhile. `leave` is called in the thread when it ends.
    """

    def __init__(
        self, name: str, work: Callable[[Sequence[J]], Sequence[R | Exception]], leave: Callable[[], None]
    ) -> None:
        self._name, self._work, self._leave = name, work, leave
        self._lock = Lock()
        self._thread: Thread | None = None
        self._last: Thread | None = None
        self._pid = 0
        self._queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None] = SimpleQueue()

    async def do(self, job: J) -> R:
        """The result of a job; raises its exception. If the caller is cancelled, the job is still done."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._start()
            self._queue.put((job, future))
        return await future

    async def close(self) -> None:
        """Wait until every job is done. The next job starts a new thread."""
        with self._lock:
            if self._pid != os.getpid():
                return
            if self._thread is not None:
                self._last, self._thread = self._thread, None
                self._queue.put(None)
            last = self._last
        if last is not None:
            await asyncio.get_running_loop().run_in_executor(None, last.join)

    def _start(self) -> None:
        queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None] = SimpleQueue()
        last = self._last if self._pid == os.getpid() else None
        # A daemon thread: a job that was not acknowledged when the process ends was never promised.
        thread = Thread(target=self._run, args=(queue, last), name=self._name, daemon=True)
        thread.start()
        self._thread, self._queue, self._pid, self._last = thread, queue, os.getpid(), None

    def _run(self, queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None], last: Thread | None) -> None:
        if last is not None:
            last.join()  # it was closed, but may still be at work
        try:
            while True:
                jobs, futures, is_last = _waiting(queue)
                if jobs:
                    _settle(futures, self._outcomes(jobs))
                if is_last:
                    return
        finally:
            self._leave()

    def _outcomes(self, jobs: Sequence[J]) -> Sequence[R | Exception]:
        """One outcome for each job, because a caller without one would wait for ever."""
        try:
            outcomes = self._work(jobs)
            if len(outcomes) == len(jobs):
                return outcomes
            cause: BaseException = ValueError(f"{len(outcomes)} outcomes of {len(jobs)} jobs")
        except BaseException as error:
            cause = error
        return [_make_thread_error(self._name, cause) for _ in jobs]


def _make_thread_error(name: str, cause: BaseException) -> RuntimeError:
    # Not the cause itself: each caller raises an exception of its own, and a future does not take every kind.
    error = RuntimeError(f"the thread {name} could not work: {cause!r}")
    error.__cause__ = cause
    return error


def _waiting(
    queue: SimpleQueue[tuple[J, asyncio.Future[R]] | None],
) -> tuple[list[J], list[asyncio.Future[R]], bool]:
    """The waiting jobs, their futures, and whether the thread is to end after them. Waits for the first one."""
    jobs: list[J] = []
    futures: list[asyncio.Future[R]] = []
    item = queue.get()
    while item is not None:
        jobs.append(item[0])
        futures.append(item[1])
        if len(jobs) == MAX_BATCH_JOBS:
            return jobs, futures, False
        try:
            item = queue.get_nowait()
        except Empty:
            return jobs, futures, False
    return jobs, futures, True


def _settle(futures: list[asyncio.Future[R]], outcomes: Sequence[R | Exception]) -> None:
    """Tell each caller in its own loop. Each loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[R], R | Exception]]] = {}
    for future, outcome in zip(futures, outcomes, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_futures, settled)
        except RuntimeError:
            # The loop is closed, so nobody waits any more.
            continue


def _settle_futures(settled: list[tuple[asyncio.Future[R], R | Exception]]) -> None:
    for future, outcome in settled:
        if future.done():  # its caller was cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
