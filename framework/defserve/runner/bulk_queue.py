"""Bulk on its way into a pipe that others use too: all that is said overtakes what has not gone in yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from defserve.core.extension import OutgoingMessage

# What may be in the transport's own queue, where nothing can overtake it.
INSIDE_BYTES = 16 * 1024

Write: TypeAlias = Callable[[OutgoingMessage, Callable[[], None]], None]


class BulkQueue:
    """Waits in order. The sender decides how much of it may wait, by `OutgoingMessage.taken`."""

    __slots__ = ("waiting", "_inside")

    def __init__(self) -> None:
        self.waiting: deque[tuple[OutgoingMessage, Write]] = deque()
        self._inside = 0

    def put(self, outgoing: OutgoingMessage, write: Write) -> None:
        """Goes in with `write`, at the next `advance` that finds room."""
        self.waiting.append((outgoing, write))

    def let(self, outgoing: OutgoingMessage) -> None:
        """A message is about to go in: what its own call has waiting goes before it, what others have does not."""
        # The answers to a batch belong to no single call.
        everyone = outgoing.answers and outgoing.relates_to is None
        waiting, self.waiting = self.waiting, deque[tuple[OutgoingMessage, Write]]()
        for item in waiting:
            if everyone or item[0].relates_to is outgoing.relates_to:
                self._enter(*item)
            else:
                self.waiting.append(item)

    def advance(self) -> None:
        """Let in what there is room for."""
        while self.waiting and self._inside < INSIDE_BYTES:
            self._enter(*self.waiting.popleft())

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

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not in the transport yet."""
        return sum(len(outgoing.data) for outgoing, _ in self.waiting)
