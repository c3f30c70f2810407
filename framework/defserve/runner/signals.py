"""What ends a process that serves: signals, and a clock for code that does not listen to them.

For pipes and outgoing connections. Over HTTP, uvicorn catches the signals: see `network.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from defserve.core.composition import Composition

if TYPE_CHECKING:
    import asyncio

INTERRUPTED = 130
STUCK_LOOP_SECONDS = 1.0


class Stopper:
    """SIGTERM drains, SIGINT ends, a second signal of either kind ends at once.

    Before and after serving, a signal cancels `main`, and so the code of a lifespan. A stuck loop does not react to
    signals, and code may swallow its cancellation. Then the process is ended anyway.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, composition: Composition) -> None:
        import asyncio

        self.loop, self.composition = loop, composition
        self.main: asyncio.Task[Any] | None = None
        self.over = asyncio.Event()
        self.seconds: float | None = None
        self.serving = self.interrupted = self.finished = False
        self._signalled = False
        self._sent = self._heard = 0
        self._again: asyncio.Future[None] = loop.create_future()

    def listen(self) -> None:
        for number, action in ((signal.SIGTERM, self._drain), (signal.SIGINT, self._interrupt)):
            try:
                self.loop.add_signal_handler(number, action)
                signal.signal(number, self._watch)
                signal.siginterrupt(number, False)
            except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
                return

    async def unless_asked_again(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do the work, unless another signal comes first."""
        import asyncio

        task = self.loop.create_task(work)
        await asyncio.wait((task, self._again), return_when=asyncio.FIRST_COMPLETED)
        task.cancel()

    def finish(self) -> None:
        """Nothing is left to end. A signal that comes from now on does not write to a loop that closes."""
        self.finished = True
        with suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(-1)

    def give(self, seconds: float) -> None:
        """Give the remaining work so many seconds."""
        self.loop.call_later(seconds, self.cut_short, STUCK_LOOP_SECONDS)
        end_unless(lambda: self.finished, seconds + STUCK_LOOP_SECONDS, self.exit_code)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.interrupted else 0

    def _watch(self, number: int, frame: Any) -> None:
        # Runs besides the loop's own handler, which a stuck loop never calls.
        self._sent += 1
        sent, interrupt = self._sent, number == signal.SIGINT
        seconds = STUCK_LOOP_SECONDS if interrupt or self._heard < sent - 1 else self.composition.limits.drain
        end_unless(lambda: self._heard >= sent or self.finished, seconds, INTERRUPTED if interrupt else 0)

    def drain(self, seconds: float) -> None:
        """Give the running calls so many seconds, then end. A later call changes nothing."""
        if not self.over.is_set():
            self.seconds = seconds
            self.over.set()

    def hear(self, number: int) -> None:
        """Take a signal that came before anything was served."""
        self._signalled = True
        if number == signal.SIGINT:
            self._interrupt()
        else:
            self.composition.service.stop(self.composition.limits.drain)

    def _drain(self) -> None:
        if self._signalled or not self.serving:
            self._stop()
            return
        self._signalled, self._heard = True, self._sent
        if not self.over.is_set():
            self.composition.service.stop(self.composition.limits.drain)

    def _interrupt(self) -> None:
        self.interrupted = True
        self._stop()

    def _stop(self) -> None:
        self._heard = self._sent
        if not self.serving:
            self.cut_short(STUCK_LOOP_SECONDS if self.over.is_set() else self.composition.limits.drain)
        elif self.over.is_set() and not self._again.done():
            self._again.set_result(None)
        self.over.set()

    def cut_short(self, seconds: float) -> None:
        """Cancel the code of a lifespan. It may clean up for so many seconds."""
        if self.main is not None:
            self.main.cancel()
            end_unless(lambda: self.finished, seconds, self.exit_code)


def end_unless(happened: Callable[[], bool], seconds: float, code: int) -> None:
    """End the process after `seconds`, unless `happened()`. A thread does it, so that nothing can block it."""
    import os
    import time
    from _thread import start_new_thread

    def wait() -> None:
        time.sleep(seconds)
        if happened():
            return
        try:
            os.write(2, b"defserve: the event loop does not react; ended without it\n")
        finally:
            os._exit(code)

    try:
        # Not `threading`: it takes a lock that the interrupted code may hold.
        start_new_thread(wait, ())
    except RuntimeError:  # the system has no more threads
        pass
