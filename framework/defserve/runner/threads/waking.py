"""How a worker thread has something called on the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol


class Waking(Protocol):
    """`wake` is for any thread: the loop calls `action` soon. Raises RuntimeError if the loop has ended."""

    def wake(self, action: Callable[[], None], /) -> Any: ...

    def close(self) -> None: ...


def waking(loop: asyncio.AbstractEventLoop) -> Waking:
    """The quickest way for this loop."""
    if isinstance(loop, asyncio.SelectorEventLoop) and hasattr(os, "eventfd"):
        return EventWaking(loop)
    return LoopWaking(loop)


class LoopWaking:
    """The loop's own way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wake = loop.call_soon_threadsafe

    def close(self) -> None:
        pass


class EventWaking:
    """A descriptor that the loop watches. asyncio's own way makes a handle, and reads a socket until it is empty.

    Of actions that are given before the loop has called them, only the last is called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._lock = loop, threading.Lock()
        self._action: Callable[[], None] | None = None
        self._event: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event, self._woken, self._event)

    def wake(self, action: Callable[[], None], /) -> None:
        # Another file may have the number of a descriptor that is closed.
        with self._lock:
            if self._event is not None:
                self._action = action
                os.eventfd_write(self._event, 1)
                return
        self._loop.call_soon_threadsafe(action)

    def close(self) -> None:
        """From now on in the loop's own way."""
        with self._lock:
            event, self._event = self._event, None
        if event is not None:
            self._loop.remove_reader(event)
            os.close(event)
            if (action := self._take()) is not None:
                self._loop.call_soon(action)

    def _woken(self, event: int) -> None:
        os.eventfd_read(event)
        if (action := self._take()) is not None:
            Context().run(action)

    def _take(self) -> Callable[[], None] | None:
        with self._lock:
            action, self._action = self._action, None
        return action
