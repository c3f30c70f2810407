"""Work under way, drawn on stderr while it lasts: a spinner, or a bar if it is known how much there is.

Where nothing can be drawn, progress and log messages are plain lines."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock, Timer
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from defserve.cli.screen import can_draw, make_console, show_stderr
from defserve.cli.screen_blocks import StyledLine
from defserve.core.json_values import is_object

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

PATIENCE_SECONDS: Final = 0.3
"""What is done sooner is not drawn: it would only flicker."""
PLAIN_SECONDS: Final = 1.0
"""Lines of progress in a pipe or a file are at least so far apart, except the last."""
LISTING_STEP: Final = "Asking the server what it offers"
LEVELS: Final = {
    "debug": "faint",
    "notice": "good",
    "warning": "warning",
    **dict.fromkeys(("error", "critical", "alert", "emergency"), "error"),
}


class ProgressDisplay:
    """`with Working("Calling add") as work`: drawn until the block ends, then gone. Only at a terminal."""

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, Lock()
        self._bar: Progress | None = None
        self._task: Any = None
        self._ended = self._paused = False
        self._timer: Timer | None = None
        self._next_line = 0.0
        self._held: StyledLine | None = None
        self.is_drawn = can_draw(sys.stderr)

    def __enter__(self) -> ProgressDisplay:
        if self.is_drawn:
            self._timer = Timer(PATIENCE_SECONDS, self._begin)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()
        if self._held is not None:
            show_stderr(self._held)

    def show_step(self, what: str) -> None:
        """Say what is being done now."""
        self._what = what
        if self._bar is not None:
            self._bar.update(self._task, description=StyledLine(what))

    def show_progress(self, value: float, total: float | None = None, message: str | None = None) -> None:
        """How far it has come; for `on_progress` of a client."""
        if not self.is_drawn:
            self._progress_line(value, total, message)
            return
        self._begin()
        if self._bar is not None:
            self._bar.columns = _columns(with_bar=total is not None)
            self._bar.update(self._task, completed=value, total=total, description=StyledLine(message or self._what))

    def show_log(self, params: dict[str, Any]) -> None:
        """A log message, above what is drawn; for `on_log` of a client."""
        level, data = str(params.get("level", "info")), params.get("data")
        rest = dict(data) if is_object(data) else {"message": data}
        message = rest.pop("message", "")
        told = "".join(f" {name}={value}" for name, value in rest.items())
        line = StyledLine((f"{level:7}", LEVELS.get(level, "name")), f" {message}", (told, "faint"), hang=8)
        if not self.is_drawn:
            show_stderr(line)
            return
        from defserve.cli.screen_drawing import draw_blocks

        with self._lock:
            draw_blocks(self._bar.console if self._bar is not None else make_console(sys.stderr), [line])

    @contextmanager
    def pause_drawing(self) -> Generator[None]:
        """Nothing is drawn while the block runs: somebody is asked a question."""
        with self._lock:
            self._paused = True
            if self._bar is not None:
                self._bar.stop()
        try:
            yield
        finally:
            with self._lock:
                self._paused = False
                if self._bar is not None and not self._ended:
                    self._bar.start()

    def _progress_line(self, value: float, total: float | None, message: str | None) -> None:
        now = monotonic()
        far = f"{value:g}" if total is None else f"{value:g} of {total:g}"
        self._held = StyledLine(f"{message or self._what}: {far}")
        if now >= self._next_line and not self._paused:
            self._next_line = now + PLAIN_SECONDS
            show_stderr(self._held)
            self._held = None

    def _begin(self) -> None:
        if not self.is_drawn:
            return
        with self._lock:
            if self._bar is not None or self._ended or self._paused:
                return
            from rich.progress import Progress

            self._bar = Progress(*_columns(with_bar=False), console=make_console(sys.stderr), transient=True)
            self._task = self._bar.add_task(StyledLine(self._what), total=None)
            self._bar.start()


def _columns(*, with_bar: bool) -> tuple[ProgressColumn, ...]:
    """A spinner, what is done, and how long it took so far; a bar only if it is known how much there is."""
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = (BarColumn(bar_width=30), TaskProgressColumn()) if with_bar else ()
    return SpinnerColumn(), TextColumn("{task.description}", markup=False), *bar, TimeElapsedColumn()
