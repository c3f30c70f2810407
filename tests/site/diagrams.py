"""The diagrams of the pages: read from the texts in docs/diagrams, laid out and drawn as SVG.

A text begins with its kind and what it shows. Then come the things, and what goes between them:

    flow: …                                    sequence: …                            steps: …
    Client: a line / another line              lanes: Client, Server                  A question?: a line -> if not
    Kernel*: what the picture is about         Client -> Server: a request            The end*: a line
    Client -> Kernel: what it carries          Server --> Client: its answer

A sequence may have several parts beside each other, each below `== its title`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise
from typing import Final

from .places import DOCS

FOLDER: Final = DOCS / "diagrams"
LINE, GAP, EDGE = 18, 20, 12
# How wide a letter is: the widest common font of a system decides.
BOLD_LETTER, SMALL_LETTER = 8.4, 7.0
_THING: Final = re.compile(r"(?P<name>[^:>]+?)(?P<strong>\*)?: (?P<rest>.+)")
_ARROW: Final = re.compile(r"(?P<start>.+?) (?P<line>-->|->) (?P<end>[^:]+)(?:: (?P<carries>.+))?")


@dataclass(frozen=True)
class Drawing:
    """Parts of SVG, and the room that they take."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list[str])


def read_all() -> dict[str, str]:
    """The texts by the names of their pictures."""
    return {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.txt"))}


def draw(source: str) -> str:
    head, _, text = source.partition("\n")
    kind, _, about = head.partition(": ")
    drawing = KINDS[kind]([line for line in text.splitlines() if line.strip()])
    width, height = round(drawing.width), round(drawing.height)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    label = f'role="img" aria-label="{escape(about.strip())}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="diagram" {size} {label}>',
        '<g style="font-family:var(--sans)" font-size="14">',
        *drawing.parts,
        "</g>",
        "</svg>\n",
    ]
    return "\n".join(lines)


# -- flows: boxes in columns, arrows between them ----------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    name: str
    lines: tuple[str, ...]
    strong: bool
    x: float = 0
    y: float = 0
    width: float = 0

    @property
    def height(self) -> int:
        return 34 + LINE * len(self.lines)

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True)
class Arrow:
    start: str
    end: str
    carries: str
    dashed: bool


def _draw_flow(lines: Sequence[str]) -> Drawing:
    arrows = [arrow for line in lines if (arrow := _read_arrow(line))]
    boxes = {box.name: box for line in lines if not _read_arrow(line) and (box := _read_box(line))}
    columns = _columns(boxes, arrows)
    tallest = max(sum(boxes[name].height + GAP for name in names) - GAP for names in columns)
    x, placed = float(EDGE), dict[str, Box]()
    for number, names in enumerate(columns):
        width = max(_width(boxes[name]) for name in names)
        y = EDGE + (tallest - sum(boxes[name].height + GAP for name in names) + GAP) / 2
        for name in names:
            placed[name] = replace(boxes[name], x=x, y=y, width=width)
            y += boxes[name].height + GAP
        told = [len(arrow.carries) for arrow in arrows if arrow.start in names and arrow.carries]
        x += width + max(56, max(told, default=0) * SMALL_LETTER + 36) * (number < len(columns) - 1)
    parts = [part for arrow in arrows for part in _draw_curve(placed[arrow.start], placed[arrow.end], arrow)]
    parts += [part for box in placed.values() for part in _draw_box(box)]
    return Drawing(x + EDGE, tallest + 2 * EDGE, parts)


def _columns(boxes: Mapping[str, Box], arrows: Sequence[Arrow]) -> list[list[str]]:
    """The names of each column: a box stands right of all that lead to it."""
    depth = dict.fromkeys(boxes, 0)
    for _ in boxes:
        for arrow in arrows:
            depth[arrow.end] = max(depth[arrow.end], depth[arrow.start] + 1)
    return [[name for name in boxes if depth[name] == column] for column in range(max(depth.values()) + 1)]


def _width(box: Box) -> float:
    return max(len(box.name) * BOLD_LETTER, *(len(line) * SMALL_LETTER for line in box.lines), 0) + 2 * EDGE


def _draw_box(box: Box) -> Iterator[str]:
    fill, edge = ("var(--accent)", "var(--accent)") if box.strong else ("var(--well)", "var(--line-strong)")
    text, second = ("var(--on-accent)",) * 2 if box.strong else ("var(--text)", "var(--text-2)")
    place = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height}"'
    yield f'<rect {place} rx="8" fill="{fill}" stroke="{edge}"/>'
    middle = box.x + box.width / 2
    yield _text(middle, box.y + 22, box.name, f'font-weight="600" fill="{text}"')
    for number, line in enumerate(box.lines, 1):
        yield _text(middle, box.y + 22 + LINE * number, line, f'font-size="13" fill="{second}"')


def _draw_curve(start: Box, end: Box, arrow: Arrow) -> Iterator[str]:
    x1, y1, x2, y2 = start.x + start.width, start.middle, end.x, end.middle
    half = (x1 + x2) / 2
    path = f"M{x1:.0f} {y1:.0f}C{half:.0f} {y1:.0f} {half:.0f} {y2:.0f} {x2 - 8:.0f} {y2:.0f}"
    yield f'<path d="{path}" fill="none" stroke="var(--edge)" stroke-width="1.5"/>'
    yield _draw_head(x2, y2, -1)
    if arrow.carries:
        yield _text(half, (y1 + y2) / 2 - 8, arrow.carries, 'font-size="13" fill="var(--text-2)"')


# -- sequences: who says what to whom, from top to bottom --------------------------------------------------------------


def _draw_sequence(lines: Sequence[str]) -> Drawing:
    panels = list[tuple[str, list[str]]]()
    for line in lines:
        if line.startswith("== ") or not panels:
            panels.append((line.removeprefix("== ") if line.startswith("== ") else "", []))
        if not line.startswith("== "):
            panels[-1][1].append(line)
    x, height, parts = 0.0, 0.0, list[str]()
    for title, inside in panels:
        drawing = _draw_panel(title, inside)
        parts += [f'<g transform="translate({x:.0f} 0)">', *drawing.parts, "</g>"]
        x, height = x + drawing.width, max(height, drawing.height)
    return Drawing(x, height, parts)


def _draw_panel(title: str, lines: Sequence[str]) -> Drawing:
    lanes = lines[0].partition(": ")[2].split(", ")
    arrows = [arrow for line in lines[1:] if (arrow := _read_arrow(line))]
    places = _places(lanes, arrows)
    top = EDGE + (28 if title else 0)
    first, end = top + 34, top + 34 + 42 * len(arrows) + 10
    width = places[lanes[-1]] + len(lanes[-1]) * BOLD_LETTER / 2 + 2 * EDGE
    parts = [f'<text x="{EDGE}" y="20" font-weight="600" fill="var(--text)">{escape(title)}</text>'] if title else []
    for lane in lanes:
        parts.append(
            f'<path d="M{places[lane]:.0f} {first}V{end}" stroke="var(--line-strong)" stroke-dasharray="3 4"/>'
        )
        box = Box(lane, (), strong=False, y=top, width=len(lane) * BOLD_LETTER + 2 * EDGE)
        parts += _draw_box(replace(box, x=places[lane] - box.width / 2))
    for number, arrow in enumerate(arrows):
        parts += _draw_message(places[arrow.start], places[arrow.end], first + 38 + 42 * number, arrow)
    return Drawing(width, end + EDGE, parts)


def _places(lanes: Sequence[str], arrows: Sequence[Arrow]) -> dict[str, float]:
    """Where the lanes stand: what two neighbours say to each other fits between them."""
    x = EDGE + len(lanes[0]) * BOLD_LETTER / 2 + EDGE
    places = {lanes[0]: x}
    for left, right in pairwise(lanes):
        said = [len(arrow.carries) for arrow in arrows if {arrow.start, arrow.end} == {left, right}]
        boxes = (len(left) + len(right)) * BOLD_LETTER / 2 + 3 * EDGE
        x += max(max(said, default=0) * SMALL_LETTER + 28, boxes)
        places[right] = x
    return places


def _draw_message(x1: float, x2: float, y: float, arrow: Arrow) -> Iterator[str]:
    towards = 1 if x2 > x1 else -1
    dashes = ' stroke-dasharray="5 4"' if arrow.dashed else ""
    line = f'd="M{x1:.0f} {y}H{x2 - 8 * towards:.0f}" stroke="var(--accent)"'
    yield f'<path {line} stroke-width="1.5"{dashes}/>'
    yield _draw_head(x2, y, -towards, "accent")
    # A paper behind the words: lines of others pass there.
    half, width = (x1 + x2) / 2, len(arrow.carries) * SMALL_LETTER
    yield f'<rect x="{half - width / 2:.0f}" y="{y - 20}" width="{width:.0f}" height="15" fill="var(--surface)"/>'
    yield _text(half, y - 8, arrow.carries, 'font-size="13" fill="var(--text)"')


# -- steps: gates below each other, and what happens to who does not pass ----------------------------------------------


def _draw_steps(lines: Sequence[str]) -> Drawing:
    parts, y, wide, aside = list[str](), float(EDGE), 0.0, 0.0
    steps = [(box, line.partition(" -> ")[2]) for line in lines if (box := _read_box(line.partition(" -> ")[0]))]
    wide = max(_width(box) for box, _ in steps)
    for number, (box, otherwise) in enumerate(steps):
        placed = replace(box, x=EDGE, y=y, width=wide)
        parts += _draw_box(placed)
        if otherwise:
            x1, x2 = EDGE + wide, EDGE + wide + 44
            parts.append(
                f'<path d="M{x1:.0f} {placed.middle:.0f}H{x2 - 8:.0f}" stroke="var(--bad)" stroke-width="1.5"/>'
            )
            parts.append(_draw_head(x2, placed.middle, -1, "bad"))
            words = f'x="{x2 + 8:.0f}" y="{placed.middle + 5:.0f}" font-size="13" fill="var(--bad)"'
            parts.append(f"<text {words}>{escape(otherwise)}</text>")
            aside = max(aside, 60 + len(otherwise) * SMALL_LETTER)
        y += box.height
        if number < len(steps) - 1:
            x = EDGE + wide / 2
            parts.append(f'<path d="M{x:.0f} {y:.0f}v14" stroke="var(--edge)" stroke-width="1.5"/>')
            parts.append(f'<path d="M{x - 5:.0f} {y + 13:.0f}l5 9l5 -9Z" fill="var(--edge)"/>')
            y += 22
    return Drawing(2 * EDGE + wide + aside, y + EDGE, parts)


KINDS: Final[Mapping[str, Callable[[Sequence[str]], Drawing]]] = {
    "flow": _draw_flow,
    "sequence": _draw_sequence,
    "steps": _draw_steps,
}


# -- reading and drawing of what all kinds have ------------------------------------------------------------------------


def _read_box(line: str) -> Box:
    found = _THING.fullmatch(line)
    assert found, f"this is no thing and no arrow: {line}"
    return Box(found["name"], tuple(found["rest"].split(" / ")), bool(found["strong"]))


def _read_arrow(line: str) -> Arrow | None:
    found = _ARROW.fullmatch(line)
    return found and Arrow(found["start"], found["end"], found["carries"] or "", found["line"] == "-->")


def _draw_head(x: float, y: float, back: int, colour: str = "edge") -> str:
    side = x + 9 * back
    return f'<path d="M{side:.0f} {y - 5:.0f}L{x:.0f} {y:.0f}L{side:.0f} {y + 5:.0f}Z" fill="var(--{colour})"/>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" {style}>{escape(text)}</text>'
