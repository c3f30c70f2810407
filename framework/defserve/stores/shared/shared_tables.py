"""What all workers have together, on top of the link: tables, work that is done once, and rates.

Tables are small, and every worker has a copy. A change is safe in Redis when it is acknowledged, and then told.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.errors import LimitExceeded, TimedOut
from defserve.stores.shared.lua_scripts import LUA_PRELUDE, ScriptArgument
from defserve.stores.shared.worker_link import SharedStoreLink
from defserve.stores.store import StoreFull, StoreUnavailable

log = get_logger()

CHANGED: Final = "table"
TABLE_TIMEOUT: Final = 5.0
MAX_TABLE_BYTES: Final = 4 * 1024 * 1024

# table, name, value (empty: it is removed), the most bytes of a table, worker; then what else is removed if it is still
# so: names and values → whether there was room. What needs no more bytes than before always has room.
PUT_ENTRY: Final = (
    LUA_PRELUDE
    + """
local key, name, value, size = P .. 'table:' .. ARGV[2], ARGV[3], ARGV[4], 0
for at = 7, #ARGV, 2 do
  if ARGV[at] ~= name and call('HGET', key, ARGV[at]) == ARGV[at + 1] then call('HDEL', key, ARGV[at]) end
end
local old = call('HGET', key, name)
local more = value == '' and 0 or #name + #value - (old and #name + #old or 0)
if more > 0 then
  for _, each in ipairs(call('HGETALL', key)) do size = size + #each end
  if size + more > tonumber(ARGV[5]) then return 0 end
end
if value == '' then call('HDEL', key, name) else call('HSET', key, name, value) end
news('t', 'table', 'n', ARGV[2], 'w', ARGV[6])
return 1
"""
)

# table → names and values
READ_TABLE: Final = LUA_PRELUDE + "return call('HGETALL', P .. 'table:' .. ARGV[2])"


class _Put(NamedTuple):
    name: str
    value: str
    is_restrictive: bool
    dropped: Mapping[str, str]


class SharedTable:
    """`values` is this worker's copy. `changed` is called after each change of it, on the loop of the link.

    `is_loaded` says whether the store was ever read: before, `values` has only what was put here.
    """

    def __init__(self, link: SharedStoreLink, name: str, changed: Callable[[], None]) -> None:
        self._link, self._name, self._changed = link, name, changed
        self.values: dict[str, str] = {}
        self.is_loaded = False
        self._unsent: dict[str, _Put] = {}
        self._written: dict[str, str] = {}
        self._reads = self._last_read = 0
        link.add_receiver(CHANGED, self._on_change)
        link.caught_up.append(self._load)

    def set_value(
        self, name: str, value: str, *, is_restrictive: bool = False, dropped: Mapping[str, str] | None = None
    ) -> None:
        """Set a value; an empty one removes it. In a thread it waits until the store has it; on the loop the store has
        it soon.

        Raises StoreUnavailable if the store is away, and LimitExceeded if the table is full. On the loop, a full table
        is logged. A restrictive value has twice the room; if there is none, it holds in this process. `dropped` is
        removed, too, if it still has these values. Before the link has started, values are remembered, and sent then.
        """
        put, loop = _Put(name, value, is_restrictive, dropped or {}), self._link.loop
        if loop is None:
            self._unsent[name] = put
        elif not self._link.is_up:
            raise StoreUnavailable("The store cannot be reached")
        elif self._link.is_on_loop:
            self._written[name] = value
            self._link.queue_script(PUT_ENTRY, *self._arguments(put), done=partial(self._on_put_done, put))
        else:
            waiting = asyncio.run_coroutine_threadsafe(self._write_value(put), loop)
            try:
                has_room = waiting.result(TABLE_TIMEOUT)
            except TimeoutError:
                waiting.cancel()
                raise StoreUnavailable("The store does not answer") from None
            if not has_room:
                raise LimitExceeded("too many entries for all processes", data={"limit": self._name})
            return
        self.values = _merge_values(self.values, {name: value})

    async def _write_value(self, put: _Put) -> bool:
        has_room = bool(await self._link.run_script(PUT_ENTRY, *self._arguments(put)))
        # Another process may have changed it since.
        await self._load_values()
        return has_room

    def _on_put_done(self, put: _Put, has_room: Any) -> None:
        if not has_room:
            log.error("the table %r of all processes is full: the others do not know of %s", self._name, put.name)
            if put.is_restrictive:
                self._written[put.name] = put.value
                return
            self._link.queue_script(READ_TABLE, self._name, done=partial(self._reread, self._next_read()))
        # Not the same text but the same object: another put may be on its way.
        if self._written.get(put.name) is put.value:
            del self._written[put.name]

    def _arguments(self, put: _Put) -> tuple[ScriptArgument, ...]:
        most = MAX_TABLE_BYTES * (2 if put.is_restrictive else 1)
        dropped = [text for pair in put.dropped.items() for text in pair]
        return self._name, put.name, put.value, most, self._link.worker, *dropped

    async def _on_change(self, fields: dict[str, bytes], id: str) -> None:
        if fields["n"].decode() == self._name:
            await self._load()

    async def _load(self) -> None:
        for put in self._unsent.values():
            self._on_put_done(put, await self._link.run_script(PUT_ENTRY, *self._arguments(put)))
        self._unsent.clear()
        await self._load_values()
        self._changed()

    def _next_read(self) -> int:
        self._reads += 1
        return self._reads

    async def _load_values(self) -> None:
        self._apply_values(self._next_read(), await self._link.run_script(READ_TABLE, self._name))

    def _reread(self, number: int, found: list[Any] | None) -> None:
        if found is not None:
            self._apply_values(number, found)
            self._changed()

    def _apply_values(self, number: int, found: list[Any]) -> None:
        if number < self._last_read:  # a later one was faster; if this one knows more, news of that is on its way
            return
        self._last_read = number
        texts = [each.decode() for each in found]
        # What was put here must not be read as it was before.
        self.values = _merge_values(dict(zip(texts[::2], texts[1::2], strict=True)), self._written)
        self.is_loaded = True


def _merge_values(values: Mapping[str, str], put: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**values, **put}.items() if value}


# -- Work that all workers together do once for each key. Whoever comes second waits, and gets what came of it.


FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5
DONE, MINE = b"done", b"mine"

# key, who wants to do it, ttl → 'done' and the outcome; 'mine': it is to be done now; 'busy': a living worker does it
BEGIN_WORK: Final = (
    LUA_PRELUDE
    + """
local key, who = P .. 'once:' .. ARGV[2], ARGV[3]
local found = call('HMGET', key, 'outcome', 'who')
if found[1] then return {'done', found[1]} end
if found[2] and found[2] ~= who and alive(found[2]:match('^(%w+)/')) then return {'busy'} end
call('HSET', key, 'who', who)
keep(key, ARGV[4])
return {'mine'}
"""
)

# key, who did it, ttl, the outcome; '' if it is not kept, so that the next one does it again
END_WORK: Final = (
    LUA_PRELUDE
    + """
local key = P .. 'once:' .. ARGV[2]
if call('HGET', key, 'who') ~= ARGV[3] then return 0 end
if ARGV[5] == '' then return call('DEL', key) end
call('HSET', key, 'outcome', ARGV[5])
keep(key, ARGV[4])
return 1
"""
)

OnceWork = Callable[[], Awaitable[tuple[str, bool]]]
"""Gives the outcome, and whether it is kept."""


class SharedOnceRunner:
    """While the store is away, each worker does it by itself. A worker that dies leaves it to the next one."""

    def __init__(self, link: SharedStoreLink) -> None:
        self._link = link

    async def run_once(self, key: str, seconds: float, work: OnceWork, patience: float | None = None) -> str:
        """The outcome of `work`, which is kept for so many seconds, or that of another worker.

        Raises TimedOut if another worker does it, lives, and has not done it within `patience` seconds.
        """
        if not self._link.is_up or not self._link.is_on_loop:
            return (await work())[0]
        name, who = hashlib.sha256(key.encode()).hexdigest(), self._link.make_unique_name().replace(".", "/")
        ttl, backoff, waited = int(seconds * 1000), Backoff(FIRST_POLL_SECONDS, MAX_POLL_SECONDS), 0.0
        while True:
            try:
                found: Any = await self._link.run_script(BEGIN_WORK, name, who, ttl)
            except (StoreUnavailable, StoreFull):
                return await self._do(name, who, ttl, work)  # only the reply may be lost, and all wait for this one
            except BaseException:
                self._link.queue_script(END_WORK, name, who, ttl, "")
                raise
            if found[0] == DONE:
                return found[1].decode()
            if found[0] == MINE:
                return await self._do(name, who, ttl, work)
            if patience is not None and waited >= patience:
                raise TimedOut(
                    f"another process has not finished this within {patience:g} s",
                    data={"timeout_ms": int(patience * 1000)},
                )
            await asyncio.sleep(pause := backoff.next_wait())
            waited += pause

    async def _do(self, name: str, who: str, ttl: int, work: OnceWork) -> str:
        kept = ""
        try:
            outcome, is_kept = await work()
            kept = outcome if is_kept else ""
            return outcome
        finally:
            self._link.queue_script(END_WORK, name, who, ttl, kept)


# -- Rates that all workers count together: token buckets in Redis, by the clock of Redis.


# How long a call waits for the count. After that this process counts by itself.
RATE_TIMEOUT: Final = 1.0
MICROSECONDS: Final = 1_000_000

# For each bucket: key, microseconds for one token, tokens → the place of the bucket that is emptiest, and the
# microseconds until it has a token; 0 and 0: one was taken of each. Of several buckets all are counted, or none.
TAKE_TOKENS: Final = (
    LUA_PRELUDE
    + """
local clock = call('TIME')
local time = clock[1] * 1000000 + clock[2]
local place, wait, full_at = 0, 0, {}
for at = 2, #ARGV, 3 do
  local each, burst = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local until_full = tonumber(call('GET', P .. 'rate:' .. ARGV[at]) or time) - time
  -- A clock that went back must not empty a bucket beyond its bottom.
  until_full = math.min(math.max(until_full, 0), each * burst)
  full_at[at] = time + until_full + each
  local missing = until_full - each * (burst - 1)
  if missing >= 1 and missing > wait then place, wait = (at + 1) / 3, missing end
end
if place > 0 then return {place, string.format('%.0f', math.ceil(wait))} end
for at, when in pairs(full_at) do
  local ttl = math.max(1, math.ceil((when - time) / 1000))
  call('SET', P .. 'rate:' .. ARGV[at], string.format('%.0f', when), 'PX', string.format('%.0f', ttl))
end
return {0, 0}
"""
)


class SharedRates:
    """Takes tokens from buckets that all workers share. A bucket that is full takes no room."""

    def __init__(self, link: SharedStoreLink) -> None:
        self._link = link

    async def take_tokens(self, buckets: Sequence[tuple[str, float, int]]) -> tuple[int, float]:
        """Take a token from each bucket of (key, tokens a second, burst), in one round trip. Returns 0 and 0.0.

        If one has none, takes nothing, and returns its place, from 1 on, and the seconds until it has one. Raises
        StoreUnavailable, at once while the store is away.
        """
        if not self._link.is_up or not self._link.is_on_loop:
            raise StoreUnavailable("The store cannot be reached")
        args = [part for key, per_second, burst in buckets for part in (key, f"{MICROSECONDS / per_second:.3f}", burst)]
        try:
            async with asyncio.timeout(RATE_TIMEOUT):
                found: Any = await self._link.run_script(TAKE_TOKENS, *args)
        except TimeoutError:
            raise StoreUnavailable("The store does not answer") from None
        return int(found[0]), int(found[1]) / MICROSECONDS
