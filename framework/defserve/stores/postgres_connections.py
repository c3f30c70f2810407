"""Connections to a Postgres: its address, a bounded pool, the time of a statement, and errors in the words of a store.

`postgres://user:password@host:5432/database`, or `postgresql://…`, takes every parameter that libpq knows, such as
`sslmode=verify-full` or `host=/run/postgresql`; several hosts are separated by commas. `?schema=` names the schema that
has the tables, `?pool=` how many connections a process has at most.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from defserve.base.redaction import get_logger
from defserve.errors import UsageError
from defserve.stores.store import StoreBusy, StoreCorrupt, StoreFull, StoreReadOnly, StoreUnavailable

if TYPE_CHECKING:
    from psycopg import AsyncConnection

POSTGRES_TIMEOUT_SECONDS: Final = 5.0
SCHEMA: Final = "defserve"
POOL_SIZE: Final = 8
MAX_POOL_SIZE: Final = 100
MAX_LOG_LENGTH: Final = 500

log = get_logger()

_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_UNREADABLE: Final = (
    "libpq cannot read it",
    "write postgres://user:password@host:5432/database, and @ : / ? # in a password as %40 %3A %2F %3F %23",
)
_PORTS: Final = re.compile(r"[0-9,]*")


class PostgresAddress:
    """`where` is for logs: the address without credentials. `schema` is the one that has the tables."""

    __slots__ = ("where", "schema", "pool_size", "_url")

    def __init__(self, url: str) -> None:
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
            from psycopg.pq import Conninfo
        except ImportError:
            fix = "pip install 'defserve[postgres]'"
            raise UsageError("a store in Postgres needs the psycopg package", fix=fix) from None
        parts = urlsplit(url)
        self.where = f"{parts.scheme}://…"
        # A letter of the password that is not encoded may end up in any other part. Say nothing of what that is.
        if parts.fragment or "@" in parts.path + parts.query:
            raise self._make_usage_error(*_UNREADABLE)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.schema, size = query.pop("schema", SCHEMA), query.pop("pool", str(POOL_SIZE))
        if not _SCHEMA_NAME.fullmatch(self.schema):
            raise self._make_usage_error("its schema is not a name of small letters, digits and _", "?schema=defserve")
        if not size.isdecimal() or not 1 <= int(size[:9]) <= MAX_POOL_SIZE:
            raise self._make_usage_error("its pool is not a number of connections", f"1 to {MAX_POOL_SIZE}: ?pool=8")
        self.pool_size = int(size)
        known = {option.keyword.decode() for option in Conninfo.get_defaults()}
        if unknown := sorted(query.keys() - known):
            raise self._make_usage_error(f"libpq knows no parameter {unknown[0]!r}", "leave it out")
        for name, value in (
            ("application_name", "defserve"),
            ("tcp_user_timeout", str(int(POSTGRES_TIMEOUT_SECONDS * 1000))),
        ):
            query.setdefault(name, value)
        self._url = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(query, quote_via=quote)))
        try:
            options = conninfo_to_dict(self._url)
        except ProgrammingError:
            options = {"port": "unknown"}
        host, port, database = (str(options.get(name, "")) for name in ("host", "port", "dbname"))
        if not _PORTS.fullmatch(port):
            raise self._make_usage_error(*_UNREADABLE)
        self.where = f"{parts.scheme}://{host}{':' if port else ''}{port}/{database}"

    def _make_usage_error(self, why: str, fix: str) -> UsageError:
        return UsageError(f"{self.where} is not the address of a Postgres: {why}", fix=fix)

    def make_sql(self, sql: str) -> bytes:
        """A statement for this schema."""
        return sql.replace("{schema}", f'"{self.schema}"').encode()

    async def connect(self, timeout: float) -> AsyncConnection[Any]:
        """A new connection, which commits each statement. Raises StoreUnavailable and StoreBusy."""
        from psycopg import AsyncConnection, Error

        try:
            # Without prepared statements, since a pooler may give the next transaction to another session.
            return await AsyncConnection.connect(
                self._url, autocommit=True, prepare_threshold=None, connect_timeout=max(2, round(timeout))
            )
        except (Error, OSError) as error:
            self.raise_store_error(error)

    def guard_statements(
        self, connection: AsyncConnection[Any], seconds: float, *, quietly: bool = False
    ) -> StatementGuard:
        """Bound the time of statements, and turn what they raise into the errors of a store."""
        return StatementGuard(self, connection, seconds, quietly)

    def raise_store_error(self, error: Exception, *, is_lost: bool = False, quietly: bool = False) -> NoReturn:
        state: str = getattr(error, "sqlstate", None) or ""
        if not quietly:
            fix = next((fix for sign, fix in _FIXES.items() if state.startswith(sign)), "")
            log.error("the store %s is in trouble: %s%s", self.where, _describe(error), fix and f"; fix: {fix}")
        if is_lost:
            raise ConnectionLost(_UNREACHABLE[1]) from None
        kind, text = next((found for sign, found in _PROBLEMS.items() if state.startswith(sign)), _UNREACHABLE)
        raise kind(text, data={"retry_after_ms": 1000} if kind is StoreBusy else None) from None


class StatementGuard:
    """`with` it: statements that take longer than `seconds` end, because their connection is shut down.

    Cancelling them would ask Postgres for its consent, and wait for that as well.
    """

    __slots__ = ("_address", "_connection", "_seconds", "_is_quiet", "_timer")

    def __init__(
        self, address: PostgresAddress, connection: AsyncConnection[Any], seconds: float, is_quiet: bool
    ) -> None:
        self._address, self._connection, self._seconds, self._is_quiet = address, connection, seconds, is_quiet
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._shut_down)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from psycopg import Error
        from psycopg.pq import ConnStatus

        assert self._timer is not None
        self._timer.cancel()
        if isinstance(error, (Error, OSError)):
            is_lost = self._connection.pgconn.status != ConnStatus.OK
            self._address.raise_store_error(error, is_lost=is_lost, quietly=self._is_quiet)

    def _shut_down(self) -> None:
        with suppress(Exception):
            log.error("the store %s does not answer within %g s", self._address.where, self._seconds)
            # Not by closing it: the loop waits for it.
            with socket.socket(fileno=socket.dup(self._connection.pgconn.socket)) as shared:
                shared.shutdown(socket.SHUT_RDWR)


class ConnectionLost(StoreUnavailable):
    """The connection broke, so nobody knows whether the statement on it was carried out."""


class RolledBack(StoreBusy):
    """Postgres has undone a statement, and it may be repeated."""


Problem = type[StoreUnavailable] | type[StoreFull] | type[StoreBusy]

# Peers are told what is wrong, never where.
_UNREACHABLE: Final[tuple[Problem, str]] = (StoreUnavailable, "The store cannot be reached")
_BUSY: Final[tuple[Problem, str]] = (StoreBusy, "The store is busy")
# How the SQLSTATE begins → the error of a store.
_PROBLEMS: Final[dict[str, tuple[Problem, str]]] = {
    "40": (RolledBack, "The store is busy"),
    "25006": (StoreReadOnly, "The store cannot be written"),
    "25001": (StoreUnavailable, "The store is not set up"),
    "42": (StoreUnavailable, "The store is not set up"),
    "53300": _BUSY,
    "53": (StoreFull, "The store is full"),
    "54": (StoreFull, "The store is full"),
    "55P03": _BUSY,
    "57014": _BUSY,
    "XX001": (StoreCorrupt, "The store is damaged"),
    "XX002": (StoreCorrupt, "The store is damaged"),
}
_FIXES: Final = {
    "25001": "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
    "42501": "let this role make the schema (GRANT CREATE ON DATABASE …), or make it for the role: "
    "CREATE SCHEMA … AUTHORIZATION …",
    "28": "correct the user and the password of its address",
    "3D000": "create the database, or correct its name",
    "53300": "raise max_connections, lower ?pool= in its address, or put a pooler before it",
    "53100": "make room on its disk",
}


def _describe(error: Exception) -> str:
    """One line for the log. It holds no values, and no part of the address but the host and the user."""
    diagnosis: Any = getattr(error, "diag", None)
    text: str = (diagnosis and diagnosis.message_primary) or str(error) or type(error).__name__
    return " ".join(text.split())[:MAX_LOG_LENGTH]


# -- Connections: a few, used again and again, each for one statement or transaction at a time.


IDLE_SECONDS: Final = 60.0


class ConnectionPool:
    """At most `size` connections of one event loop. Whoever finds none free waits, for `timeout` seconds at most."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncConnection[Any]]], size: int, timeout: float) -> None:
        self._connect, self._timeout, self._room = connect, timeout, asyncio.Semaphore(size)
        self._idle: list[tuple[float, AsyncConnection[Any]]] = []
        self._is_closed = False

    @asynccontextmanager
    async def borrow_connection(self) -> AsyncGenerator[AsyncConnection[Any]]:
        """A connection outside of a transaction. It is used again unless something was wrong. Raises StoreBusy."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._room.acquire()
        except TimeoutError:
            log.error(
                "no connection of the pool became free within %g s; fix: raise ?pool= in its address", self._timeout
            )
            raise StoreBusy("The store is busy", data={"retry_after_ms": int(self._timeout * 1000)}) from None
        try:
            connection = self._find_idle() or await self._connect()
            try:
                yield connection
            except StoreUnavailable as error:
                if not isinstance(error, ConnectionLost):
                    # It may be a setting such as read-only: only a new connection sees that it has changed.
                    close_connection_now(connection)
                    self._close_idle()
                raise
            finally:
                self._return_connection(connection)
        finally:
            self._room.release()

    def close(self) -> None:
        """Close the idle ones now, and the others when they come back. Needs no loop."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            close_connection_now(self._idle.pop()[1])

    def _find_idle(self) -> AsyncConnection[Any] | None:
        while self._idle:
            _, connection = self._idle.pop()
            # Postgres says good-bye before it ends: a change must not be sent to it then, since nobody could tell
            # whether it happened.
            if not _has_input(connection.pgconn.socket):
                return connection
            close_connection_now(connection)
        return None

    def _return_connection(self, connection: AsyncConnection[Any]) -> None:
        from psycopg.pq import TransactionStatus

        if self._is_closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            close_connection_now(connection)
            return
        now = time.monotonic()
        self._idle.append((now, connection))
        while self._idle[0][0] < now - IDLE_SECONDS:
            close_connection_now(self._idle.pop(0)[1])


def close_connection_now(connection: AsyncConnection[Any]) -> None:
    """Close a connection without waiting, whichever loop it belongs to."""
    connection.pgconn.finish()


def _has_input(descriptor: int) -> bool:
    poll = select.poll() if hasattr(select, "poll") else None
    if poll is None:  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
