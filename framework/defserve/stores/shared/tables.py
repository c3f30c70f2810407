"""Small tables that every worker has a copy of. A change is safe in Redis when it is acknowledged, and then told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from defserve.errors import LimitExceeded
from defserve.stores.shared.link import SharedLink
from defserve.stores.shared.scripts.head import HEAD, Value
from defserve.stores.store import StoreUnavailable

log = logging.getLogger("defserve")

CHANGED: Final = "table"
TIMEOUT: Final = 5.0
MOST_BYTES: Final = 4 * 1024 * 1024

# table, name, value (empty: it is removed), the most bytes of a table, worker; then what else is removed if it is still
# so: names and values → whether there was room. What needs no more bytes than before always has room.
PUT: Final = (
    HEAD
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
READ: Final = HEAD + "return call('HGETALL', P .. 'table:' .. ARGV[2])"


class _Put(NamedTuple):
    name: str
    value: str
    is_restrictive: bool
    dropped: Mapping[str, str]


class SharedTable:
    """`values` is this worker's copy. `changed` is called after each change of it, on the loop of the link.

    `is_loaded` says whether the store was ever read: before, `values` has only what was put here.
    """

    def __init__(self, link: SharedLink, name: str, changed: Callable[[], None]) -> None:
        self._link, self._name, self._changed = link, name, changed
        self.values: dict[str, str] = {}
        self.is_loaded = False
        self._unsent: dict[str, _Put] = {}
        self._written: dict[str, str] = {}
        self._reads = self._last_read = 0
        link.receive(CHANGED, self._on_change)
        link.caught_up.append(self._load)

    def put(
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
            self._link.write(PUT, *self._arguments(put), done=partial(self._taken, put))
        else:
            waiting = asyncio.run_coroutine_threadsafe(self._put(put), loop)
            try:
                has_room = waiting.result(TIMEOUT)
            except TimeoutError:
                waiting.cancel()
                raise StoreUnavailable("The store does not answer") from None
            if not has_room:
                raise LimitExceeded("too many entries for all processes", data={"limit": self._name})
            return
        self.values = _merged(self.values, {name: value})

    async def _put(self, put: _Put) -> bool:
        has_room = bool(await self._link.run(PUT, *self._arguments(put)))
        # Another process may have changed it since.
        await self._read()
        return has_room

    def _taken(self, put: _Put, has_room: Any) -> None:
        if not has_room:
            log.error("the table %r of all processes is full: the others do not know of %s", self._name, put.name)
            if put.is_restrictive:
                self._written[put.name] = put.value
                return
            self._link.write(READ, self._name, done=partial(self._reread, self._next_read()))
        # Not the same text but the same object: another put may be on its way.
        if self._written.get(put.name) is put.value:
            del self._written[put.name]

    def _arguments(self, put: _Put) -> tuple[Value, ...]:
        most = MOST_BYTES * (2 if put.is_restrictive else 1)
        dropped = [text for pair in put.dropped.items() for text in pair]
        return self._name, put.name, put.value, most, self._link.worker, *dropped

    async def _on_change(self, fields: dict[str, bytes], id: str) -> None:
        if fields["n"].decode() == self._name:
            await self._load()

    async def _load(self) -> None:
        for put in self._unsent.values():
            self._taken(put, await self._link.run(PUT, *self._arguments(put)))
        self._unsent.clear()
        await self._read()
        self._changed()

    def _next_read(self) -> int:
        self._reads += 1
        return self._reads

    async def _read(self) -> None:
        number = self._next_read()
        self._take(number, await self._link.run(READ, self._name))

    def _reread(self, number: int, found: list[Any] | None) -> None:
        if found is not None:
            self._take(number, found)
            self._changed()

    def _take(self, number: int, found: list[Any]) -> None:
        if number < self._last_read:  # a later one was faster; if this one knows more, news of that is on its way
            return
        self._last_read = number
        texts = [each.decode() for each in found]
        # What was put here must not be read as it was before.
        self.values = _merged(dict(zip(texts[::2], texts[1::2], strict=True)), self._written)
        self.is_loaded = True


def _merged(values: Mapping[str, str], put: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**values, **put}.items() if value}
