"""What the search of the site is given besides the pages: the questions that they answer, and words for them."""

from __future__ import annotations

import json
import re
import tomllib
from html import escape
from pathlib import Path
from typing import Any, Final

from .places import DOCS, SITE, THEME

ROW: Final = re.compile(r"^\|([^|]+)\|([^|]+)\|", re.MULTILINE)
LINK: Final = re.compile(r"\]\(([\w/-]+)\.md\)")
WORKER: Final = "assets/javascripts/workers"


def write(site: Path = SITE) -> None:
    """Add to the index that the generator wrote, and to the program that reads it."""
    index: dict[str, Any] = json.loads((site / "search.json").read_text("utf-8"))
    more = words()
    for item in index["items"]:
        page, _, section = item["location"].partition("#")
        said = more.get(page.removesuffix(".html"))
        if said and not section:
            # In front: what matches early comes first among results.
            item["text"] = f"<p>{escape(said)}</p>{item['text']}"
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (site / "search.json").write_text(text, encoding="utf-8")
    # Where the site is opened as a file, nothing can be fetched, and this one is a script.
    (site / "search.js").write_text(f"var __index = {text};", encoding="utf-8")
    (worker,) = (site / WORKER).glob("search.*.js")
    worker.write_text(worker.read_text("utf-8") + (THEME / "asking.js").read_text("utf-8"), encoding="utf-8")


def words() -> dict[str, str]:
    """Page to the questions that the map of the documentation has for it, and to words that people look for."""
    found = dict[str, str]()
    for pages, answers in ROW.findall((DOCS / "index.md").read_text("utf-8")):
        for page in LINK.findall(pages):
            found[page] = answers.strip()
    for page, more in keywords().items():
        found[page] = f"{found.get(page, '')} {more}".strip()
    return found


def keywords() -> dict[str, str]:
    return tomllib.loads((THEME / "keywords.toml").read_text("utf-8"))
