"""Work that all workers together do once for each key. Whoever comes second waits, and gets what came of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from defserve.errors import TimedOut
from defserve.stores.shared.link import SharedLink
from defserve.stores.shared.scripts.head import HEAD
from defserve.stores.store import StoreFull, StoreUnavailable

FIRST_LOOK, LONGEST_LOOK = 0.02, 0.5
DONE, MINE = b"done", b"mine"

# key, who wants to do it, ttl → 'done' and the outcome; 'mine': it is to be done now; 'busy': a living worker does it
BEGIN: Final = (
    HEAD
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
END: Final = (
    HEAD
    + """
local key = P .. 'once:' .. ARGV[2]
if call('HGET', key, 'who') ~= ARGV[3] then return 0 end
if ARGV[5] == '' then return call('DEL', key) end
call('HSET', key, 'outcome', ARGV[5])
keep(key, ARGV[4])
return 1
"""
)

Work = Callable[[], Awaitable[tuple[str, bool]]]
"""Gives the outcome, and whether it is kept."""


class SharedOnce:
    """While the store is away, each worker does it by itself. A worker that dies leaves it to the next one."""

    def __init__(self, link: SharedLink) -> None:
        self._link = link

    async def run(self, key: str, seconds: float, work: Work, patience: float | None = None) -> str:
        """The outcome of `work`, which is kept for so many seconds, or of who did it before.

        Raises TimedOut if another worker does it, lives, and has not done it within `patience` seconds.
        """
        if not self._link.is_up or not self._link.is_on_loop:
            return (await work())[0]
        name, who = hashlib.sha256(key.encode()).hexdigest(), self._link.new_name().replace(".", "/")
        ttl, pause, waited = int(seconds * 1000), FIRST_LOOK, 0.0
        while True:
            try:
                found: Any = await self._link.run(BEGIN, name, who, ttl)
            except (StoreUnavailable, StoreFull):
                return await self._do(name, who, ttl, work)  # only the reply may be lost, and all wait for this one
            except BaseException:
                self._link.write(END, name, who, ttl, "")
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
            await asyncio.sleep(pause)
            waited += pause
            pause = min(2 * pause, LONGEST_LOOK)

    async def _do(self, name: str, who: str, ttl: int, work: Work) -> str:
        kept = ""
        try:
            outcome, is_kept = await work()
            kept = outcome if is_kept else ""
            return outcome
        finally:
            self._link.write(END, name, who, ttl, kept)
