"""Parses a stream of server-sent events (WHATWG HTML §9.2.6), chunk by chunk. No I/O."""

from __future__ import annotations

from typing import Final

from defserve.errors import PeerError

BOM: Final = b"\xef\xbb\xbf"
LONGEST_RETRY: Final = 9
"""Digits. A longer `retry` is a mistake, and not parsed."""


class SseEvent:
    """One event with data. Its lines are joined by LF."""

    __slots__ = ("kind", "data")

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind, self.data = kind, data

    def __repr__(self) -> str:
        return f"SseEvent({self.kind!r}, {self.data!r})"


class SseParser:
    """Takes chunks, gives whole events. An event that the end of the stream cuts off does not count.

    last_id  the id of the last whole event, also of one without data: the `Last-Event-ID` for the next connection
    retry    how many seconds to wait before that connection; None if the server has not said
    """

    __slots__ = ("limit", "last_id", "retry", "_rest", "_first", "_after_cr", "_kind", "_data", "_size", "_id")

    def __init__(self, limit: int) -> None:
        self.limit, self.last_id = limit, ""
        self.retry: float | None = None
        self.restart()

    def restart(self) -> None:
        """A new connection continues the stream. Half an event is dropped; `last_id` and `retry` stay."""
        self._rest, self._first, self._after_cr = bytearray(), True, False
        self._kind, self._id, self._size = "", self.last_id, 0
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes. Raises PeerError if one is longer than `limit` bytes."""
        if self._after_cr and chunk:
            # CR LF is one line ending, even if a chunk ends between the two.
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        events: list[SseEvent] = []
        # `bytes.splitlines` splits at CR, LF and CR LF only, as this format requires.
        for line in chunk.splitlines(keepends=True):
            text = line.rstrip(b"\r\n")
            self._size += len(text)
            if self._size > self.limit:
                raise PeerError(f"the server sent an event of more than {self.limit} bytes")
            if len(text) == len(line):
                self._rest += line
                break
            if self._rest:
                text = bytes(self._rest) + text
                self._rest.clear()
            self._line(text, events)
        self._after_cr = chunk.endswith(b"\r") if chunk else self._after_cr
        return events

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            self._dispatch(events)
        elif line.startswith(b":"):
            # Comments keep the connection alive. They do not count towards the size of the event.
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
        if data := b"\n".join(self._data):
            events.append(SseEvent(self._kind or "message", data))
        self._kind, self._size = "", 0
        self._data.clear()
