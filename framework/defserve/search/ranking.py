"""Ranking: keyword, semantic, category and hybrid search over the tools that one caller may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from defserve.search.bm25 import KeywordIndex, named
from defserve.search.entries import EntryFilter, ToolEntry
from defserve.search.vectors import Vectors
from defserve.search.words import content_words

Strategy: TypeAlias = Literal["keyword", "semantic", "category", "hybrid"]
STRATEGIES: tuple[Strategy, ...] = ("keyword", "semantic", "category", "hybrid")

LONGEST_QUERY = 2_000
KEYWORD_FLOOR, SEMANTIC_FLOOR = 0.12, 0.16
"""Scores below are no hits: no result is better than five wrong ones."""


class Hit(NamedTuple):
    """A tool that was found. `score` is from 0 to 1, and comparable within one answer."""

    entry: ToolEntry
    score: float


class Found(NamedTuple):
    """The hits, best first, and the strategy that found them. `fallback` is true if another one was asked for."""

    hits: list[Hit]
    strategy: Strategy
    fallback: bool = False


class ToolIndex:
    """An index of the tools that one caller may see."""

    def __init__(
        self, entries: Sequence[ToolEntry], weigh: Callable[[ToolEntry], dict[str, float]], vectors: Vectors | None
    ) -> None:
        self.entries = entries
        self._keywords = KeywordIndex([weigh(entry) for entry in entries])
        self._vectors = vectors
        self._matrix: Any = None

    def search(
        self,
        query: str,
        strategy: Strategy,
        wanted: EntryFilter,
        prefer: Callable[[ToolEntry], int] = lambda entry: 0,
    ) -> Found:
        """Every hit. Among equals, those that `prefer` gives a lower number come first, then by name."""
        query = query[:LONGEST_QUERY]
        used, scores = self._scored(query, strategy)
        hits = [
            Hit(entry, score)
            for entry, score in zip(self.entries, scores, strict=True)
            if score > 0 and wanted.admits(entry)
        ]
        hits.sort(key=lambda hit: (-round(hit.score, 4), prefer(hit.entry), hit.entry.name))
        return Found(hits, used, used != strategy)

    def _scored(self, query: str, strategy: Strategy) -> tuple[Strategy, list[float]]:
        if strategy == "category":
            return "category", [0.01 + 0.99 * score for score in self._by_keyword(query)]
        if strategy == "keyword":
            return "keyword", self._floored(self._by_keyword(query), KEYWORD_FLOOR)
        meaning = self._by_meaning(query)
        if meaning is None:
            return "keyword", self._floored(self._by_keyword(query), KEYWORD_FLOOR)
        if strategy == "semantic":
            return "semantic", self._floored(meaning, SEMANTIC_FLOOR)
        return "hybrid", self._mixed(query, meaning)

    def _floored(self, scores: list[float], floor: float) -> list[float]:
        return [score if score >= floor else 0.0 for score in scores]

    def _by_keyword(self, query: str) -> list[float]:
        """BM25, as a share of what a tool with all words of the query would have; exact names first."""
        raw = self._keywords.scores(query)
        best = sum(2.2 * self._keywords.rarity(stem) for stem in dict.fromkeys(content_words(query))) or 1.0
        exact = [named(entry, query) for entry in self.entries]
        return [min(1.0, max(0.95 * score / best, exact[at])) for at, score in enumerate(raw)]

    def _by_meaning(self, query: str) -> list[float] | None:
        """Cosines, from 0 to 1; None while there are no vectors."""
        vectors = self._vectors
        if vectors is None or not vectors.ready or not self.entries:
            return None
        try:
            if self._matrix is None:
                self._matrix = vectors.matrix(self.entries)
            cosines = self._matrix @ vectors.query(query)
        except Exception as error:
            import logging

            logging.getLogger("defserve").warning("a search by meaning fell back to keywords: %s", error)
            return None
        return [max(0.0, float(cosine)) for cosine in cosines]

    def _mixed(self, query: str, meaning: list[float]) -> list[float]:
        keyword = self._by_keyword(query)
        top = max(keyword, default=0.0)
        best = max(meaning, default=0.0)
        if best < SEMANTIC_FLOOR and top < KEYWORD_FLOOR:
            return [0.0] * len(keyword)
        return [min(1.0, 0.6 * k + 0.4 * m) for k, m in zip(keyword, meaning, strict=True)]
