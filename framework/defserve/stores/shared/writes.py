"""Scripts that run in Redis in the order in which they were given, each again and again until it was taken."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

from defserve.errors import Refused
from defserve.stores.redis_address import RedisAddress
from defserve.stores.shared.scripts import streams
from defserve.stores.shared.scripts.head import Value

BATCH: Final = 64
QUEUED_BYTES: Final = 32 * 1024 * 1024
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0

# Errors of Redis that end by themselves, or when somebody makes room. redis-py has classes for some of them, and takes
# the code out of their text.
PASSING: Final = frozenset(
    ("ConnectionError", "TimeoutError", "OutOfMemoryError", "ReadOnlyError", "TryAgainError", "ClusterDownError")
)
PASSING_CODES: Final = (
    *("LOADING", "READONLY", "OOM", "MISCONF", "BUSY", "MASTERDOWN", "CLUSTERDOWN"),
    *("NOREPLICAS", "TRYAGAIN", "UNBLOCKED"),
)

log = logging.getLogger("defserve")


class _Write:
    __slots__ = ("script", "args", "done", "size")

    def __init__(self, script: str, args: Sequence[Value], done: Callable[[Any], None] | None) -> None:
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

    def add(self, script: str, args: Sequence[Value], done: Callable[[Any], None] | None = None) -> None:
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
        pause, most = FIRST_WAIT, BATCH
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            batch = list(islice(self._queue, most))
            try:
                replies = await self._send(batch)
                taken = sum(1 for _ in self._taken(batch, replies))
            except Exception as error:
                # What redis-py raises besides its own errors must not end a task that everything else waits for.
                if not isinstance(error, Refused):
                    log.error("the store %s is in trouble", self._address.where, exc_info=error)
                taken = 0
            if taken:
                pause, most = FIRST_WAIT, min(2 * most, BATCH)
            if taken < len(batch):
                most = 1  # alone, a script that is refused for good says so
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_WAIT)

    async def _greet(self, connection: Any) -> None:
        """A Redis that was started again has forgotten the scripts: some must not run while others are not known."""
        await connection.on_connect()
        for script in self._loaded:
            await connection.send_command("SCRIPT", "LOAD", script)
            await connection.read_response()

    async def _send(self, batch: list[_Write]) -> list[Any]:
        """The replies, in order; an error is one of them."""
        scripts = [each for each in batch if each.script]
        with self._address.raising_store_errors(quietly=True):
            for script in {each.script for each in scripts} - self._loaded:
                await self._redis.script_load(script)
                self._loaded.add(script)
            # A transaction is not begun by a Redis that refuses one of its commands.
            async with self._redis.pipeline(transaction=len(scripts) > 1) as pipe:
                for each in scripts:
                    pipe.execute_command("EVALSHA", sha(each.script), 0, self._prefix, *each.args)
                found = iter(await pipe.execute(raise_on_error=False)) if scripts else iter(())
            return [next(found) if each.script else None for each in batch]

    def _taken(self, batch: list[_Write], replies: list[Any]) -> Iterator[_Write]:
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
            elif isinstance(reply, list) and reply[:1] == [streams.OUT_OF_ORDER]:
                # All that was written before is taken: Redis has lost it since, or refused it. The rest goes on.
                log.error("the store %s has lost events of a stream", self._address.where)
                self._queue.appendleft(_Write(streams.SKIP, cast("list[Value]", reply[1:]), None))
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
