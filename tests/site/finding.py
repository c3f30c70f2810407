"""What the search of the site is given besides the pages: the questions that they answer, and words for them."""

from __future__ import annotations

import json
import tomllib
from html import escape
from pathlib import Path
from typing import Any, Final

from .places import SITE, THEME

WORKER: Final = "assets/javascripts/workers"


def write(site: Path = SITE) -> None:
    """Add to the index that the generator wrote, and to the program that reads it."""
    index: dict[str, Any] = json.loads((site / "search.json").read_text("utf-8"))
    more = keywords()
    for item in index["items"]:
        page, _, section = item["location"].partition("#")
        said = more.get(page.removesuffix(".html"))
        if said and not section:
            # In front: what matches early comes first among results.
            item["text"] = f"<p>{escape(said)}</p>{item['text']}"
            item["keywords"] = said
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (site / "search.json").write_text(text, encoding="utf-8")
    # Where the site is opened as a file, nothing can be fetched, and this one is a script.
    (site / "search.js").write_text(f"var __index = {text};", encoding="utf-8")
    (worker,) = (site / WORKER).glob("search.*.js")
    worker.write_text(worker.read_text("utf-8") + (THEME / "asking.js").read_text("utf-8"), encoding="utf-8")


def keywords() -> dict[str, str]:
    """Page to the questions that it answers, and to words that people look for."""
    return tomllib.loads((THEME / "keywords.toml").read_text("utf-8"))
