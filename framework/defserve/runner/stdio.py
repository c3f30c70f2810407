"""Serving one peer on standard input and output, from the first byte to the exit code."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from defserve.core.composition import Composition
from defserve.runner.connection import Connection
from defserve.runner.signals import INTERRUPTED, STUCK_LOOP_SECONDS, Stopper, end_unless
from defserve.transports.stdio import StdioTransport

if TYPE_CHECKING:
    import asyncio

PATIENCE = 0.05
POLL_SECONDS = 0.25
END_SECONDS = 1.0
UNWRITABLE = 1
"""The exit code if the output cannot be written."""


class StdioService:
    """One process and one peer."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        self.transport = StdioTransport(composition.limits.message)
        self.connection = Connection(composition, self.transport)
        self.exit_code = 0
        self._stopper: Stopper | None = None
        self._seconds: float | None = None
        self._defers_signals = False
        self._early: list[int] = []

    def run(self) -> int:
        self.composition.service.begin(self.stop)
        before = set(threading.enumerate())
        self.transport.claim()
        previous: dict[int, Any] = {}
        with suppress(ValueError):  # not the main thread
            for number in (signal.SIGTERM, signal.SIGINT):
                previous[number] = signal.signal(number, self._interrupt_prelude)
        try:
            if self._prelude():
                self._run_loop()
            else:
                self.composition.service.end(self.stop)
                self.connection.close()
        except _Stop as stop:
            self.exit_code = stop.code
        finally:
            self.composition.service.end(self.stop)
            for number, action in previous.items():
                signal.signal(number, action)
            self.transport.release()
            if (failure := self.transport.failure) is not None:
                print(f"defserve: standard output cannot be written: {failure.strerror}", file=sys.stderr)
                self.exit_code = self.exit_code or UNWRITABLE
            _do_not_wait_for(set(threading.enumerate()) - before, self.exit_code)
        return self.exit_code

    def stop(self, seconds: float) -> None:
        """Finish the running calls, for at most so many seconds, and end. From any thread."""
        self._seconds = seconds
        if self._stopper is not None:
            self._stopper.loop.call_soon_threadsafe(self._stopper.drain, seconds)

    # -- before the loop ---------------------------------------------------------------------------------

    def _prelude(self) -> bool:
        """Answer messages that need no event loop, so that importing asyncio (25 ms) does not delay the first list.

        Ends at the first message that needs a loop, or as soon as the peer pauses. False at the end of input.
        """
        if self.composition.has_lifespan:
            return True
        answered = False
        self.composition.service.ready()
        while not self.connection.waiting:
            if self._seconds is not None:
                return False
            frames = self.transport.read_now(PATIENCE if answered else None)
            if frames is None or self.transport.closed:
                return False
            if frames:
                # A signal must not cut a message in two.
                self._defers_signals = True
                self.connection.received(frames)
                self._defers_signals = bool(self.connection.waiting)
                if self._early and not self._defers_signals:
                    raise _Stop(_code(self._early[0]))
                answered = True
            elif answered:
                break
        # From here on the peer must be told of an end, and perhaps answered. That needs the loop.
        self._defers_signals = True
        return True

    def _interrupt_prelude(self, number: int, frame: Any) -> None:
        if not self._defers_signals:
            raise _Stop(_code(number))
        self._early.append(number)
        seconds = STUCK_LOOP_SECONDS if number == signal.SIGINT else self.composition.limits.drain
        end_unless(lambda: not self._defers_signals, seconds, _code(number))

    # -- the loop ----------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        import asyncio

        from defserve.runner.threads.pool import lowered_switch_interval

        loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            self._stopper = stop = Stopper(loop, self.composition)
            stop.listen()
            if self._seconds is not None:
                stop.drain(self._seconds)
            self._defers_signals = False
            for number in self._early:
                stop.hear(number)
            with lowered_switch_interval(self.composition.limits.threads):
                loop.run_until_complete(self._main(loop, stop))
        except asyncio.CancelledError:
            pass  # a signal cut the lifespan short
        finally:
            _wind_down(loop)
            asyncio.set_event_loop(None)

    async def _main(self, loop: asyncio.AbstractEventLoop, stop: Stopper) -> None:
        import asyncio

        from defserve.runner.lifespans import close_connection, entered_lifespans, finish_queued

        limits = self.composition.limits
        stop.main = asyncio.current_task()
        minder = loop.create_task(self._end_if_abandoned(stop)) if self.composition.has_lifespan else None
        try:
            async with entered_lifespans(self.composition) as engine:
                if minder is not None:
                    minder.cancel()
                stop.serving = True
                self.composition.service.ready()
                self.connection.attach(engine)
                self.transport.start(loop, self.connection.received, partial(self._ended, stop))
                await stop.over.wait()
                if not stop.interrupted:
                    if stop.seconds is None:
                        await stop.unless_asked_again(finish_queued(self.connection, limits.drain))
                    seconds = limits.farewell if stop.seconds is None else stop.seconds
                    await stop.unless_asked_again(self._finish(seconds))
                self.composition.service.end(self.stop)
                await close_connection(self.connection, limits.farewell)
                # The lifespans get as much time to clean up as the calls.
                stop.serving = False
                stop.give(limits.drain)
        finally:
            stop.finish()
            self.exit_code = stop.exit_code
            self.connection.close()

    def _ended(self, stop: Stopper) -> None:
        """The input has ended, or nobody reads the output."""
        if stop.over.is_set() and self.transport.closed:
            self.connection.close()  # nobody is left to finish calls for
        stop.over.set()

    async def _end_if_abandoned(self, stop: Stopper) -> None:
        """End a start-up that hangs after its peer has left. Nothing is read yet, so nothing else notices."""
        import asyncio

        while not self.transport.abandoned:  # noqa: ASYNC110 - a pipe that is not read tells nobody
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(self.composition.limits.drain)
        stop.cut_short(STUCK_LOOP_SECONDS)

    async def _finish(self, seconds: float) -> None:
        from defserve.runner.lifespans import drain_connection

        await drain_connection(self.connection, seconds)
        self.composition.service.end(self.stop)
        self.transport.flush()
        await self.transport.written(self.composition.limits.farewell)


class _Stop(BaseException):
    """Raised by a signal while no loop runs."""

    def __init__(self, code: int) -> None:
        self.code = code


def _code(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else 0


def _wind_down(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks, and wait only a moment: a task that ignores it must not keep the process alive."""
    import asyncio

    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=0.1))
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), 0.1))
    except Exception as error:
        print(f"defserve: while stopping: {error!r}", file=sys.stderr)
    finally:
        loop.close()


def _do_not_wait_for(threads: Iterable[threading.Thread], code: int) -> None:
    """At exit, end the process without waiting for threads that still run. They hang in a call nobody waits for.

    Without this the interpreter would join an executor's threads. It would also abort if a thread that it does not join
    holds a lock it needs. A process that goes on after serving is left alone.
    """
    import time

    hanging = [thread for thread in threads if thread.is_alive()]
    # Runs when the interpreter exits, before it joins anything. There is no public hook that early.
    register = getattr(threading, "_register_atexit", None)
    if not hanging or register is None:
        return
    served_until = time.monotonic()

    def end() -> None:
        if time.monotonic() - served_until > END_SECONDS:
            return
        for thread in hanging:
            thread.join(PATIENCE / len(hanging))
        if any(thread.is_alive() for thread in hanging):
            _exit_at_once(code)

    register(end)


def _exit_at_once(code: int) -> None:
    import atexit
    import os

    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, its reader is gone, or it is closed
            stream.flush()
    os._exit(code)
