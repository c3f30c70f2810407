"""Small tables that every worker has a copy of. A change is safe in Redis when it is acknowledged, and then told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from defserve.errors import LimitExceeded
from defserve.stores.shared.link import SharedLink
from defserve.stores.shared.scripts.head import HEAD, Value
from defserve.stores.store import StoreUnavailable

CHANGED: Final = "table"
TIMEOUT: Final = 5.0
MOST_BYTES: Final = 4 * 1024 * 1024

# table, name, value, the most bytes of a table, worker → whether there was room
PUT: Final = (
    HEAD
    + """
local key, name, value, size = P .. 'table:' .. ARGV[2], ARGV[3], ARGV[4], 0
for _, each in ipairs(call('HGETALL', key)) do size = size + #each end
if size + #name + #value > tonumber(ARGV[5]) then return 0 end
call('HSET', key, name, value)
news('t', 'table', 'n', ARGV[2], 'w', ARGV[6])
return 1
"""
)

# table → names and values
READ: Final = HEAD + "return call('HGETALL', P .. 'table:' .. ARGV[2])"


class SharedTable:
    """`values` is this worker's copy. `changed` is called after each change of it, on the loop of the link.

    `is_loaded` says whether the store was ever read: before, `values` has only what was put here.
    """

    def __init__(self, link: SharedLink, name: str, changed: Callable[[], None]) -> None:
        self._link, self._name, self._changed = link, name, changed
        self.values: dict[str, str] = {}
        self.is_loaded = False
        self._unsent: dict[str, str] = {}
        self._written: dict[str, str] = {}
        link.receive(CHANGED, self._on_change)
        link.caught_up.append(self._load)

    def put(self, name: str, value: str) -> None:
        """Set a value. In a thread it waits until the store has it; on the loop the store has it soon.

        Raises StoreUnavailable if the store is away, and LimitExceeded if the table is full. Before the link has
        started, values are remembered, and sent then.
        """
        loop = self._link.loop
        if loop is None:
            self._unsent[name] = value
        elif not self._link.is_up:
            raise StoreUnavailable("The store cannot be reached")
        elif self._link.is_on_loop:
            self._written[name] = value
            self._link.write(PUT, *self._arguments(name, value), done=partial(self._taken, name))
        else:
            waiting = asyncio.run_coroutine_threadsafe(self._link.run(PUT, *self._arguments(name, value)), loop)
            try:
                has_room = waiting.result(TIMEOUT)
            except TimeoutError:
                waiting.cancel()
                raise StoreUnavailable("The store does not answer") from None
            if not has_room:
                raise LimitExceeded("too many entries for all processes", data={"limit": self._name})
        self.values[name] = value

    def _taken(self, name: str, reply: Any) -> None:
        self._written.pop(name, None)

    def _arguments(self, name: str, value: str) -> tuple[Value, ...]:
        return self._name, name, value, MOST_BYTES, self._link.worker

    async def _on_change(self, fields: dict[str, bytes], id: str) -> None:
        if fields["n"].decode() == self._name:
            await self._load()

    async def _load(self) -> None:
        for name, value in self._unsent.items():
            await self._link.run(PUT, *self._arguments(name, value))
        self._unsent.clear()
        found: list[Any] = await self._link.run(READ, self._name)
        texts = [each.decode() for each in found]
        # What was put here must not be read as it was before.
        self.values = dict(zip(texts[::2], texts[1::2], strict=True)) | self._written
        self.is_loaded = True
        self._changed()
