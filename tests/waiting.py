"""Waiting for what somebody else does: until a condition holds, with a deadline that only a broken program meets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve import Server

DEADLINE = 60.0
# How long it is waited between two looks: a tenth longer each time, so that a long wait takes no processor from others.
FIRST_POLL, LONGEST_POLL, GROWTH = 0.001, 0.02, 1.1


async def until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Wait, on the loop, for what a thread, a process or another task does. Raises TimeoutError."""
    pause = FIRST_POLL
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_POLL)


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """The same without a loop."""
    deadline, pause = time.monotonic() + seconds, FIRST_POLL
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come to be within {seconds:g} s")
        time.sleep(pause)
        pause = min(pause * GROWTH, LONGEST_POLL)


def is_running(process: int) -> bool:
    """Whether a process runs. One that has ended, and that nobody has waited for, does not."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # there is no /proc, or the process has just gone
        return not Path("/proc/self").exists()


def slow_tool(server: Server, ended: list[str]) -> asyncio.Event:
    """Give a server the tool `slow`, which ends only when it is stopped, and then says so. The event: it has begun."""
    began = asyncio.Event()

    @server.tool
    async def slow() -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")
        return ""

    return began
