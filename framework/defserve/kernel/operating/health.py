"""`defserve kernel health`: whether each server answers now, and how fast."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Protocol

from defserve.errors import PeerError
from defserve.kernel.members import Member
from defserve.protocols.mgp import instants

PING_SECONDS: Final = 5.0
AT_ONCE: Final = 16


class ProbedKernel(Protocol):
    """The part of a kernel that this verb uses."""

    members: dict[str, Member]

    def member(self, id: str) -> Member: ...


async def health(kernel: ProbedKernel, id: str | None = None) -> list[dict[str, Any]]:
    """The health of one server, or of all. A slow one delays the answer by at most five seconds."""
    members = [kernel.member(id)] if id is not None else list(kernel.members.values())
    room = asyncio.Semaphore(AT_ONCE)

    async def each(member: Member) -> dict[str, Any]:
        async with room:
            return await health_of(member)

    return await asyncio.gather(*map(each, members))


async def health_of(member: Member) -> dict[str, Any]:
    """What one server answers now. `status` is None for one that does not run and need not."""
    backend = member.backend
    found: dict[str, Any] = {"id": member.id, "state": member.state, "status": None}
    if backend is not None:
        found |= {
            "tools": backend.tools,
            "pending_requests": backend.calls,
            "calls_total": backend.calls_total,
            "restarts": backend.restarts,
            "uptime_secs": int(time.time() - backend.since) if backend.state == "connected" else None,
        }
    if backend is not None and backend.state == "connected":
        began = time.perf_counter()
        try:
            found["status"] = await backend.ping(PING_SECONDS) or "healthy"
        except PeerError as error:
            found |= {"status": "unhealthy", "problem": member.hidden(error.message)}
        found["latency_ms"] = round((time.perf_counter() - began) * 1000, 1)
    elif member.state == "error":
        found |= {"status": "unhealthy", "problem": member.problem or member.hidden(backend.note if backend else "")}
    return {**found, "observed_at": instants.wire(instants.now())}
