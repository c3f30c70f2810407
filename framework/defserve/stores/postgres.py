"""A store in Postgres, for servers that run as many processes. Each change is one call of a function in the database.

How it works: one table has all entries. `change_space` locks a space, compares what is expected, and writes; it is one
statement, and so one transaction and one round trip. When its answer arrives, the change is committed. How safe that is
is up to the settings of Postgres: `open` warns if they let it forget. With a synchronous standby, a change is kept
on both machines before it is acknowledged.

A connection that breaks on the way leaves open whether a change happened. Each row therefore has the id of the change
that wrote it. On a new connection the store waits for the lock of the space, looks for that id, writes the row again as
it is, and acknowledges the change if it was there. If not, it raises StoreUnavailable and does not repeat the change:
the first attempt may still be on its way, and could undo what others wrote in between. What only reads is repeated
once.

Nothing here belongs to a session of Postgres: no prepared statement, no setting, no lock outlives its transaction. So
a pooler may give each transaction to another session. Only `follow` listens, and where it can't, it looks at a table.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.errors import DefserveError, LimitExceeded, Refused
from defserve.stores.files import make_newer_format_message
from defserve.stores.postgres_connections import (
    POSTGRES_TIMEOUT_SECONDS,
    ConnectionLost,
    ConnectionPool,
    PostgresAddress,
    RolledBack,
    close_connection_now,
)
from defserve.stores.store import StoreChange, StoreCorrupt, StoreUnavailable

if TYPE_CHECKING:
    from psycopg import AsyncConnection

CHECK_TIMEOUT: Final = 3600.0
PAGE: Final = 256
MAX_TRIES: Final = 3
MAX_NAME_BYTES: Final = 1200
"""Of a space or a name: an index of Postgres has room for about 2,700 bytes in a row."""
SWEEP_SECONDS: Final = 60.0
MAX_SWEPT: Final = 10_000

# Seconds until a follower looks again: where it is told of news, and where it cannot be.
LISTEN_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.25

# Seconds until a broken connection is opened again: the first time, and at most.
AGAIN: Final = 0.25
MAX_PAUSE_SECONDS: Final = 4.0

log = get_logger()

MIGRATIONS: Final = (
    # Names are bytes: they may hold what a text of Postgres may not, and have one order in every database.
    """
    CREATE TABLE {schema}.entries (
        space bytea NOT NULL,
        name bytea NOT NULL,
        value bytea NOT NULL,
        change uuid NOT NULL,
        expires timestamptz,
        PRIMARY KEY (space, name)
    );
    CREATE INDEX entries_expiring ON {schema}.entries (expires) WHERE expires IS NOT NULL;
    CREATE TABLE {schema}.news (
        space bytea NOT NULL,
        about text NOT NULL,
        number bigint NOT NULL,
        PRIMARY KEY (space, about)
    );
    CREATE FUNCTION {schema}.change_space(
        change_id uuid, is_durable boolean, lock_key bigint, in_space bytea, ttl double precision,
        expected_names bytea[], expected_values bytea[], dropped_names bytea[], put_names bytea[], put_values bytea[]
    ) RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        moment timestamptz;
        until timestamptz;
    BEGIN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'default_transaction_isolation must be read committed' USING ERRCODE = '25001';
        END IF;
        PERFORM set_config('lock_timeout', '5s', true);
        IF NOT is_durable THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        PERFORM pg_advisory_xact_lock(lock_key);
        -- Each statement below sees what was committed before the lock was ours.
        moment := clock_timestamp();
        until := moment + ttl * interval '1 second';
        IF EXISTS (
            SELECT FROM unnest(expected_names, expected_values) AS wanted(name, value)
            LEFT JOIN LATERAL (
                SELECT entries.value FROM {schema}.entries
                WHERE entries.space = in_space AND entries.name = wanted.name
                    AND (entries.expires IS NULL OR entries.expires > moment)
                LIMIT 1
            ) AS held ON true
            WHERE held.value IS DISTINCT FROM wanted.value
        ) THEN
            RETURN false;
        END IF;
        IF ttl IS NOT NULL THEN
            DELETE FROM {schema}.entries WHERE space = in_space AND expires <= moment;
        END IF;
        IF cardinality(dropped_names) > 0 THEN
            DELETE FROM {schema}.entries WHERE space = in_space AND name = ANY(dropped_names);
        END IF;
        INSERT INTO {schema}.entries (space, name, value, change, expires)
            SELECT in_space, put.name, put.value, change_id, until
            FROM unnest(put_names, put_values) AS put(name, value)
            ON CONFLICT (space, name)
            DO UPDATE SET value = excluded.value, change = excluded.change, expires = excluded.expires;
        IF ttl IS NOT NULL THEN
            UPDATE {schema}.entries SET expires = until WHERE space = in_space AND name <> ALL(put_names);
        END IF;
        RETURN true;
    END $$;
    CREATE FUNCTION {schema}.announce_news(in_space bytea, in_about text, channel text)
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        -- News may be lost with a server that dies: whoever follows then reads everything again.
        PERFORM set_config('synchronous_commit', 'off', true);
        INSERT INTO {schema}.news AS known VALUES (in_space, in_about, 1)
            ON CONFLICT (space, about) DO UPDATE SET number = known.number + 1;
        PERFORM pg_notify(channel, '');
    END $$;
    """,
)
"""Each script upgrades a schema to the next format. The table `format` has the number of those that were run."""

_LIVE: Final = "(expires IS NULL OR expires > clock_timestamp())"
_CHANGE: Final = (
    "SELECT {schema}.change_space(%s::uuid, %s::boolean, %s::bigint, %s::bytea, %s::double precision, "
    "%s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[])"
)
_GET: Final = f"SELECT name, value FROM {{schema}}.entries WHERE space = %s AND name = ANY(%s) AND {_LIVE}"
# It writes, so that its commit waits for a synchronous standby: what can be read may be on the primary alone.
_CONFIRM_CHANGE: Final = (
    "UPDATE {schema}.entries SET change = change WHERE space = %s AND name = ANY(%s) AND change = %s RETURNING 1"
)
_SCAN: Final = (
    f"SELECT name, value FROM {{schema}}.entries WHERE space = %s AND name > %s AND {_LIVE} ORDER BY name LIMIT {PAGE}"
)
# One step over the index for each space, however much it holds.
_SPACES: Final = f"""
WITH RECURSIVE found AS (
    (SELECT space FROM {{schema}}.entries WHERE space >= %s AND {_LIVE} ORDER BY space LIMIT 1)
    UNION ALL
    SELECT (SELECT next.space FROM {{schema}}.entries AS next WHERE next.space > found.space AND {_LIVE}
            ORDER BY next.space LIMIT 1)
    FROM found WHERE found.space IS NOT NULL
)
SELECT space FROM found WHERE space IS NOT NULL LIMIT {PAGE}
"""
_SWEEP: Final = f"""
DELETE FROM {{schema}}.entries WHERE expires <= clock_timestamp() AND (space, name) IN (
    SELECT space, name FROM {{schema}}.entries WHERE expires <= clock_timestamp()
    LIMIT {MAX_SWEPT} FOR UPDATE SKIP LOCKED
)
"""
_READ_ALL: Final = "SELECT count(*) FROM {schema}.entries WHERE sha256(value) = ''"
_ANNOUNCE: Final = "SELECT {schema}.announce_news(%s::bytea, %s::text, %s::text)"
_NEWS: Final = "SELECT about, number FROM {schema}.news WHERE space = %s"
_LOCK: Final = "SELECT pg_advisory_xact_lock(%s::bigint)"
_SETTINGS: Final = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"

# Setting → the value with which Postgres may lose what it acknowledged.
_FORGETFUL: Final = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class PostgresStore:
    """A Store in the database at `url`, as `PostgresAddress` describes it.

    Raises UsageError if the extra is not installed or the address is not valid.
    """

    is_for_many = True
    """Several processes use it and take turns."""

    def __init__(self, url: str, *, timeout: float = POSTGRES_TIMEOUT_SECONDS) -> None:
        self.address, self._timeout = PostgresAddress(url), timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool = ConnectionPool(self._connect, self.address.pool_size, timeout)
        self._is_prepared, self._preparing = False, asyncio.Lock()
        self._swept = time.monotonic()

    async def open(self) -> None:
        for name, value in await self._read(_SETTINGS, list(_FORGETFUL)):
            if value == _FORGETFUL[name]:
                log.warning(
                    "the Postgres at %s may lose what it acknowledged: its %s is %s", self.address.where, name, value
                )

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        if not names:
            return {}
        wanted = {encode_name(name): name for name in names}
        rows = await self._read(_GET, encode_name(space), list(wanted))
        return {wanted[name]: value for name, value in rows}

    async def change(self, change: StoreChange) -> bool:
        space, put = encode_name(change.space), {encode_name(name): value for name, value in change.put.items()}
        id, key = uuid4(), self._make_lock_key(space)
        values = (
            *(id, change.is_durable, key, space, change.ttl),
            *([encode_name(name) for name in change.expect], list(change.expect.values())),
            [encode_name(name) for name in change.drop],
            *(list(put), list(put.values())),
        )
        try:
            ((is_made,),) = await self._repeat_unless_unknown(_CHANGE, values)
        except ConnectionLost:
            if not await self._has_happened(id, key, space, list(put)):
                raise
            is_made = True
        if change.ttl is not None and time.monotonic() - self._swept > SWEEP_SECONDS:
            await self._sweep()
        return is_made

    async def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        where, after = encode_name(space), b""
        while rows := await self._read(_SCAN, where, after):
            for name, value in rows:
                yield name.decode(), value
            after = rows[-1][0]

    async def spaces(self, prefix: str) -> AsyncIterator[str]:
        begin = encode_name(prefix)
        rows = await self._read(_SPACES, begin)
        while rows:
            for (space,) in rows:
                if not space.startswith(begin):
                    return
                yield space.decode()
            rows = await self._read(_SPACES, rows[-1][0] + b"\0")

    async def announce(self, space: str, about: str) -> None:
        """Tell those who `follow` a space of a change in it."""
        where = encode_name(space)
        await self._repeat_unless_unknown(_ANNOUNCE, (where, about, self._make_channel(where)))

    async def follow(self, space: str) -> AsyncGenerator[str]:
        """What is announced for a space, from here on. It never ends.

        An empty text says that something may have been missed: at the beginning, and after each broken connection. What
        is announced several times in a moment may be told once.
        """
        backoff, where = Backoff(AGAIN, MAX_PAUSE_SECONDS), encode_name(space)
        while True:
            follower = NewsFollower(self, where, self._make_channel(where))
            try:
                await follower.open(quietly=not backoff.is_reset)
                backoff.reset()
                yield ""
                while True:
                    for about in await follower.read_news():
                        yield about
            except Exception as error:
                # Nothing that is raised may end it: nobody would hear of a change again.
                if backoff.is_reset and not isinstance(error, DefserveError):
                    log.error("the store %s is in trouble", self.address.where, exc_info=error)
                await asyncio.sleep(backoff.next_wait())
            finally:
                follower.close()

    async def check(self) -> list[str]:
        try:
            await self._run_statement(_READ_ALL, (), CHECK_TIMEOUT)
        except StoreCorrupt as error:
            return [error.message]
        return []

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            self._pool.close()

    # -- statements --------------------------------------------------------------------------------------

    async def _read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement that changes nothing. If the connection breaks, it is asked once more."""
        try:
            return await self._run_statement(sql, values)
        except ConnectionLost:
            return await self._run_statement(sql, values)

    async def _repeat_unless_unknown(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement that changes something. It is repeated if Postgres says that it rolled it back."""
        for _ in range(MAX_TRIES - 1):
            with suppress(RolledBack):
                return await self._run_statement(sql, values)
        return await self._run_statement(sql, values)

    async def _has_happened(self, id: UUID, key: int, space: bytes, names: list[bytes]) -> bool:
        """Whether a change happened whose connection broke, and is kept. Waits for it, if it still has the lock."""
        with suppress(Refused):
            async with self._get_pool().borrow_connection() as connection:
                with self.address.guard_statements(connection, self._timeout):
                    async with connection.transaction():
                        await connection.execute(_LOCK, [key])
                        found = await connection.execute(self.address.make_sql(_CONFIRM_CHANGE), [space, names, id])
                        return await found.fetchone() is not None
        return False

    async def _run_statement(
        self, sql: str, values: Sequence[Any], timeout: float | None = None
    ) -> list[tuple[Any, ...]]:
        async with self._get_pool().borrow_connection() as connection:
            if not self._is_prepared:
                await self.prepare(connection)
            return await self._execute(connection, sql, values, timeout)

    async def _execute(
        self, connection: AsyncConnection[Any], sql: str, values: Sequence[Any] = (), timeout: float | None = None
    ) -> list[tuple[Any, ...]]:
        with self.address.guard_statements(connection, timeout or self._timeout):
            found = await connection.execute(self.address.make_sql(sql), values, binary=True)
            return await found.fetchall() if found.description else []

    async def _sweep(self) -> None:
        """Delete what has expired, once in a while. If there is much of it, the next change goes on."""
        self._swept = time.monotonic()  # before it waits: one change of many does it
        with suppress(Refused):
            async with self._get_pool().borrow_connection() as connection:
                with self.address.guard_statements(connection, self._timeout):
                    found = await connection.execute(self.address.make_sql(_SWEEP))
                    if found.rowcount == MAX_SWEPT:
                        self._swept -= SWEEP_SECONDS

    def _get_pool(self) -> ConnectionPool:
        # Connections belong to the loop they were made in.
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._pool.close()
            self._pool = ConnectionPool(self._connect, self.address.pool_size, self._timeout)
            self._loop, self._preparing = loop, asyncio.Lock()
        return self._pool

    async def _connect(self) -> AsyncConnection[Any]:
        return await self.address.connect(self._timeout)

    # -- the schema --------------------------------------------------------------------------------------

    async def prepare(self, connection: AsyncConnection[Any]) -> None:
        """Upgrade the schema, or refuse one that a later version wrote. Of many processes, one does it."""
        async with self._preparing:
            if self._is_prepared:
                return
            if await self._read_format(connection) < len(MIGRATIONS):
                with self.address.guard_statements(connection, self._timeout):
                    async with connection.transaction():
                        await connection.execute(_LOCK, [self._make_lock_key(b"")])
                        await self._migrate(connection)
            self._is_prepared = True

    async def _read_format(self, connection: AsyncConnection[Any]) -> int:
        """How many migrations were run. Raises StoreUnavailable if that is more than there are."""
        from psycopg.errors import InvalidSchemaName, UndefinedTable

        with self.address.guard_statements(connection, self._timeout):
            try:
                async with connection.transaction():  # inside another one, it keeps that alive
                    found = await connection.execute(self.address.make_sql("SELECT version FROM {schema}.format"))
                    row = await found.fetchone()
            except (InvalidSchemaName, UndefinedTable):
                return 0
        if row is not None and row[0] > len(MIGRATIONS):
            raise StoreUnavailable(make_newer_format_message("The store", row[0], len(MIGRATIONS)))
        return 0 if row is None else row[0]

    async def _migrate(self, connection: AsyncConnection[Any]) -> None:
        # Another process may have done it while this one waited for the lock.
        version = await self._read_format(connection)
        if version == len(MIGRATIONS):
            return
        # Who may use a schema that somebody else made may not be allowed to make one.
        found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.address.schema])
        if await found.fetchone() is None:
            await connection.execute(self.address.make_sql("CREATE SCHEMA {schema}"))
        if version == 0:
            await connection.execute(self.address.make_sql("CREATE TABLE {schema}.format (version integer NOT NULL)"))
            await connection.execute(self.address.make_sql("INSERT INTO {schema}.format VALUES (0)"))
        for script in MIGRATIONS[version:]:
            await connection.execute(self.address.make_sql(script))
        await connection.execute(self.address.make_sql("UPDATE {schema}.format SET version = %s"), [len(MIGRATIONS)])

    def _make_lock_key(self, space: bytes) -> int:
        """The advisory lock of a space; of an empty one, that of the schema itself."""
        digest = hashlib.sha256(self.address.schema.encode() + b"\0" + space).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def _make_channel(self, space: bytes) -> str:
        return f"defserve_{self._make_lock_key(space) & (1 << 64) - 1:016x}"


def encode_name(text: str) -> bytes:
    """A space or a name as it is stored. Raises LimitExceeded if it is too long for an index."""
    encoded = text.encode()
    if len(encoded) > MAX_NAME_BYTES:
        raise LimitExceeded(
            f"A name in the store has at most {MAX_NAME_BYTES} bytes",
            data={"limit": "store_name_bytes", "max": MAX_NAME_BYTES},
        )
    return encoded


class NewsFollower:
    """Waits on a connection of its own for what is announced for one space.

    Announcing raises a number for each thing that is told, so nothing is missed between two looks. A notification only
    says that it is time to look. Behind a pooler none arrives, and the numbers are looked at again and again.
    """

    def __init__(self, store: PostgresStore, space: bytes, channel: str) -> None:
        self._store, self._space, self._channel = store, space, channel
        self._connection: AsyncConnection[Any] | None = None
        self._numbers: dict[str, int] = {}
        self.can_listen = False

    async def open(self, *, quietly: bool = False) -> None:
        """Connect, listen if that is possible, and read the numbers as they are."""
        address = self._store.address
        connection = self._connection = await address.connect(POSTGRES_TIMEOUT_SECONDS)
        await self._store.prepare(connection)
        with address.guard_statements(connection, POSTGRES_TIMEOUT_SECONDS, quietly=quietly):
            found = await connection.execute("SELECT pg_backend_pid()")
            row = await found.fetchone()
            # A pooler gives its clients numbers of its own, and each transaction another process.
            self.can_listen = row is not None and row[0] == connection.info.backend_pid
            if self.can_listen:
                await connection.execute(f'LISTEN "{self._channel}"'.encode())
        self._numbers = await self._read_numbers(connection)

    async def read_news(self) -> list[str]:
        """Wait until there may be something new, and return what was announced since the last time."""
        assert self._connection is not None
        if not self.can_listen:
            await asyncio.sleep(POLL_SECONDS)
        else:
            with self._store.address.guard_statements(self._connection, LISTEN_SECONDS + POSTGRES_TIMEOUT_SECONDS):
                async for _ in self._connection.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                    pass
        numbers = await self._read_numbers(self._connection)
        news = [about for about, number in numbers.items() if self._numbers.get(about) != number]
        self._numbers = numbers
        return news

    def close(self) -> None:
        if self._connection is not None:
            close_connection_now(self._connection)

    async def _read_numbers(self, connection: AsyncConnection[Any]) -> dict[str, int]:
        address = self._store.address
        with address.guard_statements(connection, POSTGRES_TIMEOUT_SECONDS):
            found = await connection.execute(address.make_sql(_NEWS), [self._space])
            return dict(await found.fetchall())
