"""docs/reference.md in parts, one page an area: a group of names, a module, or the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from defserve.base.version import VERSION

from .markdown import anchor, headings, shifted

# Its groups are pages of their own; the other modules are small enough.
ROOM: Final = "defserve"
# What parts are listed under: those of the module itself, other modules, and the rest by their titles.
NAMES, MODULES = "Names of defserve", "Modules"
OTHERS: Final = {"What you are given": MODULES, "The command": "Command line"}


@dataclass(frozen=True)
class Part:
    """One page of the reference. `anchors` are those that its text had on the whole page."""

    title: str
    text: str
    anchors: tuple[str, ...]

    @property
    def name(self) -> str:
        return anchor(self.title.replace(".", "-"))

    @property
    def group(self) -> str:
        """What it is listed under."""
        return MODULES if self.title.startswith(f"{ROOM}.") else OTHERS.get(self.title, NAMES)


def parts(whole: str) -> list[Part]:
    """The parts of the reference, in its order."""
    found = list[Part]()
    for title, text in _sections(whole, 2):
        groups = _sections(text, 3) if title == ROOM else []
        found += [_part(*group) for group in groups] or [_part(title, text)]
    return found


def index(found: list[Part]) -> str:
    """The page that leads to the parts, and to each name in them."""
    intro = f"Every public name and every command of defserve {VERSION}, made from its docstrings and parsers."
    lines = ["# Reference", "", intro, ""]
    for group in dict.fromkeys(part.group for part in found):
        rows = [f"| [{part.title}]({part.name}.md) | {_listed(part)} |" for part in found if part.group == group]
        lines += [f"## {group}", "", "| Page | Names |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _listed(part: Part) -> str:
    names = (heading for level, heading, _ in headings(part.text) if level == 2)
    return ", ".join(f"[`{name}`]({part.name}.md#{anchor(name)})" for name in names)


def _sections(text: str, level: int) -> list[tuple[str, str]]:
    """Heading and text of each section at a level; what stands above the first is left out."""
    starts = [(heading, at) for depth, heading, at in headings(text) if depth == level]
    ends = [at for _, at in starts[1:]] + [len(text)]
    return [
        (heading, text[at:end].partition("\n")[2].strip("\n")) for (heading, at), end in zip(starts, ends, strict=True)
    ]


def _part(title: str, text: str) -> Part:
    inner = list(headings(text))
    top = min((level for level, _, _ in inner), default=2)
    note = f"*defserve {VERSION}*"
    body = f"# {title}\n\n{note}\n\n{shifted(text, top - 2)}\n"
    return Part(title, body, (anchor(title), *(anchor(heading) for _, heading, _ in inner)))
