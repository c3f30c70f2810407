"""`python -m tests.site.diagrams` draws the diagrams of the pages as SVG, each in light and in dark colours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from .places import DOCS

FOLDER: Final = DOCS / "pictures"
LINE: Final = 18
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True)
class Colours:
    paper: str
    box: str
    edge: str
    strong: str
    on_strong: str
    text: str
    faint: str


SCHEMES: Final = {
    "": Colours("#ffffff", "#f5f6fa", "#c3c8d8", "#3949ab", "#ffffff", "#1c1f2b", "#4a5068"),
    "-dark": Colours("#14161f", "#232736", "#4b5270", "#5c6bc0", "#ffffff", "#eceef6", "#b9bfd6"),
}


@dataclass(frozen=True)
class Box:
    """At a place, with a title and lines below it. `strong` is what the picture is about."""

    x: int
    y: int
    width: int
    title: str
    lines: tuple[str, ...] = ()
    strong: bool = False

    @property
    def height(self) -> int:
        return 36 + LINE * len(self.lines)

    @property
    def middle(self) -> int:
        return self.y + self.height // 2


@dataclass(frozen=True)
class Diagram:
    """Boxes by name, and arrows from one to another with what they carry."""

    about: str
    width: int
    height: int
    boxes: Mapping[str, Box]
    arrows: tuple[tuple[str, str, str], ...]


DIAGRAMS: Final = {
    "serving": Diagram(
        "Clients of every version reach the same functions through stdio, HTTP or WebSocket",
        860,
        250,
        {
            "old": Box(20, 20, 200, "Older clients", ("a session first",)),
            "new": Box(20, 98, 200, "New clients", ("each request stands alone",)),
            "hosts": Box(20, 176, 200, "Hosts with extensions", ("MGP, MCPL, MCPx",)),
            "defserve": Box(
                330,
                80,
                230,
                "defserve",
                ("stdio, HTTP, WebSocket", "who calls, with what", "questions, limits, logs"),
                True,
            ),
            "yours": Box(670, 89, 170, "Your functions", ("ordinary Python", "with types")),
        },
        (
            ("old", "defserve", ""),
            ("new", "defserve", ""),
            ("hosts", "defserve", ""),
            ("defserve", "yours", "a call"),
        ),
    ),
    "kernel": Diagram(
        "A client talks to one kernel, which runs, restarts and watches many servers",
        860,
        250,
        {
            "client": Box(20, 89, 170, "Client", ("one entry", "in its settings")),
            "kernel": Box(330, 80, 210, "Kernel", ("one list of tools", "permissions, audit", "restarts, logs"), True),
            "files": Box(660, 20, 180, "files", ("a command on stdio",)),
            "search": Box(660, 98, 180, "search", ("an address over HTTP",)),
            "yours": Box(660, 176, 180, "yours", ("a server with defserve",)),
        },
        (
            ("client", "kernel", "one connection"),
            ("kernel", "files", ""),
            ("kernel", "search", ""),
            ("kernel", "yours", ""),
        ),
    ),
    "asking": Diagram(
        "A tool asks, the client shows the question, a person answers, and the tool goes on",
        860,
        112,
        {
            "tool": Box(20, 29, 160, "Your tool", ("await ctx.ask(…)",), True),
            "client": Box(230, 29, 160, "Client", ("shows the question",)),
            "person": Box(440, 29, 160, "Person", ("answers or declines",)),
            "again": Box(650, 20, 190, "Your tool", ("the call goes on, or the", "function runs again"), True),
        },
        (("tool", "client", ""), ("client", "person", ""), ("person", "again", "")),
    ),
}


def svg(diagram: Diagram, colours: Colours) -> str:
    size = f'width="{diagram.width}" height="{diagram.height}" viewBox="0 0 {diagram.width} {diagram.height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}" font-size="14">',
            f"<title>{escape(diagram.about)}</title>",
            f'<rect width="100%" height="100%" rx="8" fill="{colours.paper}"/>',
            *(part for arrow in diagram.arrows for part in _arrow(diagram, arrow, colours)),
            *(part for box in diagram.boxes.values() for part in _box(box, colours)),
            "</svg>\n",
        ]
    )


def _box(box: Box, colours: Colours) -> Iterator[str]:
    fill, text = (colours.strong, colours.on_strong) if box.strong else (colours.box, colours.text)
    faint = colours.on_strong if box.strong else colours.faint
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    yield f'<rect {place} rx="8" fill="{fill}" stroke="{colours.edge}"/>'
    x = box.x + box.width // 2
    yield _text(x, box.y + 24, box.title, f'font-weight="600" fill="{text}"')
    for number, line in enumerate(box.lines, 1):
        yield _text(x, box.y + 24 + LINE * number, line, f'font-size="13" fill="{faint}"')


def _arrow(diagram: Diagram, arrow: tuple[str, str, str], colours: Colours) -> Iterator[str]:
    start, end, carries = diagram.boxes[arrow[0]], diagram.boxes[arrow[1]], arrow[2]
    x1, y1, x2, y2 = start.x + start.width, start.middle, end.x, end.middle
    half = (x1 + x2) // 2
    path = f"M{x1} {y1} C{half} {y1} {half} {y2} {x2 - 8} {y2}"
    yield f'<path d="{path}" fill="none" stroke="{colours.faint}" stroke-width="1.5"/>'
    yield f'<path d="M{x2 - 9} {y2 - 5} L{x2} {y2} L{x2 - 9} {y2 + 5} Z" fill="{colours.faint}"/>'
    if carries:
        yield _text(half, (y1 + y2) // 2 - 8, carries, f'font-size="13" fill="{colours.faint}"')


def _text(x: int, y: int, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" {style}>{escape(text)}</text>'


def files() -> dict[Path, str]:
    """What is written, by path."""
    return {
        FOLDER / f"{name}{scheme}.svg": svg(diagram, colours)
        for name, diagram in DIAGRAMS.items()
        for scheme, colours in SCHEMES.items()
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
