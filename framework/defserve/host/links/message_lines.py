"""The messages of a child, one a line. Of a line that is too long, enough is kept to tell which request it answers."""

from __future__ import annotations

from defserve.host.exchange.unreadable import HEAD, TAIL, CutMessage
from defserve.wire.framing import Lines

# JSON allows this byte nowhere, so what is left of a line is never taken for a message.
GAP = b"\0"


class MessageLines(Lines):
    """Like `Lines`, but a `CutMessage` stands for a line that is too long. It comes when that line is over."""

    __slots__ = ("_head", "_tail")

    def _keep(self, data: bytes, whole: list[bytes | None]) -> None:
        if self._skipping:
            self._tail = (self._tail + data)[-TAIL:]
            return
        self._rest += data
        if len(self._rest) > self.limit:
            self._head, self._tail = bytes(self._rest[:HEAD]), bytes(self._rest[-TAIL:])
            self._rest.clear()
            self._first, self._skipping = False, True

    def _complete(self, head: bytes, whole: list[bytes | None]) -> None:
        if self._skipping:
            self._skipping = False
            whole.append(self._cut(self._head, self._tail + head))
        else:
            super()._complete(head, whole)

    def _add(self, line: bytes, whole: list[bytes | None]) -> None:
        if len(line) > self.limit:
            self._first = False
            whole.append(self._cut(line, line))
        else:
            super()._add(line, whole)

    def _cut(self, head: bytes, tail: bytes) -> CutMessage:
        found = CutMessage(head[:HEAD] + GAP + tail[-TAIL:])
        found.limit = self.limit
        return found
