"""Keyword search: BM25 over the fields of tools, each field with a weight of its own."""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Iterable, Sequence
from math import log
from typing import TypeAlias

from defserve.search.entries import LONGEST_DESCRIPTION, ToolEntry
from defserve.search.words import STOP_WORDS, misspelt, split, stem

# How much a word counts where it stands. The gist counts twice, as it is part of the description.
NAME, SERVER, TITLE, LABEL, GIST, DESCRIPTION = 3.0, 2.0, 1.5, 1.5, 3.0, 1.0
PARAMETER, ABOUT_PARAMETER, VALUES = 0.8, 0.1, 0.3
SATURATION, LENGTH = 1.2, 0.75
SYNONYM = 0.65
"""What a synonym counts, where the word itself counts 1."""

SHORTEST_MISSPELT = 5
"""Letters. Shorter words are near to too many others."""

MOST_ALIKE = 1_000
"""Words with one first letter and one length that a misspelt word is compared with: servers choose their words."""

LONGEST_GIST = 200
_SENTENCES = re.compile(r"(?<=[.!?:])\s+|\n+")

MOST_MERGED = 500_000
"""Tools in all merged lists that an index keeps: 4 MB."""

Postings: TypeAlias = "tuple[array[int], array[float]]"
"""The places of tools, and the share that a word has in the score of each."""


def weighed(entry: ToolEntry) -> dict[str, float]:
    """The stems of a tool, each with the weights of all places where it stands."""
    found: dict[str, float] = {}
    said = " ".join(entry.description[:LONGEST_DESCRIPTION].split())
    labels = (label for label in (*entry.categories, *entry.keywords) if label != entry.server_id.lower())
    for text, weight in (
        (entry.name, NAME),
        (entry.server_id, SERVER),
        (entry.title, TITLE),
        (" ".join(labels), LABEL),
        (" ".join(entry.parameters[::3]), PARAMETER),
        (" ".join(entry.parameters[1::3]), ABOUT_PARAMETER),
        (" ".join(entry.parameters[2::3]), VALUES),
        (gist(entry), GIST),
        (said, DESCRIPTION),
    ):
        for word in split(text):
            if word not in STOP_WORDS:
                root = stem(word)
                found[root] = found.get(root, 0.0) + weight
    return found


def gist(entry: ToolEntry) -> str:
    """The sentence of the description that says what the tool's name says; the first, if none does.

    Many descriptions begin with warnings or headings that all tools of a server share.
    """
    own = set(map(stem, split(entry.name))).difference(map(stem, split(entry.server_id)), STOP_WORDS)
    sentences = [said[:LONGEST_GIST] for each in _SENTENCES.split(entry.description[:1_500]) if (said := each.strip())]
    return max(sentences[:12], key=lambda said: len(own.intersection(map(stem, split(said)))), default="")


class KeywordIndex:
    """Scores for a fixed list of tools. The share of each word is worked out when the index is made."""

    def __init__(self, weights: Sequence[dict[str, float]]) -> None:
        self.size = len(weights)
        self.rarest = _rarity(self.size, 0)
        """What a word tells that no tool has."""
        self._postings: dict[str, Postings] = {}
        self._merged: dict[tuple[str, ...], Postings] = {}
        self._room = MOST_MERGED
        sizes = [sum(each.values()) for each in weights]
        average = (sum(sizes) / len(sizes) if sizes else 0.0) or 1.0
        for place, each in enumerate(weights):
            length = SATURATION * (1 - LENGTH + LENGTH * sizes[place] / average)
            for root, weight in each.items():
                places, shares = self._postings.setdefault(root, (array("I"), array("f")))
                places.append(place)
                shares.append(weight * (SATURATION + 1) / (weight + length))
        self._by_look: dict[tuple[str, int], list[str]] = {}
        for root in self._postings:
            alike = self._by_look.setdefault((root[0], len(root)), [])
            if len(alike) < MOST_ALIKE:
                alike.append(root)
        for places, shares in self._postings.values():
            rarity = _rarity(self.size, len(places))
            for at, share in enumerate(shares):
                shares[at] = share * rarity

    def holds(self, root: str) -> bool:
        """Whether a tool has a word."""
        return root in self._postings

    def near(self, root: str) -> tuple[str, ...]:
        """The words of tools that a word which no tool has may be, if it is misspelt. The first letter is right."""
        if len(root) < SHORTEST_MISSPELT or self.holds(root):
            return ()
        size = len(root)
        known = (word for length in (size - 1, size, size + 1) for word in self._by_look.get((root[0], length), ()))
        return tuple(word for word in known if misspelt(root, word))

    def most(self, root: str) -> float:
        """The most that a word can add to a score."""
        known = self._postings.get(root)
        return (SATURATION + 1) * (_rarity(self.size, len(known[0])) if known is not None else self.rarest)

    def scores(
        self, roots: Iterable[tuple[str, Iterable[str]]], light: Container[str] = (), share: float = 1.0
    ) -> list[float]:
        """A score for each tool, in order. A word is a stem and its synonyms: the one that fits a tool best counts.

        Of words that are `light`, a share counts.
        """
        found = [0.0] * self.size
        for root, synonyms in roots:
            known = tuple(each for each in (root, *synonyms) if each in self._postings)
            if not known:
                continue
            places, shares = self._postings[root] if known == (root,) else self._best_of(root, known)
            factor = share if root in light else 1.0
            for place, each in zip(places, shares, strict=True):
                found[place] += each * factor
        return found

    def _best_of(self, root: str, known: tuple[str, ...]) -> Postings:
        if (merged := self._merged.get((root, *known))) is not None:
            return merged
        best: dict[int, float] = {}
        for each in known:
            factor = 1.0 if each == root else SYNONYM
            for place, share in zip(*self._postings[each], strict=True):
                if (value := share * factor) > best.get(place, 0.0):
                    best[place] = value
        merged = array("I", best), array("f", best.values())
        self._room -= len(best)
        if self._room < 0:
            self._merged, self._room = {}, MOST_MERGED - len(best)
        self._merged[(root, *known)] = merged
        return merged


def _rarity(size: int, held: int) -> float:
    return log(1 + (size - held + 0.5) / (held + 0.5))
