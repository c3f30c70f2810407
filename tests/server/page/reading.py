"""The page as a browser's parser sees it, and a server to make it of."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from defserve import Server, dangerous, moderate, safe

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
ABOUT = "Reads the sensors of a greenhouse and looks after its beds."

# Elements that have no end tag.
VOID = ("meta", "link", "circle", "path", "use")


def greenhouse(**options: Any) -> Server:
    """A server with a tool of each mark, and one without."""
    about: Any = {"description": ABOUT, **options}
    server = Server("greenhouse", "0.4.2", **about)

    @server.tool
    @safe
    def list_sensors() -> str:
        """All sensors and when each last reported."""
        return ""

    @server.tool
    @moderate
    def set_target(bed: str) -> str:
        """Set the wanted range of a bed."""
        return bed

    @server.tool
    @dangerous
    def clear_bed(bed: str) -> str:
        """Take every plant out of a bed."""
        return bed

    @server.tool
    def water(bed: str) -> str:
        """Water a bed for some seconds."""
        return bed

    return server


class Page(HTMLParser):
    """What a page is made of. `tools` has (mark, name, description) of each listed tool."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str, str | None]] = set()
        self.texts: dict[str, list[str]] = {}
        self.tools: list[tuple[str, str, str]] = []
        self._open: list[str] = []
        self._mark = ""
        self._row: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "li" and "li" in self._open:
            self.handle_endtag("li")
        self.tags.add(tag)
        self.attributes |= {(tag, name, value) for name, value in attrs}
        if tag not in VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")
        if tag == "li":
            self._row = []
        if tag == "svg" and "li" in self._open:
            self._mark = dict(attrs).get("aria-label") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "ul" and "li" in self._open:
            self.handle_endtag("li")
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag == "li":
            name, said = (*self._row, "", "")[:2]
            self.tools.append((self._mark, name, said))

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data
        if "li" in self._open:
            self._row.append(data)

    @property
    def address(self) -> str:
        return self.texts["code"][0]

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.tools]

    @property
    def notes(self) -> str:
        """The sentences of the page."""
        return " ".join(self.texts["p"])


def parted(response: bytes) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of a raw response."""
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body.decode()
