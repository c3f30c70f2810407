"""The HTML of a view as it is sent: one document, with the bridge script in its head."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from defserve.protocols.mcp.prefixes import Prefix

BRIDGE: Final = Path(__file__).with_name("bridge.js")

# Possessive: a comment ends at its first end, whatever follows. Trying other ends would take for ever.
_GAP: Final = r"(?:\s|<!--(?>.*?-->))*+"
_ATTRIBUTES: Final = r"""(?:\s(?:[^>"']|"[^"]*"|'[^']*')*)?"""
# Whatever stands before the first element of the head. Each tag may be left out of an HTML document.
_START: Final = re.compile(
    rf"\ufeff?{_GAP}(?P<doctype><!doctype{_ATTRIBUTES}>)?(?:{_GAP}<html{_ATTRIBUTES}>)?(?:{_GAP}<head{_ATTRIBUTES}>)?",
    re.IGNORECASE | re.DOTALL,
)


# Where the bridge says how names are changed.
_NAMES: Final = re.compile(r'(?<=\n\(\(\) => \{\n  const )TOOLS = "([\w.-]*)", URIS = "([\w./-]*)"', re.ASCII)


class ViewNames(NamedTuple):
    """How a view's names of tools and URIs become those of the server it is mounted on."""

    tool_prefix: str = ""
    uri_prefix: str = ""

    def under(self, prefix: Prefix) -> ViewNames:
        """The names on a server that mounts this one under a prefix."""
        if not prefix.text:
            return self
        return ViewNames(prefix.name(self.tool_prefix), f"{prefix.text}/{self.uri_prefix}")

    def written(self) -> str:
        return f'TOOLS = "{self.tool_prefix}", URIS = "{self.uri_prefix}"'


def document(html: str, names: ViewNames | None) -> str:
    """A whole document. With `names` it begins with the bridge, ahead of every script of the author.

    The charset is said first, because browsers look for it in the first 1024 bytes only.
    """
    start = _START.match(html)
    assert start is not None  # every part of it is optional
    doctype = "" if start["doctype"] else "<!doctype html>\n"
    if names is None:
        return doctype + html
    return (
        f'{doctype}{html[: start.end()]}<meta charset="utf-8">\n<script>{_bridge(names)}</script>{html[start.end() :]}'
    )


def with_prefix(html: str, prefix: Prefix) -> str:
    """The document of a server that is mounted under a prefix. Without our bridge it is not changed."""
    return _NAMES.sub(lambda found: ViewNames(found[1], found[2]).under(prefix).written(), html, count=1)


def _bridge(names: ViewNames) -> str:
    return _source().replace('TOOLS = "", URIS = ""', names.written(), 1)


@cache
def _source() -> str:
    return BRIDGE.read_text(encoding="utf-8")
