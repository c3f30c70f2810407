"""Waiting for what somebody else does: until a condition holds, with a deadline that only a broken program meets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEADLINE = 30.0
POLL = 0.001


async def until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Wait, on the loop, for what a thread, a process or another task does. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (threads and processes set no asyncio.Event)
            await asyncio.sleep(POLL)


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """The same without a loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come to be within {seconds:g} s")
        time.sleep(POLL)
