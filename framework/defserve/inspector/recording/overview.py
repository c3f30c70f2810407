"""How many messages passed when, and how many errors: a few bars for the whole timeline."""

from __future__ import annotations

from math import ceil
from typing import Final

from defserve.host.fields import Json
from defserve.inspector.recording.recorder import Recorder

NARROWEST: Final = 0.25
"""Seconds of one bar, while the timeline is short."""
BARS: Final = 160
MOST_BUCKETS: Final = 4_096


class Overview:
    """Counts messages as they come. The time and the memory that it takes do not depend on how many there are."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._buckets: dict[int, tuple[int, int]] = {}
        self._width = NARROWEST
        self._first = self._seen = 0

    def bars(self) -> Json:
        """`start` in seconds since 1970, `width` of a bar in seconds, and `bars`: [messages, errors] each."""
        self._count()
        if not self._buckets:
            return {"start": 0.0, "width": NARROWEST, "bars": []}
        first, last = min(self._buckets), max(self._buckets)
        together = max(1, ceil((last - first + 1) / BARS))
        found = [[0, 0] for _ in range(BARS)]
        for bucket, (messages, errors) in self._buckets.items():
            bar = found[(bucket - first) // together]
            bar[0] += messages
            bar[1] += errors
        return {"start": first * self._width, "width": self._width * together, "bars": found}

    def _count(self) -> None:
        recorder = self._recorder
        if recorder.first != self._first:
            self._forget()
        for entry in recorder.slice(max(self._seen, recorder.first), recorder.count):
            bucket = int(entry.time / self._width)
            messages, errors = self._buckets.get(bucket, (0, 0))
            is_error = entry.kind != "request" and entry.error is not None
            self._buckets[bucket] = (messages + 1, errors + is_error)
            if len(self._buckets) > MOST_BUCKETS:
                self._widen()
        self._seen = recorder.count

    def _forget(self) -> None:
        """Drop what lies before the first message that is left."""
        self._first = self._recorder.first
        left = self._recorder.entry(self._first)
        if left is None:
            self._buckets, self._width = {}, NARROWEST
        else:
            oldest = int(left.time / self._width)
            self._buckets = {bucket: counts for bucket, counts in self._buckets.items() if bucket >= oldest}

    def _widen(self) -> None:
        """Make buckets twice as wide."""
        wider: dict[int, tuple[int, int]] = {}
        for bucket, (messages, errors) in self._buckets.items():
            so_far, wrong = wider.get(bucket // 2, (0, 0))
            wider[bucket // 2] = (so_far + messages, wrong + errors)
        self._buckets, self._width = wider, self._width * 2
