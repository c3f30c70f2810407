"""A server-sent event stream (WHATWG HTML §9.2.6) cut into events, chunk by chunk. No I/O."""

from __future__ import annotations

from typing import Final

from defserve.errors import PeerError

BOM: Final = b"\xef\xbb\xbf"
LONGEST_RETRY: Final = 9
"""More digits than this are no wait that anybody means, and no number worth parsing."""


class SseEvent:
    """One event that has data; its lines are joined by LF."""

    __slots__ = ("kind", "data")

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind, self.data = kind, data

    def __repr__(self) -> str:
        return f"SseEvent({self.kind!r}, {self.data!r})"


class SseParser:
    """Feeds on chunks, gives whole events. An event that the end of the stream cuts off never happened.

    last_id  the id of the last whole event, also of one without data: what `Last-SseEvent-ID` says on reconnecting
    retry    how many seconds the server wants to pass before that; None while it has not said
    """

    __slots__ = ("limit", "last_id", "retry", "_rest", "_first", "_after_cr", "_kind", "_data", "_size", "_id")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.last_id = ""
        self.retry: float | None = None
        self.restart()

    def restart(self) -> None:
        """A new connection continues the stream: half an event is forgotten, `last_id` and `retry` are not."""
        self._rest = bytearray()
        self._first, self._after_cr = True, False
        self._kind, self._id = "", self.last_id
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes. Raises PeerError when one is longer than `limit` bytes."""
        if self._after_cr and chunk:
            # CR LF is one end of line, also where a chunk ends between the two.
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        events: list[SseEvent] = []
        # Of bytes, `splitlines` knows CR, LF and CR LF and no others: just what this format wants.
        for line in chunk.splitlines(keepends=True):
            text = line.rstrip(b"\r\n")
            self._grow(len(text))
            if len(text) == len(line):
                self._rest += line
                break
            if self._rest:
                text = bytes(self._rest) + text
                self._rest.clear()
            self._line(text, events)
        self._after_cr = chunk.endswith(b"\r") if chunk else self._after_cr
        return events

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self.limit:
            raise PeerError(f"the server sent an event of more than {self.limit} bytes")

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            self._dispatch(events)
        elif line.startswith(b":"):
            # A comment keeps the connection alive, however long the event around it takes.
            self._size -= len(line)
        else:
            name, _, value = line.partition(b":")
            self._field(name, value.removeprefix(b" "))

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) <= LONGEST_RETRY:
            self.retry = int(value) / 1000

    def _dispatch(self, events: list[SseEvent]) -> None:
        self.last_id = self._id
        data = b"\n".join(self._data)
        if data:
            events.append(SseEvent(self._kind or "message", data))
        self._kind, self._size = "", 0
        self._data.clear()
