"""`python -m tests.site.pictures` draws what is drawn: diagrams, charts and the terminal, in light and dark colours.

With `--record` the commands in the terminal are run again first. Pages on GitHub show the files; on the site the same
drawings stand in the page itself, in the colours of the reader.
"""

from __future__ import annotations

import sys
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from . import charts, diagrams, terminal
from .places import DOCS
from .tokens import in_each_scheme

FOLDER: Final = DOCS / "pictures"


@cache
def drawings() -> dict[str, str]:
    """Every drawing by its name, with the names of tokens for colours."""
    results = charts.kept_results()
    return {
        "terminal": terminal.draw(terminal.read_recording()),
        **{name: charts.draw(chart, results) for name, chart in charts.CHARTS.items()},
        **{name: diagrams.draw(diagram) for name, diagram in diagrams.read_all().items()},
    }


def files() -> dict[Path, str]:
    """What is written, by path. A file has a ground of its own: it is also shown on pages of another colour."""
    ground = '<rect width="100%" height="100%" rx="10" fill="var(--surface)"/>'
    return {
        FOLDER / f"{name}{ending}.svg": text
        for name, drawing in drawings().items()
        for ending, text in in_each_scheme(drawing.replace(">", f">{ground}", 1)).items()
    }


def on_a_page(name: str) -> str:
    """A drawing as a part of a page: one block of HTML, in the colours of the page."""
    drawing, more = drawings()[name].replace("\n", ""), ""
    if name == "terminal":
        text = escape(terminal.transcript(terminal.read_recording())).replace("\n", "&#10;")
        more = f"<details><summary>Read it as text</summary><pre><code>{text}</code></pre></details>"
        drawing = f'<div class="screen">{drawing}</div>'
    return f'\n<div class="drawing {name}">{drawing}{more}</div>\n'


def main(arguments: list[str]) -> None:
    if "--record" in arguments:
        terminal.write_recording(terminal.record())
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
