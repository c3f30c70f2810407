"""Whether servers that run still answer. One task for each server, so that a slow one delays no other."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from defserve.errors import PeerError, PeerGone, PeerTimeout
from defserve.kernel.members import Member

JITTER: Final = 0.2
UNWATCHED_SECONDS: Final = 5.0
"""After so long a server without probes looks whether the file wants some now."""


async def probe(member: Member) -> None:
    """Probe a server for ever, as its entry says at each moment. So many late answers in a row are its failure.

    A probe is no call: it is not counted, and it keeps no server awake.
    """
    late = 0
    while True:
        interval = member.entry.health.interval_secs
        await asyncio.sleep(interval * (1 - JITTER * random.random()) or UNWATCHED_SECONDS)
        rules, backend = member.entry.health, member.backend
        if not rules.interval_secs or backend is None or backend.state != "connected":
            late, member.health = 0, ""
            continue
        late = 0 if await _answers(member, rules.timeout_secs) else late + 1
        if late >= rules.failures:
            late = 0
            backend.fail(f"it did not answer {rules.failures} probes in a row")


async def _answers(member: Member, seconds: float) -> bool:
    assert member.backend is not None
    said = None
    try:
        said = await member.backend.ping(seconds)
    except (PeerTimeout, PeerGone):
        member.health = "late"
        return False
    except PeerError:
        pass  # it knows no ping, and says so: that is an answer
    # A server that answers that it is not well still answers: that is shown, and is no reason to end it.
    member.health = said or "answers"
    return True
