"""A byte stream cut into lines at LF (0x0A) and nowhere else. No decoding, no I/O."""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"


class Lines:
    """Feeds on chunks, gives whole lines; None stands for a line that was longer than `limit`.

    What is left of a line that is too long is skipped as it comes, so memory stays bounded.
    """

    __slots__ = ("limit", "_rest", "_size", "_skipping", "_first")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rest: list[bytes] = []
        self._size = 0
        self._skipping = False
        self._first = True

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that `data` completes, without their LF; blank ones are left out."""
        if b"\n" not in data:
            self._keep(data)
            return self._too_long()
        head, *lines = data.split(b"\n")
        tail = lines.pop()
        whole: list[bytes | None] = []
        self._complete(head, whole)
        for line in lines:
            self._add(line, whole)
        if tail:
            self._keep(tail)
            whole += self._too_long()
        return whole

    def finish(self) -> bytes | None:
        """What stood after the last LF when the stream ended, or None."""
        rest, self._rest = b"".join(self._rest), []
        return rest if rest.strip() and not self._skipping else None

    def _complete(self, head: bytes, whole: list[bytes | None]) -> None:
        if self._skipping:
            self._skipping = False
            return
        if self._rest:
            head = b"".join((*self._rest, head))
            self._rest, self._size = [], 0
        self._add(head, whole)

    def _add(self, line: bytes, whole: list[bytes | None]) -> None:
        if self._first:
            self._first = False
            # Some editors and shells put one at the start of a stream; JSON has no place for it later.
            line = line.removeprefix(BOM)
        if len(line) > self.limit:
            whole.append(None)
        elif line and not line.isspace():
            whole.append(line)

    def _keep(self, data: bytes) -> None:
        if not self._skipping:
            self._rest.append(data)
            self._size += len(data)

    def _too_long(self) -> list[bytes | None]:
        if self._skipping or self._size <= self.limit:
            return []
        self._rest, self._size, self._skipping = [], 0, True
        return [None]
