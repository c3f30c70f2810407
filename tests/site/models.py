"""llms.txt and llms-full.txt (llmstxt.org): the site for a model, as a list of pages and as one text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .markdown import headings, title, with_links
from .pages import Pages
from .places import ROOT, SITE

ENTRY: Final = re.compile(r"^- \[[^]]+\]\(([^)]+)\)", re.MULTILINE)
# The page itself is at this address without the ending.
MARKDOWN: Final = ".html.md"


def write(pages: Pages, site: Path = SITE) -> None:
    """Write both texts, and each page as Markdown beside its HTML."""
    brief = short(pages)
    (site / "llms.txt").write_text(brief, encoding="utf-8")
    (site / "llms-full.txt").write_text(full(pages, brief), encoding="utf-8")
    for place, text in pages.texts.items():
        linked = with_links(text, lambda link: re.sub(r"\.md(?=#|$)", MARKDOWN, link))
        (site / address(place)).write_text(linked, encoding="utf-8")


def short(pages: Pages) -> str:
    """The repository's llms.txt with addresses of the site, and the pages that only the site has."""
    text = with_links((ROOT / "llms.txt").read_text("utf-8"), lambda link: address(pages.place(link) or link))
    listed = set(ENTRY.findall(text))
    more = [place for place in pages.texts if address(place) not in listed]
    sections = {
        "Cookbook": [place for place in more if place.startswith("cookbook/")],
        "Reference, by area": [place for place in more if place.startswith("reference/")],
    }
    ours = "".join(_section(name, places, pages) for name, places in sections.items() if places)
    before, optional, after = text.partition("\n## Optional\n")
    return f"{before.rstrip()}\n{ours}{optional}{after}"


def full(pages: Pages, brief: str) -> str:
    """What `short` lists before its optional part, one text after the other."""
    head = brief.partition("\n## ")[0].strip()
    places = {address(place): place for place in pages.texts}
    texts = [pages.texts[places[link]].strip() for link in ENTRY.findall(brief.partition("\n## Optional\n")[0])]
    return "\n\n---\n\n".join([head, *texts]) + "\n"


def address(place: str) -> str:
    return place.removesuffix(".md") + MARKDOWN if place.endswith(".md") else place


def _section(name: str, places: list[str], pages: Pages) -> str:
    return "\n".join(["", f"## {name}", "", *_entries(places, pages), ""])


def _entries(places: list[str], pages: Pages) -> Iterator[str]:
    for place in places:
        text = pages.texts[place]
        yield f"- [{title(text, place)}]({address(place)}): {_about(place, text)}"


def _about(place: str, text: str) -> str:
    """The names of a part of the reference; of any other page the first line of prose."""
    if place.startswith("reference/"):
        return ", ".join(heading for level, heading, _ in headings(text) if level == 2)
    return next((line for line in text.splitlines()[1:] if line and line[0].isalnum()), "")
