"""Ranking: keyword, semantic, category and hybrid search over the tools that one caller may see.

Blind fusion of two rankings is worse than the better of them. So hybrid search adds what the words say, synonyms
included, to what the vectors say, both on one scale: the unit is a word that no tool has. Tools that do another kind of
thing than what is asked for go back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from defserve.search.arguments import Takers, without_data
from defserve.search.bm25 import KeywordIndex
from defserve.search.entries import EntryFilter, ToolEntry
from defserve.search.phrases import meant
from defserve.search.synonyms import SYNONYMS
from defserve.search.vectors import Vectors
from defserve.search.verbs import VERBS, deeds_of, deeds_wanted, finds, looked_for
from defserve.search.words import STOP_WORDS, split, stem, stems

Strategy: TypeAlias = Literal["keyword", "semantic", "category", "hybrid"]
STRATEGIES: tuple[Strategy, ...] = ("keyword", "semantic", "category", "hybrid")

LONGEST_QUERY = 2_000
"""Characters. The rest of a query is not read."""

NO_FILTER = EntryFilter()

MOST_HITS = 200
"""Hits of one search, and more only if they are as good as the last."""

MOST_WORDS = 64
"""Words of a query that are searched for."""

VECTOR_SHARE = 2.2
"""What a tool gets that means the same as the query, in units, where vectors are all there is."""


class Weights(NamedTuple):
    """What each signal of a hybrid search counts, in units. Fitted by `tests/search/weights.py`."""

    words: float = 1.0
    """Words of the query and their synonyms (BM25)."""
    meaning: float = 1.75
    """The cosine of the vectors."""
    server: float = 1.75
    """The server is named, by a word that no other server uses. Common words give less."""
    argument: float = 2.5
    """The query gives an argument that the tool takes."""
    lists: float = 0.33
    """The query wants to find out something, and the tool lists or searches."""
    searches: float = 0.35
    """It may be anywhere, and the tool searches."""
    web: float = 0.95
    """No tool knows what is asked, and the tool searches the web: by the share of unknown words."""


WEIGHTS = Weights()

VERB_SHARE = 0.8
"""What a verb counts, where another word counts 1: half of all tools get something."""

OTHER_DEED = 0.8
"""The share that is left to a tool which does another kind of thing than what is asked for."""

FLOORS: dict[Strategy, tuple[float, float]] = {
    "keyword": (0.3, 0.9),
    "semantic": (0.28, 0.69),
    "category": (0.0, 0.0),
    "hybrid": (0.95, 1.6),
}
"""Units. If the best tool has less, nothing is found, or what is found is weak. Short queries have few units."""
COVERED = (0.2, 0.3)
"""The shares of a query that the best tool must cover for the floors not to hold."""

_WEB = tuple(map(stem, ("search", "web", "internet", "news")))
SEARCHES_WEB = 0.25
"""The share of these words that a tool covers which searches the web."""

# A capital letter within a sentence: somebody's name, unless tools have the word.
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][^\W\d_A-Z]+(?:['’]s)?")

HALF = 1.5
"""Units that give a score of one half."""


class Hit(NamedTuple):
    """A tool that was found. `score` is from 0 to 1, and comparable within one answer."""

    entry: ToolEntry
    score: float


class Found(NamedTuple):
    """The hits, best first, and the strategy that found them. `weak`: none of them fits well."""

    hits: list[Hit]
    strategy: Strategy
    weak: bool = False


class ToolIndex:
    """An index of the tools that one caller may see."""

    def __init__(
        self, entries: Sequence[ToolEntry], weigh: Callable[[ToolEntry], dict[str, float]], vectors: Vectors | None
    ) -> None:
        self.entries = entries
        weights = [weigh(entry) for entry in entries]
        self._keywords = KeywordIndex(weights)
        self._servers = _telling(entries, weights)
        self._deeds = [deeds_of(entry) for entry in entries]
        self._finds = [finds(entry) for entry in entries]
        self._takers = Takers(entries)
        self._web = self._of_the_web()
        self._names = [" ".join(split(entry.name)) for entry in entries]
        self._vectors = vectors
        self._matrix: Any = None

    def search(
        self,
        query: str,
        strategy: Strategy,
        wanted: EntryFilter,
        prefer: Callable[[ToolEntry], int] = lambda entry: 0,
    ) -> Found:
        """The best hits. Among equals, those that `prefer` gives a lower number come first, then by name."""
        query = query[:LONGEST_QUERY]
        words = split(query)
        used, units, covered = self._scored(query, strategy)
        exact = self._exact(words)
        places = [at for at, unit in enumerate(units) if unit > 0 or at in exact or strategy == "category"]
        if wanted != NO_FILTER:
            places = [at for at in places if wanted.admits(self.entries[at])]
        if len(places) > MOST_HITS:
            least = sorted(units[at] for at in places)[-MOST_HITS]
            places = [at for at in places if units[at] >= least or at in exact]
        scores = [max(units[at], 0.01) for at in places]
        hits = [
            Hit(self.entries[at], exact.get(at) or score / (score + HALF))
            for at, score in zip(places, scores, strict=True)
        ]
        hits.sort(key=lambda hit: (-round(hit.score, 4), prefer(hit.entry), hit.entry.name))
        best = max(units, default=0.0)
        empty, weak = (best < floor and covered < share for floor, share in zip(FLOORS[used], COVERED, strict=True))
        return Found([] if empty and not exact else hits, used, weak and not exact)

    def _scored(self, query: str, strategy: Strategy) -> tuple[Strategy, list[float], float]:
        """The strategy that was used, the units of each tool, and how much of the query the best tool covers."""
        unit, said = self._keywords.rarest or 1.0, without_data(query)
        words = split(said)
        if strategy in ("keyword", "category"):
            plain = [(root, ()) for root in stems(words)]
            scores = self._keywords.scores(plain)
            return strategy, [score / unit for score in scores], self._covered(words, scores)
        meaning = self._by_meaning(said)
        if strategy == "semantic" and meaning is not None:
            return "semantic", [VECTOR_SHARE * cosine for cosine in meaning], 0.0
        signals, units = self.signals(query, meaning), [0.0] * len(self.entries)
        for name, column in signals.items():
            weight = getattr(WEIGHTS, name)
            units = [sum_ + weight * share for sum_, share in zip(units, column, strict=True)]
        units = [sum_ * left for sum_, left in zip(units, self.fitting(query), strict=True)]
        covered = self._covered(words, [unit * share for share in signals["words"]])
        return "keyword" if meaning is None else "hybrid", units, covered

    def signals(self, query: str, meaning: list[float] | None) -> dict[str, list[float]]:
        """What speaks for each tool, by the names of `Weights`. Signals that say nothing are left out."""
        words = split(without_data(query))
        roots, spoken = stems(words), set(words)
        asked: list[tuple[str, Iterable[str]]] = [
            (root, SYNONYMS.get(root) or self._keywords.near(root)) for root in roots[:MOST_WORDS]
        ]
        # What a phrase stands for counts as a synonym does: it has no word of its own.
        asked += [("", (root,)) for root in meant(query) if root not in roots]
        scores = self._keywords.scores(asked, VERBS, VERB_SHARE)
        unit = self._keywords.rarest or 1.0
        found = {"words": [score / unit for score in scores]}
        if any(given := self._takers.shares(query)):
            found["argument"] = given
        if meaning is not None:
            found["meaning"] = meaning
        if named := {id: share for id, (name, share) in self._servers.items() if name <= spoken}:
            found["server"] = [named.get(entry.server_id, 0.0) for entry in self.entries]
        if looked := looked_for(query):
            unknown = self._unknown(roots)
            found["lists"] = [float(each > 0) for each in self._finds]
            found["web"] = [unknown * share for share in self._web]
            if looked > 1:
                found["searches"] = [float(each > 1) for each in self._finds]
        return found

    def fitting(self, query: str) -> list[float]:
        """What is left to each tool for the kind of thing that it does."""
        wanted = deeds_wanted(query)
        return [OTHER_DEED if wanted and does and not wanted & does else 1.0 for does in self._deeds]

    def _unknown(self, roots: list[str]) -> float:
        """The share of words that no tool has."""
        most = sum(map(self._keywords.most, roots))
        return sum(self._keywords.most(root) for root in roots if not self._keywords.holds(root)) / most if most else 0

    def _of_the_web(self) -> list[float]:
        """1 for the tool that searches the web, less for those that may; mostly 0."""
        most = sum(map(self._keywords.most, _WEB)) or 1.0
        shares = [score / most for score in self._keywords.scores([(root, ()) for root in _WEB])]
        best = max(shares, default=0.0) or 1.0
        return [share / best if share > SEARCHES_WEB else 0.0 for share in shares]

    def _covered(self, words: list[str], scores: list[float]) -> float:
        most = sum(map(self._keywords.most, stems(words)))
        return max(scores, default=0.0) / most if most else 0.0

    def _if_known(self, name: re.Match[str]) -> str:
        return name[0] if any(map(self._keywords.holds, map(stem, split(name[0])))) else " "

    def _exact(self, words: list[str]) -> dict[int, float]:
        """Tools with the very name that was asked for, whatever joins its words, and those whose names begin so."""
        asked = " ".join(words)
        begun = [place for place, name in enumerate(self._names) if name.startswith(asked)] if len(words) > 1 else []
        found = {place: 0.9 for place in begun if self._names[place].startswith(asked + " ")}
        return found | {place: 1.0 for place, name in enumerate(self._names) if name == asked}

    def _by_meaning(self, query: str) -> list[float] | None:
        """Cosines, from 0 to 1; None while there are no vectors."""
        vectors = self._vectors
        if vectors is None or not vectors.ready or not self.entries:
            return None
        try:
            if self._matrix is None:
                self._matrix = vectors.matrix(self.entries)
            cosines = self._matrix @ vectors.query(_NAME.sub(self._if_known, query))
        except Exception as error:
            vectors.fell_back(error)
            return None
        return cosines.clip(min=0.0).tolist()


def _telling(
    entries: Sequence[ToolEntry], weights: Sequence[dict[str, float]]
) -> dict[str, tuple[frozenset[str], float]]:
    """The words of each server's name, and how much they tell: the share of the tools with them that are its own."""
    holding, own = Counter(root for each in weights for root in each), Counter(entry.server_id for entry in entries)
    names = {id: frozenset(split(id)) - STOP_WORDS for id in own}
    return {
        id: (name, min(own[id] / max(holding[stem(word)], own[id]) for word in name))
        for id, name in names.items()
        if name
    }
