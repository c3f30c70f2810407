"""`defserve call --timing`: where the time of a call went, as a table with bars. It is loaded for this option alone."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from defserve.cli.screen import can_draw
from defserve.cli.screen_blocks import ScreenBlock, StyledLine, Table
from defserve.core.call import Call
from defserve.inspector.call_timer import CallTimer
from defserve.inspector.waterfalls import ServerWaterfall, Waterfall, measure_round_trip, place_in_round_trip

BAR_WIDTH: Final = 32
INDENT: Final = "  "
STYLES: Final = {"wait": "warning", "check": "default", "around": "default", "dependency": "name", "function": "title"}
"""The kind of a stage → the style of its bar."""
ELSEWHERE: Final = (
    "only the round trip is known, because the server runs in another process; "
    "name its file to see the stages: defserve call server.py …"
)


class CallMeasurement:
    """Measures the calls of a server of this process, and the round trip of any."""

    def __init__(self) -> None:
        self.waterfall: Waterfall | None = None
        """Where the time of the newest call went."""
        self._measured: ServerWaterfall | None = None

    @contextmanager
    def measure_server(self) -> Generator[None]:
        """While the block runs, a server that is loaded in it is measured."""
        with CallTimer(self._take_report):
            yield

    @contextmanager
    def measure_call(self) -> Generator[None]:
        """The block makes the call, and waits for its end."""
        sent, is_failed = perf_counter(), True
        try:
            yield
            is_failed = False
        finally:
            ms = (perf_counter() - sent) * 1000
            if self._measured is not None:
                self.waterfall = place_in_round_trip(self._measured, sent, ms)
            else:
                self.waterfall = measure_round_trip(ms, is_failed=is_failed, note=ELSEWHERE)

    def _take_report(self, call: Call, measured: ServerWaterfall) -> None:
        self._measured = measured


def render_waterfall(waterfall: Waterfall) -> Iterator[ScreenBlock]:
    """The stages with their times and shares. What failed is marked."""
    whole, block = waterfall.ms, "█" if can_draw(sys.stderr) else "#"
    rows = [
        (
            (INDENT * stage.depth + stage.title, "bad" if stage.is_failed else ""),
            _format_ms(stage.ms),
            _format_share(stage.ms, whole),
            (
                _draw_bar(stage.start, stage.ms, whole, block) + (" failed" if stage.is_failed else ""),
                "bad" if stage.is_failed else STYLES.get(stage.kind, "faint"),
            ),
        )
        for stage in waterfall.stages
    ]
    between = waterfall.ms_between
    if between * 100 >= whole:
        rows.append((("between the stages", "faint"), _format_ms(between), _format_share(between, whole), ("", "")))
    rows.append((("in all", "heading"), _format_ms(whole), "", ("", "")))
    yield Table(("stage", f"{'time':>10}", "share", ""), rows)
    if waterfall.left_out:
        yield StyledLine((f"{waterfall.left_out:,} more stages are not shown", "faint"))
    if waterfall.note:
        yield StyledLine((waterfall.note, "faint"))


def _draw_bar(start: float, ms: float, whole: float, block: str) -> str:
    """At least one character, which is inside of the width."""
    begin = round(start / whole * BAR_WIDTH) if whole else 0
    width = max(1, round(ms / whole * BAR_WIDTH) if whole else 1)
    return " " * min(begin, BAR_WIDTH - 1) + block * min(width, BAR_WIDTH - min(begin, BAR_WIDTH - 1))


def _format_ms(ms: float) -> str:
    return f"{ms / 1000:.1f} s".rjust(10) if ms >= 10_000 else f"{ms:.2f} ms".rjust(10)


def _format_share(ms: float, whole: float) -> str:
    share = ms / whole * 100 if whole else 0.0
    return ("<1 %" if 0 < share < 1 else f"{share:.0f} %").rjust(5)
