"""The built pages, as a browser reads them: what it would load from elsewhere, and links that lead nowhere."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

# Element and attribute of what a browser fetches by itself. A `link` is fetched unless it only points somewhere.
LOADED: Final = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("video", "src"),
    ("video", "poster"),
    ("audio", "src"),
    ("track", "src"),
    ("input", "src"),
    ("use", "href"),
    ("image", "href"),
}
POINTING: Final = {"canonical", "alternate", "next", "prev", "author", "license", "help", "me"}
FOREIGN: Final = re.compile(r"(?:https?|wss?|ftp):|//")
CSS_URL: Final = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """`loads`, what a browser fetches; `links`, where a reader may go; `ids`, where one may be led."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.links, self.ids = list[str](), list[str](), set[str]()
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._style = tag == "style"
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.loads += [value for name, value in given.items() if (tag, name) in LOADED]
        self.loads += css_loads(given.get("style", ""))
        if tag == "link" and not set(given.get("rel", "").split()) <= POINTING:
            self.loads.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += css_loads(data)

    def handle_endtag(self, tag: str) -> None:
        self._style = False


def css_loads(text: str) -> list[str]:
    return [url or imported for url, imported in CSS_URL.findall(text)]


def problems(site: Path) -> list[str]:
    """Everything that is wrong with the built pages."""
    pages = {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    return [*broken(pages, site), *foreign(pages, site)]


def foreign(pages: dict[str, Page], site: Path) -> Iterator[str]:
    """Everything that a browser would ask somebody else for."""
    styles = {path.relative_to(site).as_posix(): css_loads(path.read_text("utf-8")) for path in site.rglob("*.css")}
    for name, loads in {**{name: page.loads for name, page in pages.items()}, **styles}.items():
        yield from (f"{name}: {url}" for url in loads if FOREIGN.match(url))


def broken(pages: dict[str, Page], site: Path) -> Iterator[str]:
    """Every link and picture of a page that leads to nothing on the site, or to no such place on a page."""
    for name, page in pages.items():
        # The page for what is missing is shown at any address: its links begin at the top of the site.
        if name != "404.html":
            links = dict.fromkeys([*page.links, *page.loads])
            yield from (f"{name}: {url}" for url in links if not _leads(url, name, pages, site))


def _leads(url: str, name: str, pages: dict[str, Page], site: Path) -> bool:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        return True
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
    target = f"{target}/index.html".removeprefix("./") if (site / target).is_dir() else target
    if target not in pages:
        return (site / target).is_file()
    return parts.fragment in ("", "__skip", *pages[target].ids) or unquote(parts.fragment) in pages[target].ids
