"""The pages of the site: docs/, the project's own pages, the reference in parts, and files that they link to."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from . import playground, tokens
from .markdown import with_links, with_pictures, with_plain_pipes, with_since, with_tabs
from .pictures import drawings, on_a_page
from .places import DOCS, PAGES, ROOT, THEME
from .reference import Part, index, parts

REFERENCE: Final = "docs/reference.md"
INDEX: Final = "reference/index.md"
# Pages outside docs/, and where the site has them.
PROJECT: Final = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "RELEASING.md": "project/releasing.md",
    "SECURITY.md": "project/security.md",
}
# Files that are served as they are.
FILES: Final = {"llms.txt": "llms.txt"}
LANGUAGES: Final = {
    ".py": "python",
    ".toml": "toml",
    ".json": "json",
    ".html": "html",
    ".md": "markdown",
    ".conf": "nginx",
    ".yaml": "yaml",
    ".service": "ini",
}
# What a reader does not look for: the map, what other pages show as well, what is for those who change defserve.
UNSEARCHED: Final = (
    "index.md",
    "readme.md",
    "reference/index.md",
    "project/",
    "decisions/",
    "examples/",
    "tests/",
    "docs/",
)
# What the generator is told about a page, besides its text.
ABOUT: Final = {
    "index.md": "title: Write a def, serve it\nhide: [navigation, toc]\n",
    "playground.md": "hide: [navigation, toc]\n",
}
ASSETS: Final = ("site.js", "iframe-worker.js", "favicon.svg")
STYLES: Final = "site.css"
PICTURES: Final = {".png", ".svg"}


class Pages:
    """Every page, by its path on the site, with links that lead to pages of the site."""

    def __init__(self) -> None:
        whole = (ROOT / REFERENCE).read_text("utf-8")
        self.reference: list[Part] = parts(whole)
        self._places = {path.relative_to(ROOT).as_posix(): path.relative_to(DOCS).as_posix() for path in _markdown()}
        self._places |= {REFERENCE: INDEX} | PROJECT | FILES
        self.texts: dict[str, str] = {}
        self._shown: list[str] = []
        for source, place in list(self._places.items()):
            if source not in FILES and source != REFERENCE:
                self._add(place, (ROOT / source).read_text("utf-8"), source)
        self._add(INDEX, index(self.reference), INDEX)
        for part in self.reference:
            self._add(f"reference/{part.name}.md", part.text, REFERENCE)
        for source in FILES:
            with_links((ROOT / source).read_text("utf-8"), lambda link: self.place(link) or link)
        while self._shown:
            source = self._shown.pop()
            self._add(self._places[source], _file(ROOT / source), source)

    def write(self, folder: Path = PAGES) -> None:
        """Write the pages and pictures where the generator reads them."""
        for place, text in self.texts.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            told = ABOUT.get(place, "") + ("search:\n  exclude: true\n" if place.startswith(UNSEARCHED) else "")
            head = f"---\n{told}---\n\n" if told else ""
            text = text.replace(playground.MARK, playground.FRAME)
            shown = with_since(with_tabs(with_plain_pipes(with_pictures(text, _drawn))))
            (folder / place).write_text(head + shown, encoding="utf-8")
        for picture in filter(lambda path: path.suffix in PICTURES, DOCS.rglob("*")):
            target = folder / picture.relative_to(DOCS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, target)
        for name in ASSETS:
            shutil.copy(THEME / name, folder / name)
        styles = tokens.stylesheet() + (THEME / STYLES).read_text("utf-8")
        (folder / STYLES).write_text(styles, encoding="utf-8")

    def _add(self, place: str, text: str, source: str) -> None:
        text = with_pictures(text, lambda about, path: _in_both_schemes(about, path, ROOT / posixpath.dirname(source)))
        self.texts[place] = with_links(text, lambda link: self._on_site(link, source, place))

    def _on_site(self, link: str, source: str, place: str) -> str:
        """A link of a file of the repository, as its page on the site has it."""
        path, _, anchor = link.partition("#")
        if not path and source != REFERENCE:
            return link
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        found = self.place(target, anchor)
        if found is None:
            return link
        there = posixpath.relpath(found, posixpath.dirname(place) or ".")
        return f"{there}#{anchor}" if anchor and found != INDEX else there

    def place(self, target: str, anchor: str = "") -> str | None:
        """Where the site has a file of the repository. One that it did not have is shown from then on."""
        if target == REFERENCE and anchor:
            part = next((part for part in self.reference if anchor in part.anchors), None)
            return f"reference/{part.name}.md" if part else INDEX
        if PurePosixPath(target).suffix in PICTURES:
            return target.removeprefix("docs/")
        if target not in self._places and (ROOT / target).exists():
            self._places[target] = f"{target}/index.md" if (ROOT / target).is_dir() else f"{target}.md"
            self._shown.append(target)
        return self._places.get(target)


def _markdown() -> Iterator[Path]:
    yield from (path for path in sorted(DOCS.rglob("*.md")) if path != ROOT / REFERENCE)


def _in_both_schemes(about: str, path: str, folder: Path) -> str:
    """A picture; where there is a dark one beside it, each for its scheme. A drawing takes the colours of its page."""
    stem, ending = posixpath.splitext(path)
    dark = f"{stem.removesuffix('-light')}-dark{ending}"
    if not (folder / dark).exists() or Path(path).stem in drawings():
        return f"![{about}]({path})"
    return f"![{about}]({path}#only-light)\n![{about}]({dark}#only-dark)"


def _drawn(about: str, path: str) -> str:
    """What stands in a page for a picture of ours."""
    name = Path(path).stem
    return on_a_page(name) if name in drawings() else f"![{about}]({path})"


def _file(path: Path) -> str:
    """A page that shows a file, or the files of a folder."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_file():
        return f"# {name}\n\n{_code(path)}\n"
    inside = sorted(each for each in path.iterdir() if each.name[0] not in "._")
    links = "\n".join(f"- [{each.name}]({path.name}/{each.name})" for each in inside)
    return f"# {name}/\n\n{links}\n"


def _code(path: Path) -> str:
    text = path.read_text("utf-8")
    fence = "````" if "```" in text else "```"
    return f"{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}"
