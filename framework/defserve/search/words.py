"""Text to words that can be compared: split, lower case, without endings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

LONGEST_TEXT = 4_000
"""Characters. The rest of a text is not read."""

LONGEST_WORD = 40

_RUNS = re.compile(r"[^\W_]+")
# `readHTMLFile2` is read, HTML, File, 2.
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\WA-Z\d_]+|\d+")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")

STOP_WORDS = frozenset(
    (
        "a about all also am an and any are as at be been being but by can could did do does doing for from get gets "
        "give go going had has have he her here him his how i if in into is it its just let like ll m make may me "
        "might my need needs no not now of off on once one only or our out over own please re s shall she should so "
        "some such t tell than that the their them then there these they this those through to too under up us use "
        "used using ve very want wants was we were what when where which while who whom whose why will with would you "
        "your yours"
    ).split()
)

_VOWEL = re.compile("[aeiouy]")
# Ending → what it becomes. The first that leaves a stem is taken.
_ENDINGS = (
    ("ications", "icat"),
    ("ication", "icat"),
    ("izations", "iz"),
    ("ization", "iz"),
    ("ations", "at"),
    ("ation", "at"),
    ("ments", ""),
    ("ment", ""),
    ("ingly", ""),
    ("ings", ""),
    ("ing", ""),
    ("edly", ""),
    ("ies", "y"),
    ("ied", "y"),
    ("ions", ""),
    ("ion", ""),
    ("ors", ""),
    ("ers", ""),
    ("ed", ""),
    ("or", ""),
    ("er", ""),
    ("ly", ""),
    ("es", ""),
    ("s", ""),
    ("e", ""),
)


def words(text: str) -> list[str]:
    """The stems of a text, in order, stop words included. Names are split where they are joined."""
    return [stem(word) for word in split(text)]


def content_words(text: str) -> list[str]:
    """The same without stop words; with them if there is nothing else."""
    found = split(text)
    return [stem(word) for word in found if word not in STOP_WORDS] or [stem(word) for word in found]


def split(text: str) -> list[str]:
    """The words of a text in lower case. Scripts without spaces give pairs of characters."""
    return [part for run in _RUNS.findall(text[:LONGEST_TEXT]) for part in _parts(run)]


def _parts(run: str) -> Iterator[str]:
    if _WIDE.search(run):
        yield from (run[at : at + 2] for at in range(max(len(run) - 1, 1)))
        return
    for part in _PARTS.findall(run) or (run,):
        yield part[:LONGEST_WORD].lower()


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """A word without its ending: `creates`, `created` and `creation` are all `creat`."""
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith(("ss", "us", "is")):
        return word
    for ending, becomes in _ENDINGS:
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= 3 and _VOWEL.search(rest):
            return _undoubled(rest + becomes)
    return word


def _undoubled(word: str) -> str:
    """`stopp` to `stop`, `create` to `creat`; `call` stays."""
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        return word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
