"""Text to words that can be compared: split, lower case, without endings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

LONGEST_TEXT = 4_000
"""Characters. The rest of a text is not read."""

LONGEST_WORD = 40

# Scripts that put no spaces between words: Japanese, Chinese, and Korean, whose words have many endings.
_WIDE = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_RUNS = re.compile(rf"[{_WIDE}]+|[^\W_{_WIDE}]+")
_WITHOUT_SPACES = re.compile(f"[{_WIDE}]")
# `readHTMLFile2` is read, HTML, File, 2.
_PARTS = re.compile(r"[A-Z]+(?![^\WA-Z\d_])|[A-Z]?[^\WA-Z\d_]+|\d+")

STOP_WORDS = frozenset(
    (
        "a about after again all also am an and any anything are as at be because been before being both but by can "
        "could did do does doing down each else even every everything few for from get gets getting give given go goes "
        "going got had has have having he her here him his how i if in into is it its just let like ll m make may me "
        "many might more most much must my need needs no not nothing now of off on once one only or other our out over "
        "own per please put re s same say see shall she should so some someone something still such t take tell than "
        "that the their them then there these they thing things this those through to too two under until up us use "
        "used using ve very want wants was way we were what when where whether which while who whom whose why will "
        "with without would yet you your yours"
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


def stems(words: Iterable[str]) -> list[str]:
    """The stems of words, each once, without stop words; with them if there is nothing else."""
    said = list(words)
    return list(dict.fromkeys(stem(word) for word in [w for w in said if w not in STOP_WORDS] or said))


def split(text: str) -> list[str]:
    """The words of a text in lower case. Scripts without spaces give pairs of characters."""
    return [part for run in _RUNS.findall(text[:LONGEST_TEXT]) for part in _parts(run)]


def _parts(run: str) -> Iterator[str]:
    if _WITHOUT_SPACES.match(run):
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
