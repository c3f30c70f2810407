"""Standard input and output of this process as a transport: one message a line (LF), stdout for nothing else."""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from defserve.wire.framing import Lines

if TYPE_CHECKING:
    import asyncio

CHUNK = 64 * 1024
HIGH_WATER = 4 * 1024 * 1024
Received: TypeAlias = Callable[[list[bytes | None]], None]


class Stdio:
    """Owns the process's pipes from `claim` to `release`; meanwhile stray prints go to stderr."""

    def __init__(self, limit: int) -> None:
        self._lines = Lines(limit)
        self._input = self._output = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received: Received | None = None
        self._ended: Callable[[], None] | None = None
        self._out: deque[bytes] = deque()
        self._queued = 0
        self._writing = self._paused = self._reading = False
        self.closed = False

    # -- the process's pipes -----------------------------------------------------------------------------

    def claim(self) -> None:
        """Take descriptors 0 and 1 away from everybody else, C code and child processes included."""
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stdout.flush()
        self._input, self._output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # started without a stderr
            os.dup2(null, 1)
        os.close(null)

    def release(self) -> None:
        """Give the descriptors back."""
        if self._input < 0:
            return
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stdout.flush()
        try:
            os.set_blocking(self._output, True)
        except OSError:
            pass
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)
        os.close(self._input)
        os.close(self._output)
        self._input = self._output = -1

    # -- before there is a loop --------------------------------------------------------------------------

    def read_now(self, patience: float) -> list[bytes | None] | None:
        """Wait up to `patience` seconds for lines; an empty list when none came, None at the end of input."""
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self._input, select.POLLIN | select.POLLHUP)
            if not poll.poll(patience * 1000):
                return []
        data = os.read(self._input, CHUNK)
        if data:
            return self._lines.feed(data)
        rest = self._lines.finish()
        return [rest] if rest else None

    # -- the verbs every transport has -------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, received: Received, ended: Callable[[], None]) -> None:
        """Deliver lines to `received` (None: one past the limit) until `ended`."""
        self._loop, self._received, self._ended = loop, received, ended
        try:
            os.set_blocking(self._output, False)
            self._resume()
        except (NotImplementedError, PermissionError, OSError):
            # Files and Windows pipes cannot be polled.
            import threading

            threading.Thread(target=self._read_in_thread, name="defserve-stdin", daemon=True).start()

    def send(self, message: bytes) -> None:
        """Queue one message; `flush` writes what is queued."""
        self._out.append(message)
        self._out.append(b"\n")
        self._queued += len(message) + 1

    def flush(self) -> None:
        """Write what is queued, as far as the pipe takes it; the rest follows when it can."""
        if self._writing or self.closed or not self._out:
            return
        data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
        self._out.clear()
        try:
            written = os.write(self._output, data)
        except BlockingIOError:
            written = 0
        except OSError:
            self._give_up()
            return
        self._queued = len(data) - written
        if self._queued:
            self._out.append(data[written:])
            self._wait_for_room()

    def close(self) -> None:
        """Stop reading and write what is left, without waiting for a peer that does not read."""
        if self.closed:
            return
        self._stop_reading()
        if self._writing and self._loop is not None:
            self._loop.remove_writer(self._output)
            self._writing = False
        self.flush()
        if self._writing and self._loop is not None:
            self._loop.remove_writer(self._output)
        self.closed = True

    @property
    def backlog(self) -> int:
        """Bytes the peer has not taken yet."""
        return self._queued

    # -- reading -----------------------------------------------------------------------------------------

    def _resume(self) -> None:
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
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        assert self._received is not None and self._ended is not None
        if data:
            self._received(self._lines.feed(data))
            if self._queued > HIGH_WATER and self._reading:
                # A peer that asks without reading the answers is not asked for more.
                self._stop_reading()
                self._paused = True
            return
        self._stop_reading()
        rest = self._lines.finish()
        if rest:
            self._received([rest])
        self._ended()

    def _read_in_thread(self) -> None:
        assert self._loop is not None
        while not self.closed:
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

    # -- writing -----------------------------------------------------------------------------------------

    def _wait_for_room(self) -> None:
        if self._loop is None:
            select.select([], [self._output], [])
            self.flush()
            return
        self._writing = True
        self._loop.add_writer(self._output, self._writable)

    def _writable(self) -> None:
        assert self._loop is not None
        self._loop.remove_writer(self._output)
        self._writing = False
        self.flush()
        if self._paused and self._queued < HIGH_WATER // 2 and not self.closed:
            self._paused = False
            self._resume()

    def _give_up(self) -> None:
        self._out.clear()
        self._queued = 0
        self.closed = True
        self._stop_reading()
        if self._ended is not None:
            self._ended()
