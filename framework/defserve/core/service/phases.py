"""A server's phases. Runners move it from one to the next, and extensions are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Literal, Protocol, TypeAlias

Phase: TypeAlias = Literal["idle", "starting", "serving", "draining", "stopped", "failed"]
Stop: TypeAlias = Callable[[float], None]


class ServedComposition(Protocol):
    """What changes with the phase: whether calls are refused, and who is told."""

    draining: bool

    @property
    def phase_watchers(self) -> Sequence[Callable[[Any, Phase], None]]: ...


class Service:
    """The phase of a composition that one or more runners serve.

    `phase` is `stopped` when the last runner has ended, and `idle` again when another begins. `reason` is the
    reason given for its end, `began` the monotonic time when serving began.
    """

    __slots__ = ("phase", "reason", "began", "_composition", "_runners")

    def __init__(self, composition: ServedComposition) -> None:
        self.phase: Phase = "idle"
        self.reason, self.began = "", monotonic()
        self._composition = composition
        self._runners: list[Stop] = []

    # -- for runners -------------------------------------------------------------------------------------

    def begin(self, stop: Stop) -> None:
        """A runner begins. `stop(seconds)`, from any thread, makes it drain for so many seconds and then end."""
        if not self._runners:
            self.phase, self.reason, self.began = "idle", "", monotonic()
            self._composition.draining = False
            self._enter("starting")
        self._runners.append(stop)

    def ready(self) -> None:
        """Calls are taken from now on."""
        if self.phase == "starting":
            self._enter("serving")

    def drain(self, reason: str = "") -> None:
        """Take no new calls. Extensions are told before the first call is refused."""
        if self.phase == "serving":
            self.reason = reason
            self._enter("draining")
        self._composition.draining = True

    def end(self, stop: Stop) -> None:
        """A runner has answered its last call and will close its conversations. Calling it again does nothing."""
        if stop not in self._runners:
            return
        self._runners.remove(stop)
        if self._runners:
            return
        if self.phase == "starting":
            self._enter("failed")
        else:
            self.drain()
            self._enter("stopped")

    # -- ending ------------------------------------------------------------------------------------------

    def stop(self, seconds: float, reason: str = "") -> None:
        """Drain, then end. Calls in flight get so many seconds. Call it on the loop of one of the runners."""
        self.drain(reason)
        for stop in list(self._runners):
            with suppress(RuntimeError):  # its loop is gone, and the runner with it
                stop(seconds)

    def _enter(self, phase: Phase) -> None:
        previous, self.phase = self.phase, phase
        for changed in self._composition.phase_watchers:
            try:
                changed(self._composition, previous)
            except Exception:
                import logging

                # A watcher that fails must not keep a server from ending.
                logging.getLogger("defserve").exception("an extension failed at the phase %s", phase)
