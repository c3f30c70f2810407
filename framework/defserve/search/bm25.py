"""Keyword search: BM25 over the fields of tools, each field with a weight of its own."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from math import log

from defserve.search.entries import LONGEST_DESCRIPTION, ToolEntry
from defserve.search.words import content_words, split, words

# How much a word counts where it stands.
NAME, SERVER, TITLE, LABEL, PARAMETER, DESCRIPTION = 3.0, 2.0, 1.5, 1.5, 0.3, 1.0
SATURATION, LENGTH = 1.2, 0.6


def weighed(entry: ToolEntry) -> dict[str, float]:
    """The stems of a tool, each with the weights of all places where it stands."""
    found = Counter[str]()
    for text, weight in (
        (entry.name, NAME),
        (entry.server_id, SERVER),
        (entry.title, TITLE),
        (" ".join((*entry.categories, *entry.keywords)), LABEL),
        (" ".join(entry.parameters), PARAMETER),
        (entry.description[:LONGEST_DESCRIPTION], DESCRIPTION),
    ):
        for stem in words(text):
            found[stem] += weight  # pyright: ignore[reportArgumentType]
    return dict(found)


class KeywordIndex:
    """Scores for a fixed list of tools. The share of each word is worked out when the index is made."""

    def __init__(self, weights: Sequence[dict[str, float]]) -> None:
        self.size = len(weights)
        sizes = [sum(each.values()) for each in weights]
        average = sum(sizes) / len(sizes) if sizes else 1.0
        self._places: dict[str, array[int]] = {}
        self._shares: dict[str, array[float]] = {}
        for place, each in enumerate(weights):
            length = SATURATION * (1 - LENGTH + LENGTH * sizes[place] / (average or 1.0))
            for stem, weight in each.items():
                self._places.setdefault(stem, array("I")).append(place)
                self._shares.setdefault(stem, array("f")).append(weight * (SATURATION + 1) / (weight + length))
        for stem, places in self._places.items():
            rarity = log(1 + (self.size - len(places) + 0.5) / (len(places) + 0.5))
            shares = self._shares[stem]
            for at, share in enumerate(shares):
                shares[at] = share * rarity

    def __contains__(self, stem: str) -> bool:
        return stem in self._places

    def rarity(self, stem: str) -> float:
        """How much a word tells: high for a rare one. A word that no tool has is as rare as can be."""
        held = len(self._places.get(stem, ()))
        return log(1 + (self.size - held + 0.5) / (held + 0.5))

    def scores(self, query: str) -> list[float]:
        """A score for each tool, in order; 0 if it has none of the words."""
        found = [0.0] * self.size
        for stem in dict.fromkeys(content_words(query)):
            for place, share in zip(self._places.get(stem, ()), self._shares.get(stem, ()), strict=True):
                found[place] += share
        return found


def named(entry: ToolEntry, query: str) -> float:
    """1 if the query is the tool's name, whatever joins its words; less for its beginning; else 0."""
    asked, name = split(query), split(entry.name)
    if not asked:
        return 0.0
    if asked == name or query.strip() == entry.tool_id:
        return 1.0
    return 0.5 if name[: len(asked)] == asked else 0.0
