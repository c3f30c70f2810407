"""The state that a server behind this one is in (MGP §11.2), and who is told when it changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

State: TypeAlias = Literal["registered", "connecting", "connected", "draining", "disconnected", "restarting", "error"]

ASLEEP: Final = "asleep; the next call starts it"
# What clients are told. Why a server failed is for operators: its last words name paths, commands and more.
TOLD: Final[Mapping[State, str]] = {
    "registered": "it has not been started",
    "connecting": "it is being started",
    "connected": "it is connected",
    "draining": "it is shutting down",
    "disconnected": "it is stopped",
    "restarting": "it is being restarted",
    "error": "it does not run; its operator finds the reason in the log",
}

log = logging.getLogger("defserve.proxying")


@dataclass(frozen=True, slots=True)
class Transition:
    """A backend went from one state to another. `reason` is for people, without secrets."""

    previous: State
    new: State
    reason: str


class BackendState:
    """The state of one backend: `now`, since the time `since`. `note` has its last words, which are for operators."""

    def __init__(self, id: str) -> None:
        self._id = id
        self.now: State = "registered"
        self.note = ""
        self.since = time.time()
        self._watchers: dict[object, Callable[[Transition], None]] = {}
        self.join_loop()

    def join_loop(self) -> None:
        """Belong to the event loop that comes next: what waits must wait on that one."""
        self.settled = asyncio.Event()

    def enter(self, state: State, reason: str) -> None:
        """The backend is in this state from now on."""
        previous, self.now = self.now, state
        self.since = time.time()
        if state in ("connected", "error", "disconnected"):
            self.settled.set()
        elif state in ("connecting", "restarting"):
            self.settled.clear()
        if state == "connected":
            self.note = ""
        log.log(logging.WARNING if state == "error" else logging.INFO, "server %r: %s (%s)", self._id, state, reason)
        transition = Transition(previous, state, reason)
        for changed in list(self._watchers.values()):
            try:
                changed(transition)
            except Exception:
                log.exception("a watcher of server %r failed", self._id)

    def unsettle(self) -> None:
        """It has left, and what comes of that is not known yet. Who needs it waits."""
        if self.now == "connected":
            self.settled.clear()

    def watch(self, changed: Callable[[Transition], None]) -> Callable[[], None]:
        """Call `changed` after each change. Returns the function that ends it."""
        key = object()
        self._watchers[key] = changed
        return lambda: self._watchers.pop(key, None) and None

    async def ready(self, seconds: float) -> None:
        """Wait until it is connected, or has failed; at most so many seconds."""
        if not self.settled.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.settled.wait()
