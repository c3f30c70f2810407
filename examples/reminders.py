"""Reminders: a server that speaks up by itself. When one is due, the host is told, and may let its model act on it.

An MCPL host is sent `push/event`. Any other client finds what is due in `inbox://reminders.due`, by subscription or by
reading it now and then.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

from defserve import Context, Server
from defserve.live import Event

server = Server("reminders", "1.0.0")
due = server.feature_set("reminders.due", "Tells you when a reminder is due", inbox=True)


@dataclass
class Clock:
    """What time it is, and how often to look; a test has one of its own."""

    every: float = 0.1
    now: float | None = None

    def time(self) -> float:
        return time.time() if self.now is None else self.now


@dataclass(order=True)
class Reminder:
    at: float
    number: int
    text: str = field(compare=False)
    whose: str = field(compare=False)


clock = Clock()
numbers = count(1)
waiting: list[Reminder] = []


@server.tool
async def remind(text: str, ctx: Context, seconds: float = 0) -> str:
    """Remind me of something, in so many seconds."""
    reminder = Reminder(clock.time() + seconds, next(numbers), text, ctx.principal)
    waiting.append(reminder)
    if not ctx.can("push"):
        return f"reminder {reminder.number} is set, but this client will not hear of it"
    return f"reminder {reminder.number} is set"


@server.tool
async def pending(ctx: Context) -> list[str]:
    """What I will be reminded of."""
    return [reminder.text for reminder in sorted(waiting) if reminder.whose == ctx.principal]


@due.events(per="server")
async def ring() -> AsyncIterator[Event]:
    """Look at the clock; what is due is for the one who asked."""
    while True:
        for reminder in [one for one in sorted(waiting) if one.at <= clock.time()]:
            waiting.remove(reminder)
            yield Event(
                f"Reminder: {reminder.text}",
                id=f"reminder_{reminder.number}",
                origin={"reminder": reminder.number},
                to=reminder.whose,
            )
        await asyncio.sleep(clock.every)


if __name__ == "__main__":
    server.main()
