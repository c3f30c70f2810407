"""The address of a Redis: clients for it, and its errors in the words of a store.

`redis://host:6379/0`, `rediss://…`, `unix:///path` and, for a Redis that Sentinels watch,
`redis+sentinel://host:port,host:port/service/db`. `?prefix=` names the keys.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from defserve.errors import UsageError
from defserve.stores.store import StoreFull, StoreReadOnly, StoreUnavailable

PREFIX: Final = "defserve:"
SENTINEL: Final = "redis+sentinel"
SENTINEL_PORT: Final = 26379
CLOSED: Final = "the handler is closed"
"""What uvloop says, in a RuntimeError, of a connection that broke a moment ago. redis-py lets it through."""

log = logging.getLogger("defserve")


class RedisAddress:
    """`prefix` begins every key. `where` is for logs: the address without credentials."""

    __slots__ = ("prefix", "where", "_url")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.prefix = query.pop("prefix", PREFIX)
        self._url = urlunsplit(parts._replace(query=urlencode(query)))
        hosts = parts.netloc.rpartition("@")[2]
        self.where = f"{parts.scheme}://{hosts or parts.path}"

    def client(self, greet: Callable[[Any], Awaitable[None]] | None = None, **options: Any) -> Any:
        """A `redis.asyncio.Redis` that is not connected yet. Raises UsageError, also if the package is missing.

        `greet` gets each new connection, instead of its `on_connect`.
        """
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise UsageError("a store in Redis needs the redis package", fix="pip install 'defserve[redis]'") from None
        try:
            if self._url.startswith(f"{SENTINEL}:"):
                return self._watched(greet, **options)
            return Redis.from_url(self._url, redis_connect_func=greet, **options)  # pyright: ignore[reportUnknownMemberType]
        except ValueError as error:
            raise UsageError(f"{self.where} is not the address of a Redis: {error}") from None

    def _watched(self, greet: Callable[[Any], Awaitable[None]] | None, **options: Any) -> Any:
        """A client of whichever Redis the Sentinels call the master."""
        from redis.asyncio.sentinel import Sentinel

        parts = urlsplit(self._url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        service, _, db = parts.path.strip("/").partition("/")
        if not service or not hosts:
            raise ValueError("write redis+sentinel://host:port,host:port/service/db")
        known = {"username": unquote(user) or None, "password": unquote(password) or None}
        given: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
        sentinels = Sentinel([_host(each) for each in hosts.split(",")], sentinel_kwargs=dict(options), **options)
        given["redis_connect_func"] = greet
        return sentinels.master_for(service, db=int(db or 0), **given)  # pyright: ignore[reportUnknownMemberType]

    @contextmanager
    def raising_store_errors(self, *, quietly: bool = False) -> Generator[None]:
        """Turn what redis-py raises into the errors of a store."""
        from redis.exceptions import RedisError

        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            yield
            # redis-py sometimes returns normally in a task that was cancelled meanwhile.
            if task and task.cancelling() > cancels:
                raise asyncio.CancelledError
        except (RedisError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and CLOSED not in str(error):
                raise
            text = str(error) or type(error).__name__
            if not quietly:
                log.error("the store %s is in trouble: %s", self.where, text)
            signs = f"{type(error).__name__} {text}"
            kind, said = next((found for sign, found in _PROBLEMS.items() if sign in signs), _UNREACHABLE)
            raise kind(said) from None


Problem = type[StoreUnavailable] | type[StoreFull]

# Peers are told what is wrong, never where.
_UNREACHABLE: Final[tuple[Problem, str]] = (StoreUnavailable, "The store cannot be reached")
_PROBLEMS: Final[dict[str, tuple[Problem, str]]] = {
    "OutOfMemoryError": (StoreFull, "The store is full"),
    "MISCONF": (StoreFull, "The store cannot save what it is given"),
    "ReadOnlyError": (StoreReadOnly, "The store cannot be written"),
}


def _host(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:  # without a port; an IPv6 address stands in brackets
        host, port = text, ""
    return host.strip("[]"), int(port or SENTINEL_PORT)
