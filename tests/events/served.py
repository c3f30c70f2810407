"""The server of the campaign: two workers, one Redis. Its tool emits, and answers when the events are acknowledged.

Started as `served.py --workers 2 --on http://…`, with the store and the keys in the environment.
"""

from __future__ import annotations

import os
from typing import TypedDict

from defserve import Context, Server
from defserve.auth import ApiKeys
from defserve.auth.rates import Rate
from defserve.protocols.mcp.events import sending, webhook_records
from defserve.server import EventSettings

# All receivers are on this machine, and they are away for a second, not for minutes.
sending.DESTINATION_RATE = Rate(per_second=100_000, burst=100_000)  # pyright: ignore
webhook_records.FIRST_RETRY_SECONDS = 0.2  # pyright: ignore
webhook_records.MAX_RETRY_SECONDS = 2.0  # pyright: ignore
webhook_records.MAX_ATTEMPTS = 100_000  # pyright: ignore
webhook_records.SUSPEND_AFTER = 100_000  # pyright: ignore


class Move(TypedDict):
    emitter: int
    number: int


SETTINGS = EventSettings(
    max_events=1_000_000,
    max_bytes=1 << 30,
    webhooks=10_000,
    webhooks_total=20_000,
    webhook_ttl=86_400,
    allow_loopback=True,
)
server = Server(
    "campaign",
    "1",
    store=os.environ["CAMPAIGN_STORE"],
    auth=ApiKeys(os.environ["CAMPAIGN_KEYS"]),
    experimental=[SETTINGS],
)


@server.event
def moved(lane: str) -> Move:
    """Something moved."""
    ...  # noqa: PIE790  (type checkers want it)


@server.tool
async def move(ctx: Context, lane: str, emitter: int, first: int, count: int) -> int:
    """Emit events, one after another. Returns the process that did."""
    for number in range(first, first + count):
        data = Move(emitter=emitter, number=number)
        await ctx.emit_event(moved, data, lane=lane, event_id=f"{emitter}-{number}")
    return os.getpid()


if __name__ == "__main__":
    server.main()
