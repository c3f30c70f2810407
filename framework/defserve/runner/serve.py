"""Serving a composition on an address, from the first byte to the exit code: signals, drain, end of input."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from defserve.core.composition import Composition
from defserve.errors import UsageError
from defserve.runner.connection import Connection
from defserve.runner.switch_interval import lowered_switch_interval
from defserve.transports.stdio import StdioTransport

if TYPE_CHECKING:
    import asyncio

INTERRUPTED = 130
PATIENCE = 0.05
STUCK_LOOP_SECONDS = 1.0
POLL_SECONDS = 0.25
END_SECONDS = 1.0
ADDRESSES = {"stdio": "stdio:"}


def serve(composition: Composition, address: str) -> int:
    """Serve until the peer leaves or a signal ends it; the exit code."""
    scheme = address.partition(":")[0]
    if scheme not in ADDRESSES:
        known = ", ".join(ADDRESSES.values())
        raise UsageError(f"cannot serve on {address!r}", fix=f"use one of: {known}")
    return StdioService(composition).run()


class StdioService:
    """One process, one peer, standard input and output."""

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
        previous = _on_signals(self._interrupt_prelude)
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
            _restore_signals(previous)
            self.transport.release()
            _do_not_wait_for(set(threading.enumerate()) - before, self.exit_code)
        return self.exit_code

    def stop(self, seconds: float) -> None:
        """Answer what runs, for at most so long, and end. From any thread."""
        self._seconds = seconds
        if self._stopper is not None:
            self._stopper.loop.call_soon_threadsafe(self._stopper.drain, seconds)

    # -- before the loop ---------------------------------------------------------------------------------

    def _prelude(self) -> bool:
        """Answer what needs no event loop, so that its import (25 ms) does not delay a client's first list.

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
        # Somebody is there who has to be told, and maybe answered: that takes the loop.
        self._defers_signals = True
        return True

    def _interrupt_prelude(self, number: int, frame: Any) -> None:
        if not self._defers_signals:
            raise _Stop(_code(number))
        self._early.append(number)
        seconds = STUCK_LOOP_SECONDS if number == signal.SIGINT else self.composition.limits.drain
        _end_unless(lambda: not self._defers_signals, seconds, _code(number))

    # -- the loop ----------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        import asyncio

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

        from defserve.runner.lifespans import entered_lifespans, leave

        limits = self.composition.limits
        stop.main = asyncio.current_task()
        minder = loop.create_task(self._mind_the_peer(stop)) if self.composition.has_lifespan else None
        try:
            async with entered_lifespans(self.composition) as engine:
                if minder is not None:
                    minder.cancel()
                stop.serving = True
                self.composition.service.ready()
                self.connection.attach(engine)
                self.transport.start(loop, self.connection.received, stop.over.set)
                await stop.over.wait()
                if not stop.interrupted:
                    seconds = limits.farewell if stop.seconds is None else stop.seconds
                    await stop.unless_asked_again(self._finish(seconds))
                self.composition.service.end(self.stop)
                await leave(self.connection, limits.farewell)
                # The lifespans' own clean-up has as long as the calls had.
                stop.serving = False
                stop.give(limits.drain)
        finally:
            stop.finished = True
            self.exit_code = stop.exit_code
            self.connection.close()

    async def _mind_the_peer(self, stop: Stopper) -> None:
        """Nothing is read while the lifespans begin; one that hangs must not outlive a peer that has left for long."""
        import asyncio

        while not self.transport.abandoned:  # noqa: ASYNC110 - a pipe that is not read tells nobody
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(self.composition.limits.drain)
        stop.cut_short(STUCK_LOOP_SECONDS)

    async def _finish(self, seconds: float) -> None:
        from defserve.runner.lifespans import drain

        await drain(self.connection, seconds)
        self.composition.service.end(self.stop)
        self.transport.flush()
        await self.transport.written(self.composition.limits.farewell)


class Stopper:
    """SIGTERM drains, SIGINT ends, a second signal of either kind ends at once.

    While nothing is served yet, or any more, a signal cancels `main`: what a lifespan does then is cut short.
    A loop that is stuck in somebody's code hears no signal, and code may swallow its cancellation: then the
    process ends without them.
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

    async def unless_asked_again(self, work: Coroutine[Any, Any, None]) -> None:
        import asyncio

        task = self.loop.create_task(work)
        await asyncio.wait((task, self._again), return_when=asyncio.FIRST_COMPLETED)
        task.cancel()

    def give(self, seconds: float) -> None:
        """What is left to do may take so long."""
        self.loop.call_later(seconds, self.cut_short, STUCK_LOOP_SECONDS)
        _end_unless(lambda: self.finished, seconds + STUCK_LOOP_SECONDS, self.exit_code)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.interrupted else 0

    def _watch(self, number: int, frame: Any) -> None:
        # Runs beside the loop's own handler, which a loop that is stuck never comes to.
        self._sent += 1
        sent, interrupt = self._sent, number == signal.SIGINT
        seconds = STUCK_LOOP_SECONDS if interrupt or self._heard < sent - 1 else self.composition.limits.drain
        _end_unless(lambda: self._heard >= sent or self.finished, seconds, INTERRUPTED if interrupt else 0)

    def drain(self, seconds: float) -> None:
        """What runs has so many seconds; then it is over. Who comes later adds nothing."""
        if not self.over.is_set():
            self.seconds = seconds
            self.over.set()

    def hear(self, number: int) -> None:
        """A signal that came before anything was served."""
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
        """Cancel what a lifespan does; it may clean up for so long."""
        if self.main is not None:
            self.main.cancel()
            _end_unless(lambda: self.finished, seconds, self.exit_code)


class _Stop(BaseException):
    """Raised by a signal while no loop runs."""

    def __init__(self, code: int) -> None:
        self.code = code


def _code(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else 0


def _on_signals(action: Callable[[int, Any], None]) -> dict[int, Any]:
    previous: dict[int, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            previous[number] = signal.signal(number, action)
        except ValueError:  # not the main thread
            break
    return previous


def _restore_signals(previous: dict[int, Any]) -> None:
    for number, action in previous.items():
        signal.signal(number, action)


def _wind_down(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left, with bounded patience: a task that ignores cancellation must not keep the process."""
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


def _end_unless(happened: Callable[[], bool], seconds: float, code: int) -> None:
    """End the process after `seconds`, from a thread: whatever holds up the main one is not asked."""
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
        # `threading` would take a lock that the code a signal interrupts may hold.
        start_new_thread(wait, ())
    except RuntimeError:  # the system has no more threads
        pass


def _do_not_wait_for(threads: Iterable[threading.Thread], code: int) -> None:
    """Threads begun while serving that still run hang in a call nobody waits for: the process ends without them.

    Without this the interpreter would join an executor's threads, and abort when one that it does not join
    holds a lock it needs. A process that goes on after serving is left alone.
    """
    import time

    hanging = [thread for thread in threads if thread.is_alive()]
    # Runs at the exit of the interpreter, before it joins anything; there is no public hook so early.
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
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # none, its reader is gone, or closed
            pass
    os._exit(code)
