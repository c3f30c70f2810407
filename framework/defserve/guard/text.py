"""Finds characters that hide or reorder what a reader sees. Does not judge them."""

from __future__ import annotations

import re
from collections.abc import Iterator

# One pass in C: hostile text is long, and most text is clean.
_HIDDEN = re.compile(
    "(?P<control>[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f])"
    "|(?P<line>[\n\r\x85\u2028\u2029])"
    "|(?P<bidi>[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])"
    "|(?P<invisible>[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u2060-\u2065"
    "\u206a-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a]"
    # Emoji are written with these two, so they hide something only elsewhere.
    "|(?<![\u00a9-\ufdff\U0001f000-\U0001faff])[\ufe0e\ufe0f]|(?<![\ufe0f\U0001f000-\U0001faff])\u200d)"
    "|(?P<tag>[\U000e0000-\U000e0fff])"
    "|(?P<surrogate>[\ud800-\udfff])"
)

_NAMES = {
    "control": "control character",
    "line": "line break",
    "bidi": "direction control",
    "invisible": "invisible character",
    "tag": "tag character",
    "surrogate": "lone surrogate",
}


def hidden(text: str) -> Iterator[tuple[int, str]]:
    """Where `text` holds a character that hides, reorders or breaks it: (index, what it is), in order.

    Line breaks count, tabs do not. A caller that allows several lines skips them. A description reads
    `direction control U+202E`.
    """
    for found in _HIDDEN.finditer(text):
        yield found.start(), f"{_NAMES[found.lastgroup or 'control']} U+{ord(found[0]):04X}"
