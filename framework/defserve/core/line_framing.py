"""A byte stream cut into lines at LF (0x0A) and nowhere else. No decoding, no I/O."""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"


class LineSplitter:
    """Takes chunks and gives whole lines; None stands for a line longer than `limit`.

    The rest of a line that is too long is skipped as it arrives, so memory stays bounded.
    """

    __slots__ = ("limit", "_rest", "_skipping", "_first")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rest = bytearray()
        self._skipping = False
        self._first = True

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that `data` completes, without their LF. Blank lines are left out."""
        whole: list[bytes | None] = []
        if b"\n" not in data:
            self._buffer_rest(data, whole)
            return whole
        head, *lines = data.split(b"\n")
        tail = lines.pop()
        self._complete(head, whole)
        for line in lines:
            # A call a line less for what nearly every line is.
            if line.startswith(b"{") and len(line) <= self.limit:
                whole.append(line)
            else:
                self._add(line, whole)
        self._buffer_rest(tail, whole)
        return whole

    def take_single_line(self, data: bytes) -> bytes | None:
        """The line, if `data` is one whole line that begins with a brace. Otherwise `feed` it."""
        is_only = data.find(b"\n") == len(data) - 1 <= self.limit and data.startswith(b"{")
        return data[:-1] if is_only and not (self._rest or self._skipping or self._first) else None

    def finish(self) -> bytes | None:
        """What stood after the last LF when the stream ended, or None."""
        whole: list[bytes | None] = []
        self._complete(b"", whole)
        return whole[0] if whole else None

    def _complete(self, head: bytes, whole: list[bytes | None]) -> None:
        if self._skipping:
            self._skipping = False
            return
        if self._rest:
            # Free it first: if memory is too short for this line, there may be enough for the next.
            rest, self._rest = self._rest, bytearray()
            head = bytes(rest) + head
        self._add(head, whole)

    def _add(self, line: bytes, whole: list[bytes | None]) -> None:
        if self._first:
            self._first = False
            # Some editors and shells put a byte order mark at the start of a stream. JSON forbids it elsewhere.
            line = line.removeprefix(BOM)
        if len(line) > self.limit:
            whole.append(None)
        elif line and not line.isspace():
            whole.append(line)

    def _buffer_rest(self, data: bytes, whole: list[bytes | None]) -> None:
        if self._skipping or not data:
            return
        self._rest += data
        mark = len(BOM) if self._first and self._rest.startswith(BOM) else 0
        if len(self._rest) > self.limit + mark:
            self._rest.clear()
            self._first, self._skipping = False, True
            whole.append(None)
