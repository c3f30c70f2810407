"""What the search of the site is given besides the pages: words that mean the same, what links say of a page, and what
people ask that it answers."""

from __future__ import annotations

import json
import posixpath
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .pages import Pages
from .places import ROOT, SITE, THEME

WORKER: Final = "assets/javascripts/workers"
_FENCE: Final = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.DOTALL | re.MULTILINE)
# A link, and what the same line says about its page, if the line begins with the link: a row of a table, or of a list.
_LINK: Final = re.compile(
    r"(?P<first>^(?:\| |- |\d+\. ))?\[(?P<text>[^]\[]+)\]\((?P<path>[^)#\s]*\.md)?(?:#(?P<anchor>[^)\s]+))?\)"
    r"(?(first)(?:: | \| )?(?P<about>[^|\n]*))",
    re.MULTILINE,
)


def write(pages: Pages, site: Path = SITE) -> None:
    """Add to the index that the generator wrote, and put our search where the theme has its own."""
    index: dict[str, Any] = json.loads((site / "search.json").read_text("utf-8"))
    index["config"]["words"] = words()
    links, asked = collect_links(pages), collect_asked()
    for item in index["items"]:
        if said := links.get(item["location"]):
            item["links"] = ". ".join(sorted(said))
        if phrases := asked.get(item["location"]):
            item["asked"] = phrases
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (site / "search.json").write_text(text, encoding="utf-8")
    # Where the site is opened as a file, nothing can be fetched, and this one is a script.
    (site / "search.js").write_text(f"var __index = {text};", encoding="utf-8")
    (worker,) = (site / WORKER).glob("search.*.js")
    worker.write_text((THEME / "search.js").read_text("utf-8"), encoding="utf-8")


def words() -> dict[str, Any]:
    """Words that say nothing, and words that mean the same, for all pages."""
    return tomllib.loads((THEME / "words.toml").read_text("utf-8"))


def collect_asked() -> dict[str, list[str]]:
    """Address of a page or section to what people ask that it answers, in their words."""
    asked: dict[str, dict[str, list[str]]] = tomllib.loads((THEME / "asked.toml").read_text("utf-8"))
    return {
        f"{page}.html" + (f"#{anchor}" if anchor else ""): phrases
        for page, sections in asked.items()
        for anchor, phrases in sections.items()
    }


def collect_links(pages: Pages) -> dict[str, set[str]]:
    """Address of a page or section to what pages that link to it call it, and say about it."""
    links: dict[str, set[str]] = defaultdict(set)
    for place, text in [*pages.texts.items(), ("llms.md", _llms(pages))]:
        for address, said in _links(place, _FENCE.sub("", text)):
            links[address].add(said)
    return links


def _links(place: str, text: str) -> Iterator[tuple[str, str]]:
    for found in _LINK.finditer(text):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), found["path"])) if found["path"] else place
        address = path.removesuffix(".md") + ".html" + (f"#{found['anchor']}" if found["anchor"] else "")
        if path != place:
            yield address, re.sub(r"[`*]", "", f"{found['text']} {found['about'] or ''}").strip()


def _llms(pages: Pages) -> str:
    text = (ROOT / "llms.txt").read_text("utf-8")
    return re.sub(r"(?<=\]\()([^)#\s]+)", lambda found: pages.place(found[1]) or found[1], text)
