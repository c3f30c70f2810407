"""Standard input and output of this process as a transport: one message per line (LF), nothing else on stdout."""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from defserve.wire.framing import Lines

if TYPE_CHECKING:
    import asyncio
    import threading

CHUNK = 64 * 1024
HIGH_WATER = 4 * 1024 * 1024
MOST_JOINED = HIGH_WATER // 16
Received: TypeAlias = Callable[[list[bytes | None]], None]


class StdioTransport:
    """Owns the process's pipes from `claim` to `release`. In this time, prints of other code go to stderr.

    `queued` is the number of bytes that the peer has not taken yet.
    """

    def __init__(self, limit: int) -> None:
        self._lines = Lines(limit)
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
            if self.queued <= MOST_JOINED:
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

    async def written(self, patience: float) -> None:
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
        if (line := self._lines.only(data)) is None:
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
            if count and size + len(part) > MOST_JOINED:
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
