"""Rates that all workers count together: token buckets in Redis, by the clock of Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from defserve.stores.shared.link import SharedLink
from defserve.stores.shared.scripts.head import HEAD
from defserve.stores.store import StoreUnavailable

# How long a call waits for the count. After that this process counts by itself.
TIMEOUT: Final = 1.0
MICROSECONDS: Final = 1_000_000

# For each bucket: key, microseconds for one token, tokens → the place of the bucket that is emptiest, and the
# microseconds until it has a token; 0 and 0: one was taken of each. Of several buckets all are counted, or none.
TAKE: Final = (
    HEAD
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

    def __init__(self, link: SharedLink) -> None:
        self._link = link

    async def take(self, buckets: Sequence[tuple[str, float, int]]) -> tuple[int, float]:
        """Take a token from each bucket of (key, tokens a second, burst), in one round trip. Returns 0 and 0.0.

        If one has none, takes nothing, and returns its place, from 1 on, and the seconds until it has one. Raises
        StoreUnavailable, at once while the store is away.
        """
        if not self._link.is_up or not self._link.is_on_loop:
            raise StoreUnavailable("The store cannot be reached")
        args = [part for key, per_second, burst in buckets for part in (key, f"{MICROSECONDS / per_second:.3f}", burst)]
        try:
            async with asyncio.timeout(TIMEOUT):
                found: Any = await self._link.run(TAKE, *args)
        except TimeoutError:
            raise StoreUnavailable("The store does not answer") from None
        return int(found[0]), int(found[1]) / MICROSECONDS
