"""The standard error of a child, line by line, and no more of it than somebody could use."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from defserve.wire.framing import Lines

LONGEST: Final = 65_536
LAST_WORDS: Final = 20
LONGEST_LAST_WORD: Final = 500
PORTION: Final = 20
PORTION_SECONDS: Final = 0.02
"""So 1,000 lines a second are told. Hiding secrets in one takes about 10 µs."""
MOST_LINES: Final = 1_000
MOST_BYTES: Final = 1024 * 1024
"""What may wait to be told. Of more, the newest lines are kept: they say why a child left."""

log = logging.getLogger("defserve.host")


class StderrLines:
    """Calls `told` with each line, but for those of more than 64 KB.

    Lines that come faster than they are told wait. If too many wait, the oldest are left out, and `told` gets a line
    that says how many. Then the child waits too (`pause`), for a moment.
    """

    def __init__(self, told: Callable[[str], object] | None, pause: Callable[[bool], None]) -> None:
        self._told, self._pause = told, pause
        self._lines = Lines(LONGEST)
        self._last: deque[bytes] = deque(maxlen=LAST_WORDS)
        self._waiting: deque[bytes] = deque()
        self._size = self._left_out = 0
        self._room = PORTION
        self._timer: asyncio.TimerHandle | None = None

    @property
    def last_words(self) -> list[str]:
        """The last lines, each cut to a usual length."""
        return [_text(line)[:LONGEST_LAST_WORD] for line in self._last]

    def feed(self, data: bytes) -> None:
        if (count := data.count(b"\n")) > MOST_LINES:
            # The newest are all that is kept. To look at the others takes a microsecond each.
            kept = len(data) - len(data.rsplit(b"\n", MOST_LINES)[0]) - 1
            data, self._lines = data[-kept:] if kept else b"", Lines(LONGEST)
            self._left_out += count - MOST_LINES + 1
        self._take(self._lines.feed(data))
        if self._timer is None:
            self._tell()

    def finish(self) -> None:
        """Nothing more comes. What waits is told at once."""
        self._take([self._lines.finish()])
        self._room = len(self._waiting)
        self._tell()
        if self._timer is not None:
            self._timer.cancel()
        self._told = None

    def _take(self, lines: Sequence[bytes | None]) -> None:
        found = [line for line in lines if line]
        self._last.extend(found[-LAST_WORDS:])
        if self._told is None:
            return
        self._waiting.extend(found)
        self._size += sum(map(len, found))
        if len(self._waiting) > MOST_LINES or self._size > MOST_BYTES:
            while len(self._waiting) > MOST_LINES or self._size > MOST_BYTES:
                self._size -= len(self._waiting.popleft())
                self._left_out += 1
            self._pause(True)

    def _tell(self) -> None:
        if self._left_out and self._room:
            self._say(f"… {self._left_out:,} lines were left out: it writes too many at once")
            self._left_out = 0
        while self._waiting and self._room:
            self._room -= 1
            line = self._waiting.popleft()
            self._size -= len(line)
            self._say(_text(line))
        if self._timer is None and self._room < PORTION:
            self._timer = asyncio.get_running_loop().call_later(PORTION_SECONDS, self._next_portion)

    def _next_portion(self) -> None:
        self._timer, self._room = None, PORTION
        self._pause(False)
        self._tell()

    def _say(self, text: str) -> None:
        assert self._told is not None
        try:
            self._told(text)
        except Exception:
            log.exception("the handler of stderr failed")


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()
