"""The one table of characters that hide, reorder or break what a reader sees. Nobody else lists such characters.

It holds all controls, format characters, line separators and lone surrogates, whatever Unicode calls ignorable by
default (variation selectors, fillers, tags), and the few others that have no ink. The tests compare it with
`unicodedata`, one code point at a time. The inspector's page has the same table: `python -m tests.hidden_characters`
writes it from here.

Emoji are written with some of these characters. Inside a sequence that draws an emoji they hide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final

HIDDEN_CHARACTER_RANGES: Final[Mapping[str, str]] = {
    "control character": "\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f",
    "line break": "\n\r\x85\u2028\u2029",
    "direction control": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "lone surrogate": "\ud800-\udfff",
    "tag character": "\U000e0000-\U000e0fff",
    "invisible character": (
        "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u2800\u3164"
        "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U00013440\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    ),
}
"""What a kind of character is called, and its ranges as a character class of a regular expression has them."""

PICTURES: Final = (
    "\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
"""The characters that an emoji is drawn from, as ranges."""

_PICTURE: Final = f"[{PICTURES}](?:[\ufe0e\ufe0f]|[\U0001f3fb-\U0001f3ff])?"
FLAGS: Final = ("gbeng", "gbsct", "gbwls")
"""The flags that are written in tag characters. Other tags could spell anything."""
_FLAG: Final = "|".join("".join(chr(0xE0000 + ord(letter)) for letter in name) for name in FLAGS)
EMOJI: Final = (
    f"\U0001f3f4(?:{_FLAG})\U000e007f|[0-9#*]\ufe0f\u20e3|{_PICTURE}(?:\u200d{_PICTURE})+|[{PICTURES}][\ufe0e\ufe0f]"
)
"""A sequence that draws one emoji, as a regular expression."""

_KINDS: Final = tuple(HIDDEN_CHARACTER_RANGES)


@cache
def _any_pattern() -> re.Pattern[str]:
    """One pass in C, for the usual text that has none of them."""
    return re.compile(f"[{''.join(HIDDEN_CHARACTER_RANGES.values())}]")


@cache
def _each_pattern() -> re.Pattern[str]:
    """An emoji, or one hidden character in the group of its kind."""
    return re.compile("|".join([f"(?:{EMOJI})", *(f"([{ranges}])" for ranges in HIDDEN_CHARACTER_RANGES.values())]))


def find_hidden_characters(text: str) -> Iterator[tuple[int, str]]:
    """Where `text` holds such a character: its index and its kind, in order. Line breaks and tabs count."""
    if _any_pattern().search(text) is None:
        return
    for match in _each_pattern().finditer(text):
        if match.lastindex is not None:
            yield match.start(), _KINDS[match.lastindex - 1]


def has_hidden_characters(text: str) -> bool:
    """Whether `text` holds such a character. Line breaks and tabs count."""
    return next(find_hidden_characters(text), None) is not None


def is_printable_line(text: str) -> bool:
    """Whether `text` can be shown as it is on one line, as a name has to be: without hidden, private or odd blanks.

    Emoji that need joining are not plain either.
    """
    return text.isprintable() and (text.isascii() or not has_hidden_characters(text))


def replace_hidden_characters(text: str, replacement: Callable[[str], str]) -> str:
    """The text with each such character replaced. Emoji stay as they are."""
    if _any_pattern().search(text) is None:
        return text
    return _each_pattern().sub(lambda match: match[0] if match.lastindex is None else replacement(match[0]), text)


def remove_hidden_characters(text: str, keep: str = "") -> str:
    """The text without such characters, but for those of `keep`."""
    return replace_hidden_characters(text, lambda character: character if character in keep else "")


# -- Finds characters that hide or reorder what a reader sees. Does not judge them.


def iter_hidden_character_notes(text: str) -> Iterator[tuple[int, str]]:
    """Where `text` holds a character that hides, reorders or breaks it: (index, what it is), in order.

    Line breaks count, tabs do not. A caller that allows several lines skips them. A description reads
    `direction control U+202E`.
    """
    for index, kind in find_hidden_characters(text):
        if text[index] != "\t":
            yield index, f"{kind} U+{ord(text[index]):04X}"
