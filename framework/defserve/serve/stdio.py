"""Serving one peer on standard input and output, from the first byte to the exit code. One message per line (LF).

How it works: messages that need no event loop are answered in a prelude, before asyncio is imported. Then the same
connection goes on in a loop. Nothing but messages is written to standard output.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.core.composition import Composition
from defserve.core.messages import LineSplitter
from defserve.serve.connection import (
    INTERRUPTED_EXIT_CODE,
    STUCK_LOOP_GRACE_SECONDS,
    Connection,
    ShutdownHandler,
    exit_process_unless,
)

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
        self._stopper: ShutdownHandler | None = None
        self._seconds: float | None = None
        self._defers_signals = False
        self._early: list[int] = []

    def run(self) -> int:
        self.composition.service.add_runner(self.stop)
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
                self.composition.service.remove_runner(self.stop)
                self.connection.close()
        except _Stop as stop:
            self.exit_code = stop.code
        finally:
            self.composition.service.remove_runner(self.stop)
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
        self.composition.service.mark_ready()
        while not self.connection.waiting:
            if self._seconds is not None:
                return False
            frames = self.transport.read_now(PATIENCE if answered else None)
            if frames is None or self.transport.closed:
                return False
            if frames:
                # A signal must not cut a message in two.
                self._defers_signals = True
                self.connection.feed_frames(frames)
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
        seconds = STUCK_LOOP_GRACE_SECONDS if number == signal.SIGINT else self.composition.limits.drain
        exit_process_unless(lambda: not self._defers_signals, seconds, _code(number))

    # -- the loop ----------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        import asyncio

        from defserve.serve.threads import lower_switch_interval

        loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            self._stopper = stop = ShutdownHandler(loop, self.composition)
            stop.install_signal_handlers()
            if self._seconds is not None:
                stop.drain(self._seconds)
            self._defers_signals = False
            for number in self._early:
                stop.handle_early_signal(number)
            with lower_switch_interval(self.composition.limits.threads):
                loop.run_until_complete(self._main(loop, stop))
        except asyncio.CancelledError:
            pass  # a signal cut the lifespan short
        finally:
            _wind_down(loop)
            asyncio.set_event_loop(None)

    async def _main(self, loop: asyncio.AbstractEventLoop, stop: ShutdownHandler) -> None:
        import asyncio

        from defserve.serve.lifespans import close_connection, enter_lifespans, finish_queued_calls

        limits = self.composition.limits
        stop.main = asyncio.current_task()
        minder = loop.create_task(self._end_if_abandoned(stop)) if self.composition.has_lifespan else None
        try:
            async with enter_lifespans(self.composition) as engine:
                if minder is not None:
                    minder.cancel()
                stop.serving = True
                self.composition.service.mark_ready()
                self.connection.attach(engine)
                self.transport.start(loop, self.connection.feed_frames, partial(self._on_input_ended, stop))
                await stop.over.wait()
                if not stop.interrupted:
                    if stop.seconds is None:
                        await stop.run_until_second_signal(finish_queued_calls(self.connection, limits.drain))
                    seconds = limits.farewell if stop.seconds is None else stop.seconds
                    await stop.run_until_second_signal(self._finish(seconds))
                self.composition.service.remove_runner(self.stop)
                await close_connection(self.connection, limits.farewell)
                # The lifespans get as much time to clean up as the calls.
                stop.serving = False
                stop.set_deadline(limits.drain)
        finally:
            stop.finish()
            self.exit_code = stop.exit_code
            self.connection.close()

    def _on_input_ended(self, stop: ShutdownHandler) -> None:
        """The input has ended, or nobody reads the output."""
        if stop.over.is_set() and self.transport.closed:
            self.connection.close()  # nobody is left to finish calls for
        stop.over.set()

    async def _end_if_abandoned(self, stop: ShutdownHandler) -> None:
        """End a start-up that hangs after its peer has left. Nothing is read yet, so nothing else notices."""
        import asyncio

        while not self.transport.abandoned:  # noqa: ASYNC110 - a pipe that is not read tells nobody
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(self.composition.limits.drain)
        stop.cancel_lifespan(STUCK_LOOP_GRACE_SECONDS)

    async def _finish(self, seconds: float) -> None:
        from defserve.serve.lifespans import drain_connection

        await drain_connection(self.connection, seconds)
        self.composition.service.remove_runner(self.stop)
        self.transport.flush()
        await self.transport.wait_until_written(self.composition.limits.farewell)


class _Stop(BaseException):
    """Raised by a signal while no loop runs."""

    def __init__(self, code: int) -> None:
        self.code = code


def _code(number: int) -> int:
    return INTERRUPTED_EXIT_CODE if number == signal.SIGINT else 0


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


# -- Standard input and output of this process as a transport: one message per line (LF), nothing else on stdout.


CHUNK = 64 * 1024
HIGH_WATER = 4 * 1024 * 1024
MAX_JOINED_BYTES = HIGH_WATER // 16
Received: TypeAlias = Callable[[list[bytes | None]], None]


class StdioTransport:
    """Owns the process's pipes from `claim` to `release`. In this time, prints of other code go to stderr.

    `queued` is the number of bytes that the peer has not taken yet.
    """

    def __init__(self, limit: int) -> None:
        self._lines = LineSplitter(limit)
        self._input = self._output = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received: Received | None = None
        self._ended: Callable[[], None] | None = None
        self._out: deque[bytes | memoryview] = deque()
        self.queued = self._written = 0
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()
        self._writing = self._paused = self._held = self._reading = False
        self._turn: threading.Event | None = None
        self._emptied: asyncio.Future[None] | None = None
        self.closed = self._ended_input = False
        self.failure: OSError | None = None
        """Why the output cannot be written, if its reader has not just left: the disk may be full."""

    # -- the process's pipes -----------------------------------------------------------------------------

    def claim(self) -> None:
        """Take descriptors 0 and 1 away from all other code, C code and child processes included."""
        null = os.open(os.devnull, os.O_RDWR)
        self._input, self._output = _duplicate(0, null), _duplicate(1, null)
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # started without a stderr
            os.dup2(null, 1)
        if null > 2:
            os.close(null)
        # Earlier prints that are still buffered must not reach the peer either.
        _flush_prints()

    def release(self) -> None:
        """Give the descriptors back."""
        if self._input < 0:
            return
        _flush_prints()
        _flush_c_prints()
        with suppress(OSError):
            os.set_blocking(self._output, True)
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)
        os.close(self._input)
        os.close(self._output)
        self._input = self._output = -1

    # -- before there is a loop --------------------------------------------------------------------------

    def read_now(self, patience: float | None) -> list[bytes | None] | None:
        """Wait up to `patience` seconds for lines. An empty list: none came. None: the input has ended."""
        if patience is not None and hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self._input, select.POLLIN | select.POLLHUP)
            if not poll.poll(patience * 1000):
                return []
        try:
            data = os.read(self._input, CHUNK)
        except BlockingIOError:  # the parent set its end of the pipe to non-blocking
            select.select([self._input], [], [], patience)
            return []
        except OSError:
            data = b""
        if data:
            return self._lines.feed(data)
        rest = self._lines.finish()
        return [rest] if rest else None

    @property
    def abandoned(self) -> bool:
        """Whether the peer has closed its end, even if there is something left to read. False if that is not known."""
        if not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self._input, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    # -- the methods of every transport ------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, received: Received, ended: Callable[[], None]) -> None:
        """Deliver lines to `received` until `ended`. None stands for a line past the limit."""
        self._loop, self._received, self._ended = loop, received, ended
        if self.closed:  # by its reader, before there was a loop
            ended()
            return
        try:
            os.set_blocking(self._output, False)
            self._start_reading()
        except (NotImplementedError, OSError):
            # Files and Windows pipes cannot be polled.
            import threading

            self._turn = threading.Event()
            threading.Thread(target=self._read_in_thread, name="defserve-stdin", daemon=True).start()

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        """Queue one message. `flush` writes the queue.

        `taken` is called behind the last byte of the message, or when it is clear that it will not be written.
        """
        if self.closed:
            if taken is not None:
                taken()
        else:
            self._out.append(message)
            self._out.append(b"\n")
            self.queued += len(message) + 1
            if taken is not None:
                self._marks.append((self._written + self.queued, taken))

    def flush(self) -> None:
        """Write the queue, as far as the pipe takes it. The rest follows when there is room."""
        while self._out and not self._writing and not self.closed:
            if self.queued <= MAX_JOINED_BYTES:
                data = b"".join(self._out)
                self._out.clear()
            else:
                data = self._piece()
            try:
                written = os.write(self._output, data)
            except BlockingIOError:
                written = 0
            except OSError as error:
                if not isinstance(error, ConnectionError):
                    self.failure = error
                self._give_up()
                return
            self.queued -= written
            self._written += written
            while self._marks and self._marks[0][0] <= self._written:
                self._marks.popleft()[1]()
            if written < len(data):
                self._out.appendleft(memoryview(data)[written:])
                self._wait_for_room()

    async def wait_until_written(self, patience: float) -> None:
        """Wait until the peer has taken everything, or has taken nothing for `patience` seconds."""
        import asyncio

        left = self.queued + 1
        while 0 < self.queued < left:
            left = self.queued
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._emptied,), timeout=patience)

    def close(self) -> None:
        """Stop reading and write the rest, without waiting for a peer that does not read."""
        if self.closed:
            return
        self._stop_reading()
        self._stop_writing()
        self.flush()
        self._stop_writing()
        self.closed = True
        if self._turn is not None:
            self._turn.set()
        self._leave_unwritten()

    def _leave_unwritten(self) -> None:
        """Nothing more is written: tell the senders."""
        marks, self._marks = self._marks, deque()
        for _, taken in marks:
            taken()

    def pause(self) -> None:
        """Read nothing more: what the peer sends waits in the pipe."""
        self._held = True
        self._stop_reading()

    def resume(self) -> None:
        """Read again."""
        if self._held:
            self._held = False
            self._read_on()

    # -- reading -----------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Read, unless the peer must read first, or the calls it sent must make room."""
        if self.closed or self._ended_input or self._held or self._paused or self._loop is None:
            return
        if self._turn is not None:
            self._turn.set()
        elif not self._reading:
            self._start_reading()

    def _start_reading(self) -> None:
        assert self._loop is not None
        self._loop.add_reader(self._input, self._readable)
        self._reading = True

    def _stop_reading(self) -> None:
        if self._reading and self._loop is not None:
            self._loop.remove_reader(self._input)
            self._reading = False

    def _readable(self) -> None:
        try:
            data = os.read(self._input, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        # A peer that waits for its answers writes one whole line at a time.
        if (line := self._lines.take_single_line(data)) is None:
            self._feed(data)
            return
        assert self._received is not None
        self._received([line])
        if self.queued > HIGH_WATER:
            self._wait_for_reader()

    def _feed(self, data: bytes) -> None:
        assert self._received is not None and self._ended is not None
        if data:
            self._received(self._lines.feed(data))
            if self.queued > HIGH_WATER:
                self._wait_for_reader()
            elif self._turn is not None:
                self._read_on()
            return
        self._ended_input = True
        self._stop_reading()
        try:
            if rest := self._lines.finish():
                self._received([rest])
        finally:  # there is no later chance to call it, whatever happens to the last line
            self._ended()

    def _wait_for_reader(self) -> None:
        """Nothing more is read from a peer that does not read its answers."""
        self._stop_reading()
        self._paused = True

    def _read_in_thread(self) -> None:
        assert self._loop is not None and self._turn is not None
        while not self.closed:
            self._turn.clear()
            try:
                data = os.read(self._input, CHUNK)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._feed, data)
            except RuntimeError:  # the loop has ended
                return
            if not data:
                return
            # Wait, because a file is read faster than its requests are served.
            self._turn.wait()

    # -- writing -----------------------------------------------------------------------------------------

    def _piece(self) -> bytes | memoryview:
        """As much of a long queue as one write may take. Small messages are joined, large ones are not copied."""
        size, count = 0, 0
        for part in self._out:
            if count and size + len(part) > MAX_JOINED_BYTES:
                break
            size, count = size + len(part), count + 1
        if count == 1:
            return self._out.popleft()
        return b"".join([self._out.popleft() for _ in range(count)])

    def _wait_for_room(self) -> None:
        if self._loop is None:
            select.select([], [self._output], [])
            return
        self._writing = True
        self._loop.add_writer(self._output, self._writable)

    def _stop_writing(self) -> None:
        if self._writing and self._loop is not None:
            self._loop.remove_writer(self._output)
            self._writing = False

    def _writable(self) -> None:
        self._stop_writing()
        self.flush()
        if not self.queued:
            self._tell_emptied()
        if self._paused and self.queued < HIGH_WATER // 2 and not self.closed:
            self._paused = False
            self._read_on()

    def _tell_emptied(self) -> None:
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _give_up(self) -> None:
        self._out.clear()
        self.queued = 0
        self.closed = True
        self._stop_reading()
        self._tell_emptied()
        if self._turn is not None:
            self._turn.set()
        self._leave_unwritten()
        if self._ended is not None:
            self._ended()


def _duplicate(descriptor: int, null: int) -> int:
    # A process may be started without a stream, and `null` may have got its number: then the stream counts as ended.
    if descriptor == null or (sys.__stdin__, sys.__stdout__)[descriptor] is None:
        return _copy(null)
    try:
        return _copy(descriptor)
    except OSError:
        return _copy(null)


def _copy(descriptor: int) -> int:
    copy = os.dup(descriptor)
    # A copy with a standard number would be replaced next. It stays open to fill the gap, and is copied again.
    return copy if copy > 2 else _copy(copy)


def _flush_prints() -> None:
    with suppress(OSError, ValueError):  # its reader is gone, or it is closed
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stdout.flush()


def _flush_c_prints() -> None:
    """Empty the buffers of C's stdio. Otherwise they are written to the peer when the process exits."""
    with suppress(ImportError, OSError, TypeError, AttributeError):  # there is no such library here
        import ctypes

        ctypes.CDLL(None).fflush(None)
