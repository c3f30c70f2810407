"""Samples drawn as one SVG picture: a row a scenario, a curve a measure. Written by hand, so nothing is installed.

As PNG it is a photograph that a headless Chromium takes, where there is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

MEASURES = ("memory", "descriptors", "threads", "processes", "tasks", "p50", "p99", "calls")
UNITS = {"memory": " MB", "p50": " ms", "p99": " ms", "calls": "/s"}
WIDTH, HEIGHT, GAP, NAME, TOP = 150, 46, 14, 130, 40
MOST_POINTS = 300
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_SECONDS = 120
_SIZE = re.compile(r'width="(\d+)" height="(\d+)"')


def picture(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """`runs` are the results of scenarios, as the JSON file has them."""
    wide, high = NAME + len(MEASURES) * (WIDTH + GAP), TOP + len(runs) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" font-family="sans-serif" '
        'font-size="11">',
        "<style>text{fill:#777}.name{font-weight:bold}path{fill:none;stroke:#3b7dd8;stroke-width:1.2}"
        "rect{fill:none;stroke:#7776}.bad{stroke:#d33}</style>",
    ]
    for column, measure in enumerate(MEASURES):
        parts.append(f'<text class="name" x="{NAME + column * (WIDTH + GAP)}" y="20">{measure}</text>')
    for row, (name, run) in enumerate(runs.items()):
        top = TOP + row * (HEIGHT + GAP)
        parts.append(f'<text class="name" x="4" y="{top + HEIGHT / 2}">{escape(name)}</text>')
        for column, measure in enumerate(MEASURES):
            values = run["values"].get(measure)
            if values:
                is_bad = measure in run["growing"]
                parts += _curve(
                    NAME + column * (WIDTH + GAP), top, run["times"], values, UNITS.get(measure, ""), is_bad
                )
    return "\n".join([*parts, "</svg>\n"])


def _curve(
    left: float, top: float, times: Sequence[float], values: Sequence[float], unit: str, is_bad: bool
) -> list[str]:
    step = max(1, len(times) // MOST_POINTS)
    times, values = times[::step], values[::step]
    most, end = max(*values, 1e-9, 0), max(times[-1], 1e-9)
    points = " L".join(
        f"{left + WIDTH * at / end:.1f},{top + HEIGHT - HEIGHT * max(value, 0) / most:.1f}"
        for at, value in zip(times, values, strict=True)
    )
    return [
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<path{" class=" + chr(34) + "bad" + chr(34) if is_bad else ""} d="M{points}"/>',
        f'<text x="{left + 3}" y="{top + 11}">{_short(most)}{unit}</text>',
    ]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_png(svg: str, file: Path) -> str | None:
    """Write the picture as PNG. Why it could not be, or None if it is written."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return f"no PNG is written: it takes a browser, one of {', '.join(BROWSERS)}"
    size = _SIZE.search(svg)
    assert size is not None
    with tempfile.TemporaryDirectory(prefix="plots") as folder:
        drawn = Path(folder) / "drawn.svg"
        drawn.write_text(svg)
        flags = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        )
        shot = (f"--screenshot={file.absolute()}", f"--window-size={size[1]},{size[2]}", drawn.as_uri())
        file.unlink(missing_ok=True)
        done = subprocess.run([browser, *flags, *shot], capture_output=True, timeout=BROWSER_SECONDS)
    return None if file.exists() else f"no PNG is written: {done.stderr.decode(errors='replace')[-300:]}"
