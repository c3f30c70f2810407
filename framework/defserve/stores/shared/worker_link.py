"""One worker's connection to the others: scripts, ordered writes, a lease, a mailbox and news."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeAlias, cast

from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.errors import Refused
from defserve.stores.identity import ServerIdentity
from defserve.stores.redis import RedisAddress, drop_idle_connections
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.lua_scripts import ScriptArgument
from defserve.stores.store import StoreReadOnly, StoreUnavailable

LEASE: Final = 8.0
BEAT: Final = LEASE / 6
BLOCK: Final = 2.0

# What comes within so many seconds is read together: a reading costs more than what is read.
GATHERING: Final = 0.001
TIMEOUT: Final = 5.0
CONNECTIONS: Final = 16
PAGE: Final = 256
START_TIMEOUT: Final = 2.0
STOP_TIMEOUT: Final = 2.0
LAST_PLACE: Final = (1 << 64) - 1

Receiver: TypeAlias = Callable[[dict[str, bytes], str], Awaitable[None] | None]

log = get_logger()


class SharedStoreLink:
    """This process's connections to the Redis of its group: the processes of the server `identity`.

    `worker` is its name there; each `start` makes a new one.

    `is_up` says whether news and mail arrive. While it is False, what is known of sessions may be out of date.
    `up_since` is when `is_up` last changed, in monotonic seconds.
    """

    def __init__(self, address: str, identity: ServerIdentity) -> None:
        self._address = RedisAddress(address.replace("redis+unix:", "unix:", 1))
        self._prefix = f"{identity.make_prefix(self._address.prefix)}shared:"
        self.worker = ""
        self.is_up, self.up_since = False, 0.0
        self._receivers: dict[str, list[Receiver]] = {}
        self.delivering: UpdateDelivery | None = None
        """The news that sessions are being told."""
        self.caught_up: list[Callable[[], Awaitable[None]]] = []
        """Called when news arrives again: what is known of the store may be old."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.news_lost: list[Callable[[], None]] = []
        """Called when news may be lost for good: everything that is known may be old."""
        self.lease_lost: list[Callable[[], None]] = []
        """Called when the lease had ended: others took this worker for dead, and may have sent it no mail."""
        self.renewed: list[Callable[[], None]] = []
        """Called after each renewal of the lease, a few times for the length of a lease."""
        self._writes = OrderedWrites(self._address, self._prefix)
        self._arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._cursors: dict[str, str] = {}
        self.published = 0
        """How often this worker has told all of them something."""
        self.handled_news = self._settled_news = self._own_news = STREAM_START
        """The last news that receivers are done with, and of which everything that follows from it is in Redis."""
        self.behind: set[object] = set()
        """Those whom receivers could not tell some news yet."""
        self.unfinished: dict[object, str] = {}
        """Work that follows from news and goes on after its receivers, each with the last news before."""
        self._added = -1
        """The bytes of all news up to the last that was read; -1 if that is not known."""
        self._redis: Any = None
        self._users = self._given = self._numbered = 0
        self._running = asyncio.Semaphore(CONNECTIONS)

    # -- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and wait a moment until news arrives. A Redis that is away is tried again and again."""
        self._users += 1
        if self._users > 1:
            return
        self._loop = asyncio.get_running_loop()
        self.worker = secrets.token_hex(6)
        self._cursors, self._added = {"mail:" + self.worker: STREAM_START}, -1
        self._running = asyncio.Semaphore(CONNECTIONS)
        self._redis = self._client()
        self._writes.open(self._client)
        self._tasks = [asyncio.create_task(work()) for work in (self._listen, self._writes.run, self._keep_lease)]
        self._arrived = arrived = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT):
                await arrived.wait()

    async def stop(self) -> None:
        """Write what is queued, if that takes no long time, and leave."""
        self._users -= 1
        if self._users:
            return
        if not self.is_written and self.is_up:
            written = asyncio.Event()
            self.call_after_writes(written.set)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT):
                    await written.wait()
        left = set(self._tasks)
        while left:  # redis-py sometimes takes a cancellation for itself
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=FIRST_WAIT)
        self.is_up = False
        with suppress(Exception):  # others notice by the lease
            async with asyncio.timeout(STOP_TIMEOUT):
                await self.run_script(lua_scripts.END_WORKER, self.worker, self._settle())
        for client in (self._redis, self._writes):
            with suppress(Exception):
                await client.aclose()

    def _client(self, timeout: float = TIMEOUT, greet: Callable[[Any], Awaitable[None]] | None = None) -> Any:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        once = Retry(NoBackoff(), 0)  # repeating is up to this file, which knows what comes after what
        return self._address.client(greet, socket_timeout=timeout, socket_connect_timeout=TIMEOUT, retry=once)

    @property
    def can_trust_leases(self) -> bool:
        """Whether leases are to be believed. A store that was away forgets them; whoever lives renews its own soon."""
        return self.is_up and time.monotonic() - self.up_since >= LEASE

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that this link belongs to; None before it has started."""
        return self._loop if self._users else None

    @property
    def is_on_loop(self) -> bool:
        """Whether the running event loop is the one that this link belongs to."""
        try:
            return self._loop is asyncio.get_running_loop()
        except RuntimeError:
            return False

    def make_unique_name(self) -> str:
        """A name that nobody gives again: the worker's, a dot, and a number."""
        self._given += 1
        return f"{self.worker}.{self._given}"

    @property
    def last_read_update_id(self) -> str:
        """The id of the last news that was received."""
        return self._cursors.get("news", STREAM_START)

    @property
    def is_following_updates(self) -> bool:
        """Whether this worker will receive all news from now on. Before that, it cannot tell a session everything."""
        return "news" in self._cursors

    # -- out ---------------------------------------------------------------------------------------------

    async def run_script(self, script: str, *args: ScriptArgument) -> Any:
        """Run a script now. Raises StoreUnavailable or StoreFull; then it may have run or not."""
        if self._redis is None:
            raise StoreUnavailable("The store cannot be reached")
        from redis.exceptions import NoScriptError

        # Each script on its way has a connection of its own.
        async with self._running:
            try:
                with self._address.translate_redis_errors(quietly=True):
                    try:
                        return await self._redis.execute_command("EVALSHA", sha(script), 0, self._prefix, *args)
                    except NoScriptError:
                        return await self._redis.execute_command("EVAL", script, 0, self._prefix, *args)
            except StoreReadOnly:
                await drop_idle_connections(self._redis)
                raise

    def queue_script(self, script: str, *args: ScriptArgument, done: Callable[[Any], None] | None = None) -> None:
        """Run a script after those written before, again and again until Redis has taken it. `done` gets its reply."""
        self._writes.add(script, args, done)

    def publish_update(self, *fields: str) -> bool:
        """Send every worker something: names and values. From any thread.

        False: it is not sent, because this worker has not started, or the store is away for too long.
        """
        if (loop := self.loop) is None:
            return False
        if self.is_full:
            log.error("the store %s is away for too long: the other processes miss a change", self._address.where)
            return False
        self.published += 1
        if self.is_on_loop:  # before what is written next, such as the result of the call that publishes it
            self._publish(fields)
        else:
            loop.call_soon_threadsafe(self._publish, fields)
        return True

    def _publish(self, fields: Sequence[str]) -> None:
        self.queue_script_once(lua_scripts.PUBLISH_UPDATE, *fields, "w", self.worker, done=self._note_published)

    def _note_published(self, newest: bytes | None) -> None:
        if newest is not None:
            self._own_news = newest.decode()

    @property
    def has_read_own_updates(self) -> bool:
        """Whether this worker has received all that it has published itself."""
        return self.is_written and not is_earlier_id(self.last_read_update_id, self._own_news)

    def queue_script_once(self, script: str, *args: ScriptArgument, done: Callable[[Any], None] | None = None) -> None:
        """Like `queue_script`. Its first arguments are who writes and a number, so that repeating it does nothing."""
        self._numbered += 1
        self.queue_script(script, self.worker, self._numbered, *args, done=done)

    async def wait_until_written(self, seconds: float) -> bool:
        """Wait until everything written so far is in Redis. False if that takes longer."""
        done = asyncio.get_running_loop().create_future()
        self.call_after_writes(lambda: None if done.done() else done.set_result(None))
        await asyncio.wait((done,), timeout=seconds)
        return done.done()

    def call_after_writes(self, done: Callable[[], None]) -> None:
        """Call `done` when everything written so far is in Redis."""
        self.queue_script("", done=lambda reply: done())

    @property
    def is_written(self) -> bool:
        """Whether everything written so far is in Redis."""
        return self._writes.is_empty

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be written that what nobody waits for should be dropped."""
        return self._writes.is_full

    # -- in ----------------------------------------------------------------------------------------------

    def add_receiver(self, kind: str, receiver: Receiver) -> None:
        """Call `receiver(fields, id)` for mail, news and signals of this kind, in their order."""
        self._receivers.setdefault(kind, []).append(receiver)

    async def read_updates_after(self, id: str) -> list[tuple[str, dict[str, bytes]]] | None:
        """The news after this id that this worker has received already. None if some of it is no longer kept."""
        if not is_earlier_id(id, self.last_read_update_id):
            return []
        with self._address.translate_redis_errors(quietly=True):
            first = await self._redis.xrange(self._prefix + "news", "-", "+", count=1)
            if id != STREAM_START and (not first or not is_earlier_id(first[0][0].decode(), id, or_same=True)):
                return None
            found = await self._redis.xrange(self._prefix + "news", f"({id}", self.last_read_update_id)
        return [(each.decode(), decode_fields(fields)) for each, fields in found]

    async def _listen(self) -> None:
        """Read mail, news and signals, each from where it was left."""
        backoff, redis = Backoff(FIRST_WAIT, MAX_WAIT_SECONDS), self._client(BLOCK + TIMEOUT)
        try:
            while True:
                try:
                    with self._address.translate_redis_errors(quietly=True):
                        if not self.is_up:
                            await self._catch_up(redis)
                            backoff.reset()
                        while True:
                            began = time.monotonic()
                            await self._dispatch(await self._read_streams(redis, BLOCK))
                            if time.monotonic() - began < GATHERING:
                                await asyncio.sleep(GATHERING)
                except Exception as error:
                    _log_unexpected(error, self._address)
                    if self.is_up:
                        log.error("the store %s is in trouble: %s", self._address.where, error)
                    self.is_up, self.up_since = False, time.monotonic()
                    await asyncio.sleep(backoff.next_wait())
        finally:
            self.is_up = False
            with suppress(Exception):
                await redis.aclose()

    async def _catch_up(self, redis: Any) -> None:
        await self._find_lost(redis)
        await self._renew()
        if not self.is_following_updates:
            await self._follow(redis)
        while found := await self._read_streams(redis, None):
            await self._dispatch(found)
        for caught_up in self.caught_up:
            await caught_up()
        self.is_up, self.up_since = True, time.monotonic()
        self._arrived.set()
        for lease_lost in self.lease_lost:
            lease_lost()

    async def _find_lost(self, redis: Any) -> None:
        """Notice that what was read last is no longer in the store.

        A store that was emptied may give lower ids than before, if its clock is behind. Then it is read from where it
        is now, because nothing would be read until its clock has caught up.
        """
        for stream, cursor in tuple(self._cursors.items()):
            if cursor == STREAM_START or await redis.xrange(self._prefix + stream, cursor, cursor):
                continue
            if stream.startswith("mail:"):
                self._cursors[stream] = STREAM_START  # mail that was read is dropped soon, so hardly any is read again
            elif is_earlier_id((await find_newest_entry(redis, self._prefix + stream))[0], cursor):
                await self._go_to_newest(redis, stream)
            if stream == "news":
                for news_lost in self.news_lost:
                    news_lost()

    async def _follow(self, redis: Any) -> None:
        """Begin with what comes next. Once it is known where that is, nothing is left out."""
        for stream in ("signals", "news"):
            await self._go_to_newest(redis, stream)

    async def _go_to_newest(self, redis: Any, stream: str) -> None:
        if stream == "news":
            self._own_news = STREAM_START  # before it waits: this worker may publish meanwhile
        self._cursors[stream], fields = await find_newest_entry(redis, self._prefix + stream)
        if stream == "news":
            self._added = int(fields.get("b", b"-1"))
            self.handled_news = self._settled_news = self.last_read_update_id
            self.unfinished.update(dict.fromkeys(self.unfinished, self.last_read_update_id))

    async def _read_streams(self, redis: Any, block: float | None) -> dict[str, list[tuple[str, dict[str, bytes]]]]:
        wanted = {self._prefix + stream: cursor for stream, cursor in self._cursors.items()}
        found: Any = await redis.xread(wanted, count=PAGE, block=int(block * 1000) if block is not None else None)
        pairs: Any = cast("dict[Any, Any]", found).items() if isinstance(found, dict) else found or ()
        return {
            key.decode().removeprefix(self._prefix): [
                (id.decode(), decode_fields(fields)) for id, fields in _entries(entries) if fields is not None
            ]
            for key, entries in pairs
        }

    async def _dispatch(self, found: dict[str, list[tuple[str, dict[str, bytes]]]]) -> None:
        for stream, entries in found.items():
            for id, fields in entries:
                if stream == "news":
                    await self._count(fields)
                self._cursors[stream] = id
                for receiver in self._receivers.get(fields.get("t", b"").decode(), ()):
                    try:
                        if (work := receiver(fields, id)) is not None:
                            await work
                    except Exception:
                        log.exception("%s could not be handled", fields.get("t"))
                if stream == "news":
                    self.handled_news = id

    async def _count(self, fields: dict[str, bytes]) -> None:
        """Notice news that was dropped before this worker had read it: the bytes that were ever added say so."""
        added = int(fields.get("b", b"-1"))
        before = added - sum(len(name.encode()) + len(value) for name, value in fields.items() if name != "b")
        if self._added >= 0 and added >= 0 and before != self._added:
            log.error("news of the store %s was dropped before it was read", self._address.where)
            for news_lost in self.news_lost:
                news_lost()
            for caught_up in self.caught_up:
                await caught_up()
        self._added = added

    async def _keep_lease(self) -> None:
        was_renewed = True
        while True:
            wait = BEAT
            try:
                # A renewal whose reply was lost may have been the one that found no lease.
                if not await self._renew() or not was_renewed:
                    for lease_lost in self.lease_lost:
                        lease_lost()
                was_renewed = True
                for renewed in self.renewed:
                    renewed()
            except Exception as error:
                _log_unexpected(error, self._address)
                wait, was_renewed = FIRST_WAIT * 4, False
            await asyncio.sleep(wait)

    async def _renew(self) -> bool:
        """Renew the lease, and drop the mail that was read. False: the lease had ended."""
        mail = self._cursors["mail:" + self.worker]
        return bool(
            await self.run_script(lua_scripts.RENEW_LEASE, self.worker, int(LEASE * 1000), self._settle(), mail)
        )

    def _settle(self) -> str:
        """The news that nobody must deliver again if this worker dies. The next owner of a session begins after it."""
        if self.is_written and not self.behind:
            self._settled_news = min(self.unfinished.values(), key=_numbers, default=self.handled_news)
        return self._settled_news


def _log_unexpected(error: Exception, address: RedisAddress) -> None:
    """What redis-py raises besides its own errors must not end a task that everything else waits for."""
    if not isinstance(error, Refused):
        log.error("the store %s is in trouble", address.where, exc_info=error)


def _entries(found: Any) -> Any:
    # Protocol 3 of Redis nests the entries once more.
    return found[0] if found and isinstance(found[0], list) else found


def is_earlier_id(one: str, other: str, *, or_same: bool = False) -> bool:
    """Whether one id of news comes before another."""
    a, b = _numbers(one), _numbers(other)
    return a < b or (or_same and a == b)


def make_preceding_id(id: str) -> str:
    """The last id that news before this one can have."""
    time, place = _numbers(id)
    return f"{time}-{place - 1}" if place else f"{max(time - 1, 0)}-{LAST_PLACE}"


def _numbers(id: str) -> tuple[int, int]:
    time, _, place = id.partition("-")
    return int(time), int(place)


# -- News that is told to each session once, whichever worker tells it.


class UpdateDelivery:
    """One piece of news that sessions are being told. Each message that tells a session has an id of its own.

    `record` is a field of the session's record that is kept together with the next message, and its value.
    """

    __slots__ = ("id", "record", "_counts")

    def __init__(self, id: str) -> None:
        self.id, self.record = id, ("", "")
        self._counts: dict[str, int] = {}

    def next_id(self, session: str) -> str:
        count = self._counts[session] = self._counts.get(session, 0) + 1
        return f"{self.id}-{count}"

    def skip_if_delivered(self, session: str, delivered: str) -> bool:
        """Whether the next message is there already: `delivered` is the id of the last one. Then it is left out."""
        time, place, last = ([int(part) for part in delivered.split("-")] + [0])[:3]
        count, mine = self._counts.get(session, 0) + 1, tuple(map(int, self.id.split("-")))
        if mine > (time, place) or (mine == (time, place) and count > last):
            return False
        self._counts[session] = count
        return True


# -- Where a stream of the store is: which entry is its newest, and whether one that was read is still there.


STREAM_START: Final = "0-0"


async def find_newest_entry(redis: Any, stream: str) -> tuple[str, dict[str, bytes]]:
    """The id and the fields of the newest entry; the start if there is none."""
    found = await redis.xrevrange(stream, "+", "-", count=1)
    return (found[0][0].decode(), decode_fields(found[0][1])) if found else (STREAM_START, {})


def decode_fields(found: Any) -> dict[str, bytes]:
    return {name.decode(): value for name, value in found.items()}


# -- Scripts that run in Redis in the order in which they were given, each again and again until it was taken.


BATCH: Final = 64
QUEUED_BYTES: Final = 32 * 1024 * 1024
FIRST_WAIT, MAX_WAIT_SECONDS = 0.05, 1.0

# Errors of Redis that end by themselves, or when somebody makes room. redis-py has classes for some of them, and takes
# the code out of their text.
PASSING: Final = frozenset(
    ("ConnectionError", "TimeoutError", "OutOfMemoryError", "ReadOnlyError", "TryAgainError", "ClusterDownError")
)
PASSING_CODES: Final = (
    *("LOADING", "READONLY", "OOM", "MISCONF", "BUSY", "MASTERDOWN", "CLUSTERDOWN"),
    *("NOREPLICAS", "TRYAGAIN", "UNBLOCKED"),
)


class _Write:
    __slots__ = ("script", "args", "done", "size")

    def __init__(self, script: str, args: Sequence[ScriptArgument], done: Callable[[Any], None] | None) -> None:
        self.script, self.args, self.done = script, args, done
        self.size = sum(len(each) for each in args if not isinstance(each, int))


class OrderedWrites:
    """What one worker writes. Nothing overtakes what was given before: a batch is taken from its start, or not at all.

    A script that ran out of its order would find that a later one has run, and take itself for repeated.
    """

    def __init__(self, address: RedisAddress, prefix: str) -> None:
        self._address, self._prefix = address, prefix
        self._queue: deque[_Write] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._loaded: set[str] = set()
        self._redis: Any = None

    def open(self, client: Callable[..., Any]) -> None:
        """Begin with nothing. `client` makes a client of Redis, with what is done for each new connection."""
        self._queue.clear()
        self._bytes, self._wake = 0, asyncio.Event()
        self._redis = client(greet=self._greet)

    async def aclose(self) -> None:
        await self._redis.aclose()

    def add(self, script: str, args: Sequence[ScriptArgument], done: Callable[[Any], None] | None = None) -> None:
        """`done` gets the reply. Without a script it is called when everything before was taken."""
        write = _Write(script, args, done)
        self._queue.append(write)
        self._bytes += write.size
        self._wake.set()

    @property
    def is_empty(self) -> bool:
        return not self._queue

    @property
    def is_full(self) -> bool:
        return self._bytes > QUEUED_BYTES

    async def run(self) -> None:
        """Write for ever."""
        backoff, most = Backoff(FIRST_WAIT, MAX_WAIT_SECONDS), BATCH
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            batch = list(islice(self._queue, most))
            try:
                replies = await self._send(batch)
                taken = sum(1 for _ in self._iter_accepted(batch, replies))
            except Exception as error:
                _log_unexpected(error, self._address)
                taken = 0
            if taken:
                backoff.reset()
                most = min(2 * most, BATCH)
            if taken < len(batch):
                most = 1  # alone, a script that is refused for good says so
                await drop_idle_connections(self._redis)
                await asyncio.sleep(backoff.next_wait())

    async def _greet(self, connection: Any) -> None:
        """A Redis that was started again has forgotten the scripts: some must not run while others are not known."""
        await connection.on_connect()
        for script in self._loaded:
            await connection.send_command("SCRIPT", "LOAD", script)
            await connection.read_response()

    async def _send(self, batch: list[_Write]) -> list[Any]:
        """The replies, in order; an error is one of them."""
        scripts = [each for each in batch if each.script]
        with self._address.translate_redis_errors(quietly=True):
            for script in {each.script for each in scripts} - self._loaded:
                await self._redis.script_load(script)
                self._loaded.add(script)
            # A transaction is not begun by a Redis that refuses one of its commands.
            async with self._redis.pipeline(transaction=len(scripts) > 1) as pipe:
                for each in scripts:
                    pipe.execute_command("EVALSHA", sha(each.script), 0, self._prefix, *each.args)
                found = iter(await pipe.execute(raise_on_error=False)) if scripts else iter(())
            return [next(found) if each.script else None for each in batch]

    def _iter_accepted(self, batch: list[_Write], replies: list[Any]) -> Iterator[_Write]:
        """Those that Redis has taken, up to the first that must be repeated."""
        from redis.exceptions import NoScriptError

        for each, reply in zip(batch, replies, strict=True):
            if isinstance(reply, NoScriptError):  # somebody has flushed them
                self._loaded.clear()
                return
            if isinstance(reply, Exception):
                if _is_passing(reply):
                    return
                log.error("the store refuses a script: %s", reply)
                reply = None
            elif isinstance(reply, list) and reply[:1] == [lua_scripts.OUT_OF_ORDER]:
                # All that was written before is taken: Redis has lost it since, or refused it. The rest goes on.
                log.error("the store %s has lost events of a stream", self._address.where)
                self._queue.appendleft(_Write(lua_scripts.SKIP_EVENTS, cast("list[ScriptArgument]", reply[1:]), None))
                self._bytes += self._queue[0].size
                return
            self._queue.popleft()
            self._bytes -= each.size
            if each.done is not None:
                try:
                    each.done(reply)
                except Exception:
                    log.exception("a reply of the store could not be used")
            yield each


@lru_cache(maxsize=64)
def sha(script: str) -> str:
    """The name of a script in Redis."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _is_passing(error: Exception) -> bool:
    """Whether a script that failed like this may be taken later."""
    classes = {each.__name__ for each in type(error).__mro__}
    return bool(classes & PASSING) or any(code in str(error) for code in PASSING_CODES)
