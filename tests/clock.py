"""An event loop whose clock a test holds: it stands still while anything can run, and then jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class HeldClock(asyncio.SelectorEventLoop):
    """`now` is the time. A test may move it forward, as code that blocks the loop would."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self._clock_resolution = 1e-6  # asyncio's is lost beside large times, and a timer would never be due
        self._wait, selector.select = selector.select, self._jump  # type: ignore[method-assign]

    def time(self) -> float:
        return self.now

    def _jump(self, timeout: float | None = None) -> Any:
        ready = self._wait(0 if timeout is not None else None)
        if timeout is not None and not ready:
            self.now += timeout
        return ready


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Run `work` on such a loop. Nothing in it may wait for a thread or a process."""
    loop = HeldClock()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
