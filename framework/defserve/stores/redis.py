"""A store in Redis, for servers that run as many processes. Each space is one hash, each change one script.

What the values look like is decided elsewhere; of a checkpoint, in `checkpoints/checkpoint_tree.py`.

The settings of Redis decide how safe an acknowledged change is. Only `appendonly yes` with `appendfsync always` keeps
the promise of a Store. With `everysec`, a Redis that is killed may lose what it acknowledged in the last two seconds.
Without an append-only file, it may lose everything since its last save. With a `maxmemory` and a policy other than
`noeviction`, it drops what it acknowledged when it is full. `open` warns about each. A script uses one key
only, so a cluster works too. The hash `format` holds the format of everything under the prefix.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.errors import Refused, UsageError
from defserve.stores import store
from defserve.stores.files import UNOWNED_VALUES_PROBLEM, make_newer_format_message
from defserve.stores.store import StoreChange, StoreFull, StoreReadOnly, StoreUnavailable

REDIS_FORMAT_VERSION: Final = 2
"""The format of the values under a prefix: raise it whenever stored values change, and upgrade older ones.

From 2 on, keys name their server."""
TIMEOUT: Final = 5.0
PAGE: Final = 256
SCAN: Final = 10_000
"""How many keys Redis looks at in one step, to find out once whether a store of 0.1.0 has anything that lasts."""

# Seconds until a broken connection is opened again: the first time, and at most.
AGAIN: Final = 0.25
MAX_PAUSE_SECONDS: Final = 4.0

log = get_logger()

# ARGV: ttl in ms or ''; then three lists, each with its length before it: expected (name, '1' + value or '0'),
# dropped (name), put (name, value).
_CHANGE: Final = """
local key, at = KEYS[1], 3
for _ = 1, tonumber(ARGV[2]) do
  local held, wanted = redis.call('HGET', key, ARGV[at]), ARGV[at + 1]
  if (held and '1' .. held or '0') ~= wanted then return 0 end
  at = at + 2
end
local drops = tonumber(ARGV[at])
for place = at + 1, at + drops do redis.call('HDEL', key, ARGV[place]) end
at = at + drops + 1
for place = at + 1, at + 2 * tonumber(ARGV[at]), 2 do redis.call('HSET', key, ARGV[place], ARGV[place + 1]) end
if ARGV[1] ~= '' then redis.call('PEXPIRE', key, ARGV[1]) end
return 1
"""


class _Client(Protocol):
    """The part of `redis.asyncio.Redis` that is used."""

    def hmget(self, name: str, keys: Sequence[str]) -> Awaitable[list[bytes | None]]: ...
    def hset(self, name: str, key: str, value: int) -> Awaitable[Any]: ...
    def exists(self, *names: str) -> Awaitable[int]: ...
    def hscan_iter(self, name: str, count: int) -> AsyncIterator[tuple[bytes, bytes]]: ...
    def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]: ...
    def register_script(self, script: str) -> _Script: ...
    def config_get(self, pattern: str) -> Awaitable[dict[Any, Any]]: ...
    def ping(self) -> Awaitable[Any]: ...
    def publish(self, channel: str, message: str) -> Awaitable[Any]: ...
    def aclose(self) -> Awaitable[None]: ...


class _Script(Protocol):
    def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Awaitable[int]: ...


class RedisStore:
    """A Store in the Redis at `url`, as `RedisAddress` describes it.

    Raises UsageError if the extra is not installed or the address is not valid.
    """

    is_for_many = True
    """Several processes use it and take turns."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self.url = url
        self.address, self._timeout = RedisAddress(url), timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_checked = False
        self._client, self._change = self._connect()

    async def open(self) -> None:
        with self.address.translate_redis_errors():
            redis = await self._redis()
            await redis.ping()
        try:
            settings = {**await redis.config_get("append*"), **await redis.config_get("maxmemory*")}
        except Exception:
            # Hosted services refuse this command.
            return
        safe = [("appendonly", "yes"), ("appendfsync", "always")]
        if settings.get("maxmemory", "0") != "0":
            safe.append(("maxmemory-policy", "noeviction"))  # by any other, it drops something when it is full
        for setting, value in safe:
            if settings.get(setting, value) != value:
                log.warning(
                    "the Redis at %s may lose what it acknowledged: its %s is %s, not %s",
                    *(self.address.where, setting, settings[setting], value),
                )

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        if not names:
            return {}
        with self.address.translate_redis_errors():
            values = await (await self._redis()).hmget(self._key(space), names)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    async def change(self, change: StoreChange) -> bool:
        ttl = "" if change.ttl is None else max(1, round(change.ttl * 1000))
        args: list[str | bytes | int] = [ttl, len(change.expect)]
        for name, value in change.expect.items():
            args += (name, b"0" if value is None else b"1" + value)
        args += (len(change.drop), *change.drop, len(change.put))
        for name, value in change.put.items():
            args += (name, value)
        try:
            with self.address.translate_redis_errors():
                await self._redis()
                return bool(await self._change([self._key(change.space)], args))
        except StoreReadOnly:
            await drop_idle_connections(self._client)
            raise

    async def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        with self.address.translate_redis_errors():
            async for name, value in (await self._redis()).hscan_iter(self._key(space), count=PAGE):
                yield name.decode(), value

    async def spaces(self, prefix: str) -> AsyncIterator[str]:
        seen: set[bytes] = set()
        with self.address.translate_redis_errors():
            async for key in (await self._redis()).scan_iter(f"{_literal(self._key(prefix))}*", count=PAGE):
                if key not in seen:
                    seen.add(key)
                    yield key.decode().removeprefix(self.address.prefix)

    async def announce(self, space: str, about: str) -> None:
        """Tell those who `follow` a space of a change in it."""
        with self.address.translate_redis_errors():
            await (await self._redis()).publish(self._key(space), about)

    async def follow(self, space: str) -> AsyncGenerator[str]:
        """What is announced for a space, from here on. It never ends.

        An empty text says that something may have been missed: at the beginning, and after each broken connection.
        """
        backoff = Backoff(AGAIN, MAX_PAUSE_SECONDS)
        while True:
            made = self.address.client(socket_connect_timeout=self._timeout, health_check_interval=self._timeout)
            listening = made.pubsub()
            try:
                with self.address.translate_redis_errors(quietly=not backoff.is_reset):
                    await listening.subscribe(self._key(space))
                    # The first message says that Redis has subscribed us; it may refuse to.
                    while await listening.get_message(timeout=self._timeout) is None:
                        pass
                backoff.reset()
                yield ""
                with self.address.translate_redis_errors():
                    while True:
                        found = await listening.get_message(timeout=self._timeout)
                        if found is not None and found["type"] == "message":
                            yield found["data"].decode(errors="replace")
                        elif found is not None and found["type"] == "subscribe":  # redis-py has connected again
                            yield ""
            except Exception as error:
                # What redis-py raises besides its own errors must not end it: nobody would hear of a change again.
                if backoff.is_reset and not isinstance(error, Refused):
                    log.error("the store %s is in trouble", self.address.where, exc_info=error)
                await asyncio.sleep(backoff.next_wait())
            finally:
                with suppress(Exception):
                    await listening.aclose()
                with suppress(Exception):
                    await made.aclose()

    async def check(self) -> list[str]:
        with self.address.translate_redis_errors():
            await (await self._redis()).ping()
        return []

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self._client.aclose()

    def _key(self, space: str) -> str:
        return self.address.prefix + space

    async def _redis(self) -> _Client:
        # Connections belong to the loop they were made in.
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop, self._is_checked = loop, False
            self._client, self._change = self._connect()
        if not self._is_checked:
            await self._check_format(self._client)
            self._is_checked = True
        return self._client

    async def _check_format(self, client: _Client) -> None:
        """Raises StoreUnavailable if a later version wrote the store, or 0.1.0 wrote something that lasts.

        A store of 0.1.0 has no mark, or format 1. What ends by itself is left there, and nobody reads it.
        """
        (found,) = await client.hmget(self._key(store.FORMAT_SPACE), ["version"])
        if found is not None and (not found.isdigit() or int(found) > REDIS_FORMAT_VERSION):
            raise StoreUnavailable(
                make_newer_format_message("The store", found.decode(errors="replace"), REDIS_FORMAT_VERSION)
            )
        if found is not None and int(found) == REDIS_FORMAT_VERSION:
            return
        if await self._find_unnamed(client):
            raise StoreUnavailable(UNOWNED_VALUES_PROBLEM)
        with suppress(Exception):  # a Redis that can only be read stays as it is
            await client.hset(self._key(store.FORMAT_SPACE), "version", REDIS_FORMAT_VERSION)

    async def _find_unnamed(self, client: _Client) -> bool:
        """Whether there is a value that lasts and names no server."""
        families = [name for name in store.PERMANENT_SPACES if isinstance(name, store.SpaceFamily)]
        if await client.exists(*(self._key(name) for name in store.PERMANENT_SPACES if name not in families)):
            return True
        for family in families:
            async for _ in client.scan_iter(f"{_literal(self._key(family))}*", count=SCAN):
                return True
        return False

    def _connect(self) -> tuple[_Client, _Script]:
        client: _Client = self.address.client(socket_timeout=self._timeout, socket_connect_timeout=self._timeout)
        return client, client.register_script(_CHANGE)


async def drop_idle_connections(client: Any) -> None:
    """Behind one address, another Redis may be the primary by now: only a new connection gets there."""
    with suppress(Exception):
        await client.connection_pool.disconnect(inuse_connections=False)


def _literal(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]^-\\" else letter for letter in text)


# -- The address of a Redis: clients for it, and its errors in the words of a store.
#
# `redis://host:6379/0`, `rediss://…`, `unix:///path` and, for a Redis that Sentinels watch,
# `redis+sentinel://host:port,host:port/service/db`. `?prefix=` names the keys.


PREFIX: Final = "defserve:"
SENTINEL: Final = "redis+sentinel"
SENTINEL_PORT: Final = 26379
CLOSED: Final = "the handler is closed"
"""What uvloop says, in a RuntimeError, of a connection that broke a moment ago. redis-py lets it through."""


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
                return self._make_sentinel_client(greet, **options)
            return Redis.from_url(self._url, redis_connect_func=greet, **options)  # pyright: ignore[reportUnknownMemberType]
        except ValueError as error:
            raise UsageError(f"{self.where} is not the address of a Redis: {error}") from None

    def _make_sentinel_client(self, greet: Callable[[Any], Awaitable[None]] | None, **options: Any) -> Any:
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
    def translate_redis_errors(self, *, quietly: bool = False) -> Generator[None]:
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
