"""What the site makes of the Markdown of the pages: links, pictures, tabs, headings. Code is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from textwrap import indent
from typing import Final

# What is code is matched first, and left alone. `url` is that of a link or picture, `attribute` that of an HTML tag.
_LINK: Final = re.compile(
    r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)`*$"
    r"|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|(?<=\]\()(?P<url>[^)\s]+)(?=[)\s])"
    r'|(?<=\s)(?:src|href|srcset)="(?P<attribute>[^"]+)"',
    re.DOTALL | re.MULTILINE,
)
_FENCE: Final = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.DOTALL | re.MULTILINE)
_HEADING: Final = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
_PICTURE: Final = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_TABS: Final = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- /tabs -->\n", re.DOTALL | re.MULTILINE)
_TAB: Final = re.compile(r"^(\S[^\n:]*):\n\n", re.MULTILINE)
_SINCE: Final = re.compile(r"(?<![*`])\*(since [^*\n]+)\*(?![*`])")
_ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`]+`")
ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//")


def with_links(text: str, change: Callable[[str], str]) -> str:
    """The text with each link inside the repository replaced by what `change` makes of it."""

    def changed(found: re.Match[str]) -> str:
        link = found["url"] or found["attribute"]
        if not link or ELSEWHERE.match(link):
            return found[0]
        return found[0].replace(link, change(link))

    return _LINK.sub(changed, text)


def with_pictures(text: str, change: Callable[[str, str], str]) -> str:
    """The text with each picture replaced by what `change` makes of its description and path."""
    return _outside_code(text, lambda prose: _PICTURE.sub(lambda found: change(found[1], found[2]), prose))


def with_plain_pipes(text: str) -> str:
    """The text with the pipes in code in tables as they are. GitHub wants them escaped, the generator does not."""

    def plain(row: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])

    return _outside_code(text, lambda prose: _ROW.sub(plain, prose))


def with_tabs(text: str) -> str:
    """The text with the blocks between marks as tabs. Above each stands its name with a colon, as GitHub shows it."""

    def tabs(found: re.Match[str]) -> str:
        _, *parts = _TAB.split(found[1])
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return "\n".join(f'=== "{name}"\n\n{indent(inside.strip(), "    ")}\n' for name, inside in pairs)

    return _TABS.sub(tabs, text)


def with_since(text: str) -> str:
    """The text with the marks that say since when something is there: `*since 0.2*`."""
    return _outside_code(text, lambda prose: _SINCE.sub(r'<span class="since">\1</span>', prose))


def headings(text: str) -> Iterator[tuple[int, str, int]]:
    """The level and the text of each heading, and where in the text it begins."""
    hidden = [found.span() for found in _FENCE.finditer(text)]
    for found in _HEADING.finditer(text):
        if not any(begin <= found.start() < end for begin, end in hidden):
            yield len(found[1]), found[2].strip().replace("\\_", "_"), found.start()


def title(text: str, otherwise: str = "") -> str:
    return next((heading for level, heading, _ in headings(text) if level == 1), otherwise)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading; on the site it has the same one."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def shifted(text: str, by: int) -> str:
    """The text with its headings so many levels further up."""
    return _outside_code(text, lambda prose: _HEADING.sub(lambda found: f"{found[1][by:] or '#'} {found[2]}", prose))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts, begin = list[str](), 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[begin : fence.start()]), fence[0]]
        begin = fence.end()
    return "".join([*parts, change(text[begin:])])
