"""A queue for bulk messages in a pipe that several calls share. Other messages overtake those that wait here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from defserve.core.extension import OutgoingMessage

# How much bulk may be in the transport's own queue, where nothing can overtake it.
INSIDE_BYTES = 16 * 1024

Write: TypeAlias = Callable[[OutgoingMessage, Callable[[], None]], None]


class BulkQueue:
    """Bulk messages wait here in order. Their sender bounds the queue: it waits until a message was `taken`."""

    __slots__ = ("waiting", "_advancing", "_inside")

    def __init__(self) -> None:
        self.waiting: deque[tuple[OutgoingMessage, Write]] = deque()
        self._inside, self._advancing = 0, False

    def put(self, outgoing: OutgoingMessage, write: Write) -> None:
        """Keep a message until `advance` finds room and calls `write`."""
        self.waiting.append((outgoing, write))

    def release_before(self, outgoing: OutgoingMessage) -> None:
        """Write the waiting messages of the same call, because `outgoing` is written next and belongs behind them."""
        # The answers to a batch belong to no single call.
        everyone = outgoing.answers and outgoing.relates_to is None
        waiting, self.waiting = self.waiting, deque[tuple[OutgoingMessage, Write]]()
        for item in waiting:
            if everyone or item[0].relates_to is outgoing.relates_to:
                self._enter(*item)
            else:
                self.waiting.append(item)

    def advance(self) -> None:
        """Write waiting messages while there is room. A closed transport takes each at once, so this may be nested."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self.waiting and self._inside < INSIDE_BYTES:
                self._enter(*self.waiting.popleft())
        finally:
            self._advancing = False

    def close(self) -> None:
        """Drop what waits, and tell the senders."""
        waiting, self.waiting = self.waiting, deque[tuple[OutgoingMessage, Write]]()
        for outgoing, _ in waiting:
            if outgoing.taken is not None:
                outgoing.taken()

    def _enter(self, outgoing: OutgoingMessage, write: Write) -> None:
        size = len(outgoing.data)

        def taken() -> None:
            self._inside -= size
            if outgoing.taken is not None:
                outgoing.taken()
            self.advance()

        if outgoing.relates_to is not None and outgoing.relates_to.cancelled:
            if outgoing.taken is not None:
                outgoing.taken()
            return
        self._inside += size
        write(outgoing, taken)
