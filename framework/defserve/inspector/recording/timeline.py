"""What pages see of a recorder: its rows under each filter in use, and its overview."""

from __future__ import annotations

from collections.abc import Callable

from defserve.inspector.recording.overview import Overview
from defserve.inspector.recording.recorder import Recorder
from defserve.inspector.recording.rows import RowsInUse


class Timeline:
    """The shared part of every page's timeline."""

    def __init__(self, recorder: Recorder) -> None:
        self.rows, self.overview = RowsInUse(recorder), Overview(recorder)
        self._recorder = recorder
        self._told: list[Callable[[], object]] = []

    def clear(self) -> None:
        """Forget every message, and tell whoever follows."""
        self._recorder.clear()
        for tell in tuple(self._told):
            tell()

    def on_clear(self, tell: Callable[[], object]) -> Callable[[], None]:
        """Have `tell` called when the timeline is cleared. Call what it returns to end that."""
        self._told.append(tell)
        return lambda: self._told.remove(tell)
