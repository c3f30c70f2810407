"""Serving a composition on an address, from the first byte to the exit code: signals, drain, end of input."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from defserve.core.composition import Composition
from defserve.errors import UsageError
from defserve.runner.connection import Connection
from defserve.transports.stdio import Stdio

if TYPE_CHECKING:
    import asyncio

INTERRUPTED = 130
PATIENCE = 0.05
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
        self.transport = Stdio(composition.limits.message)
        self.connection = Connection(composition, self.transport)
        self.exit_code = 0
        self.ended = False

    def run(self) -> int:
        self.transport.claim()
        previous = _on_signals(self._interrupt_prelude)
        try:
            if self._prelude():
                self._run_loop()
        except _Stop as stop:
            self.exit_code = stop.code
        finally:
            _restore_signals(previous)
            self.transport.release()
        return self.exit_code

    # -- before the loop ---------------------------------------------------------------------------------

    def _prelude(self) -> bool:
        """Answer what needs no event loop, so that its import (25 ms) does not delay a client's first list.

        Ends at the first message that needs a loop, or as soon as the peer pauses. False at the end of input.
        """
        if self.composition.has_lifespan:
            return True
        answered = False
        while not self.connection.waiting:
            frames = self.transport.read_now(PATIENCE if answered else 3600.0)
            if frames is None:
                return False
            if frames:
                self.connection.received(frames)
                answered = True
            elif answered:
                break
        return True

    def _interrupt_prelude(self, number: int, frame: Any) -> None:
        raise _Stop(INTERRUPTED if number == signal.SIGINT else 0)

    # -- the loop ----------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        import asyncio

        loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._main(loop))
        finally:
            _wind_down(loop)
            asyncio.set_event_loop(None)

    async def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        from defserve.runner.life import alive, drain

        over = asyncio.Event()
        stop = Stopper(loop, self.composition, over)
        async with alive(self.composition) as engine:
            stop.listen()
            try:
                self.connection.attach(engine)
                self.transport.start(loop, self.connection.received, over.set)
                await over.wait()
                if stop.asked_to_drain:
                    await stop.unless_asked_again(drain(self.connection, self.composition.limits.drain))
                elif not stop.interrupted:
                    await stop.unless_asked_again(drain(self.connection, self.composition.limits.farewell))
            finally:
                self.exit_code = INTERRUPTED if stop.interrupted else 0
                self.connection.close()
                await asyncio.sleep(0)


class Stopper:
    """SIGTERM drains, SIGINT ends, a second signal of either kind ends at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, composition: Composition, over: asyncio.Event) -> None:
        self.loop, self.composition, self.over = loop, composition, over
        self.asked_to_drain = self.interrupted = False
        self._again: asyncio.Future[None] = loop.create_future()

    def listen(self) -> None:
        for number, action in ((signal.SIGTERM, self._drain), (signal.SIGINT, self._interrupt)):
            try:
                self.loop.add_signal_handler(number, action)
            except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
                return

    async def unless_asked_again(self, work: Any) -> None:
        import asyncio

        task = self.loop.create_task(work)
        await asyncio.wait((task, self._again), return_when=asyncio.FIRST_COMPLETED)
        task.cancel()

    def _drain(self) -> None:
        self._note_again()
        self.asked_to_drain = self.composition.draining = True
        self.over.set()

    def _interrupt(self) -> None:
        self._note_again()
        self.interrupted = True
        self.over.set()

    def _note_again(self) -> None:
        if self.over.is_set() and not self._again.done():
            self._again.set_result(None)


class _Stop(BaseException):
    """Raised by a signal while no loop runs."""

    def __init__(self, code: int) -> None:
        self.code = code


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
            loop.run_until_complete(asyncio.wait(tasks, timeout=0.5))
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), 0.5))
    except Exception as error:
        print(f"defserve: while stopping: {error!r}", file=sys.stderr)
    finally:
        loop.close()
