"""What a query brings along for a tool's arguments: addresses, keys, file names, times.

As words they say nothing of the tool. But who gives an address wants a tool that takes one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log

from defserve.search.entries import ToolEntry
from defserve.search.words import split

# Every repetition is bounded, or begins in one place only, so that no query takes long.
_DATA = re.compile(r"\b[A-Z]{2,10}-\d+\b|[^\s@]{1,64}@\S{1,255}|\b\d[\d.,:]*")
_QUOTED = re.compile(r"[\"“”„«»][^\"“”„«»]{1,200}[\"“”„«»]")
_DOMAINS = r"(?:com|org|net|io|dev|app|edu|gov|info|example)\b"

# How an argument looks in a query → the names that tools give it.
_GIVEN = (
    (rf"https?://|\bwww\.|\b[\w-]{{1,63}}\.{_DOMAINS}", "url urls uri link href website domain"),
    (r"\w@\w{1,63}\.\w", "email emails to recipient recipients attendees cc address member"),
    (r"\b[A-Z][A-Z0-9]{1,9}-\d+\b", "issue issues ticket issuekey"),
    (
        rf"(?:^|[\s\"'(])[\w*/~.-]{{0,80}}[\w*]\.(?!{_DOMAINS})[a-z][a-z0-9]{{1,4}}\b(?!@)",
        "path paths file filename filepath source",
    ),
    (r"(?<!\w)#[a-z]", "channel channels"),
    (
        r"\b\d{1,3}\.\d{1,9}[^\d,]{0,9},[^\d]{0,3}\d{1,3}\.\d",
        "latitude longitude lat lng coordinates locations",
    ),
    (r"\b\d{1,2}(?::\d\d| ?(?:am|pm)\b)|\bo['’]?clock\b|\bnoon\b", "time start end datetime"),
    (
        r"(?i:\b(?:[pmce][sd]t|gmt|utc|ces?t|bst|jst|aest)\b)",
        "timezone",
    ),
    (r"\b(?=[a-f]{0,39}\d)[0-9a-f]{6,40}\b", "sha commit revision ref"),
)
_KINDS = tuple((re.compile(looks), frozenset(names.split())) for looks, names in _GIVEN)


def without_data(query: str) -> str:
    """A query without quotations, numbers and keys."""
    said = _DATA.sub(" ", _QUOTED.sub(" ", query))
    return said if len(split(said)) > 1 else query


class Takers:
    """Which tools take what a query gives."""

    def __init__(self, entries: Sequence[ToolEntry]) -> None:
        self._size = len(entries)
        names = [{word for name in entry.parameters[::3] for word in split(name)} for entry in entries]
        self._places = [[at for at, each in enumerate(names) if wanted & each] for _, wanted in _KINDS]

    def shares(self, query: str) -> list[float]:
        """For each tool how much of what is given it takes. What few tools take counts most."""
        found = [0.0] * self._size
        for (looks, _), places in zip(_KINDS, self._places, strict=True):
            if places and looks.search(query):
                rarity = log(self._size / len(places)) / log(self._size) if self._size > 1 else 1.0
                for at in places:
                    found[at] += rarity
        return found
