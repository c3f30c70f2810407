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
# Ending → what it becomes, and the letters that must be left. The first that fits is taken: first one of a form, then
# one of a word that is made from another. Short stems are other words: `station` is no state, and `author` no auth.
_FORMS = (
    ("ingly", "", 3),
    ("ings", "", 3),
    ("ing", "", 3),
    ("edly", "", 3),
    ("ies", "y", 2),
    ("ied", "y", 2),
    ("ed", "", 3),
    ("ees", "ee", 2),
    ("es", "", 3),
    ("s", "", 3),
)
_DERIVED = (
    ("ication", "icat", 3),
    ("ization", "iz", 3),
    ("ation", "at", 3),
    ("ment", "", 3),
    ("ion", "", 5),
    ("or", "", 5),
    ("er", "", 5),
    ("ly", "", 5),
)
_WHOLE = frozenset("news comment moment customer number".split())


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
    if len(word) < 4 or not word.isascii() or word in _WHOLE:
        return word
    if not word.endswith(("ss", "us", "is")):
        word = _without(word, _FORMS)
    if word not in _WHOLE and len(word) > 3:
        word = _without(word, _DERIVED)
        return word[:-1] if word.endswith("e") and len(word) > 3 else word
    return word


def _without(word: str, endings: Iterable[tuple[str, str, int]]) -> str:
    for ending, becomes, least in endings:
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= least and (becomes or _VOWEL.search(rest)):
            # `stopped` to `stop`; `called` to `call`.
            doubled = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "aeiouls"
            return rest[:-1] if doubled and not becomes else rest + becomes
    return word


def misspelt(one: str, other: str) -> bool:
    """Whether two words differ by one letter that is missing, wrong, or swapped with the next."""
    if abs(len(one) - len(other)) > 1:
        return False
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[at:], other[at:]
    if one[1:] == other[1:] or one[1:] == other or one == other[1:]:
        return True
    return one[2:] == other[2:] and one[:2] == other[1::-1]
