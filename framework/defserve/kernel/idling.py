"""Servers that nobody uses are ended until the next call. One task for each server."""

from __future__ import annotations

import asyncio
from typing import Final

from defserve.kernel.members import Member

SHORTEST_LOOK, LONGEST_LOOK = 0.05, 5.0
SHARE: Final = 0.25
"""A server is looked at so often that it is ended at most this share of its time late."""


async def end_when_idle(member: Member) -> None:
    """Put a server to sleep after the time that its entry says; a lazy one as soon as its tools are known."""
    loop = asyncio.get_running_loop()
    seen, since = 0, loop.time()
    while True:
        limit = member.entry.idle_stop
        await asyncio.sleep(min(max(limit * SHARE, SHORTEST_LOOK), LONGEST_LOOK) if limit else LONGEST_LOOK)
        backend, entry = member.backend, member.entry
        if backend is None or backend.state != "connected" or backend.calls or backend.calls_total != seen:
            seen, since = backend.calls_total if backend is not None else 0, loop.time()
            continue
        is_unused = entry.start == "lazy" and not backend.calls_total
        if is_unused or (entry.idle_stop and loop.time() - since >= entry.idle_stop):
            async with member.changing:
                await backend.sleep()
