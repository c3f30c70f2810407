"""Ranking: keyword, semantic, category and hybrid search over the tools that one caller may see.

`Server(search=Search(…))` has the options. A score comes from keywords and meaning (`scores`), from phrases and
synonyms (`vocabulary`), and from what the sentence asks for and brings along.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import log, sqrt
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from defserve.errors import UsageError, explain_arguments
from defserve.search.entries import STOP_WORDS, EntryFilter, ToolBudget, ToolEntry, split_words, stem_word, stem_words
from defserve.search.scores import Embedder, KeywordIndex, ToolVectors, compute_rarity, weigh_stems
from defserve.search.vocabulary import SYNONYMS, expand_phrases

SearchStrategy: TypeAlias = Literal["keyword", "semantic", "category", "hybrid"]
SEARCH_STRATEGIES: tuple[SearchStrategy, ...] = ("keyword", "semantic", "category", "hybrid")

MAX_QUERY_LENGTH = 2_000
"""Characters. The rest of a query is not read."""

NO_FILTER = EntryFilter()

MAX_HITS = 200
"""Hits of one search, and more only if they are as good as the last."""

MAX_QUERY_WORDS = 64
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

FLOORS: dict[SearchStrategy, tuple[float, float]] = {
    "keyword": (0.3, 0.9),
    "semantic": (0.28, 0.69),
    "category": (0.0, 0.0),
    "hybrid": (0.95, 1.6),
}
"""Units. If the best tool has less, nothing is found, or what is found is weak. Short queries have few units."""
COVERED = (0.2, 0.3)
"""The shares of a query that the best tool must cover for the floors not to hold."""

_WEB = tuple(map(stem_word, ("search", "web", "internet", "news")))
SEARCHES_WEB = 0.25
"""The share of these words that a tool covers which searches the web."""

# A capital letter within a sentence: somebody's name, unless tools have the word.
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][^\W\d_A-Z]+(?:['’]s)?")

HALF = 1.5
"""Units that give a score of one half."""


class SearchHit(NamedTuple):
    """A tool that was found. `score` is from 0 to 1, and comparable within one answer."""

    entry: ToolEntry
    score: float


class SearchResult(NamedTuple):
    """The hits, best first, and the strategy that found them. `weak`: none of them fits well."""

    hits: list[SearchHit]
    strategy: SearchStrategy
    weak: bool = False


class ToolIndex:
    """An index of the tools that one caller may see."""

    def __init__(
        self, entries: Sequence[ToolEntry], weigh: Callable[[ToolEntry], dict[str, float]], vectors: ToolVectors | None
    ) -> None:
        self.entries = entries
        weights = [weigh(entry) for entry in entries]
        self._keywords = KeywordIndex(weights)
        self._servers = _telling(entries, weights)
        self._deeds = [deeds_of(entry) for entry in entries]
        self._finds = [finds(entry) for entry in entries]
        self._takers = Takers(entries)
        self._web = self._of_the_web()
        self._names = [" ".join(split_words(entry.name)) for entry in entries]
        self._vectors = vectors
        self._matrix: Any = None

    def search(
        self,
        query: str,
        strategy: SearchStrategy,
        wanted: EntryFilter,
        prefer: Callable[[ToolEntry], int] = lambda entry: 0,
    ) -> SearchResult:
        """The best hits. Among equals, those that `prefer` gives a lower number come first, then by name."""
        query = query[:MAX_QUERY_LENGTH]
        words = split_words(query)
        used, units, covered = self._score_tools(query, strategy)
        exact = self._exact(words)
        places = [at for at, unit in enumerate(units) if unit > 0 or at in exact or strategy == "category"]
        if wanted != NO_FILTER:
            places = [at for at in places if wanted.admits(self.entries[at])]
        if len(places) > MAX_HITS:
            least = sorted(units[at] for at in places)[-MAX_HITS]
            places = [at for at in places if units[at] >= least or at in exact]
        scores = [max(units[at], 0.01) for at in places]
        hits = [
            SearchHit(self.entries[at], exact.get(at) or score / (score + HALF))
            for at, score in zip(places, scores, strict=True)
        ]
        hits.sort(key=lambda hit: (-round(hit.score, 4), prefer(hit.entry), hit.entry.name))
        best = max(units, default=0.0)
        empty, weak = (best < floor and covered < share for floor, share in zip(FLOORS[used], COVERED, strict=True))
        return SearchResult([] if empty and not exact else hits, used, weak and not exact)

    def _score_tools(self, query: str, strategy: SearchStrategy) -> tuple[SearchStrategy, list[float], float]:
        """The strategy that was used, the units of each tool, and how much of the query the best tool covers."""
        unit, said = self._keywords.rarest or 1.0, without_data(query)
        words = split_words(said)
        if strategy in ("keyword", "category"):
            plain = [(root, ()) for root in stem_words(words)]
            scores = self._keywords.compute_scores(plain)
            return strategy, [score / unit for score in scores], self._compute_coverage(words, scores)
        meaning = self._by_meaning(said)
        if strategy == "semantic" and meaning is not None:
            return "semantic", [VECTOR_SHARE * cosine for cosine in meaning], 0.0
        signals, units = self.compute_signals(query, meaning), [0.0] * len(self.entries)
        for name, column in signals.items():
            weight = getattr(WEIGHTS, name)
            units = [sum_ + weight * share for sum_, share in zip(units, column, strict=True)]
        units = [sum_ * left for sum_, left in zip(units, self.compute_action_factors(query), strict=True)]
        covered = self._compute_coverage(words, [unit * share for share in signals["words"]])
        return "keyword" if meaning is None else "hybrid", units, covered

    def compute_signals(self, query: str, meaning: list[float] | None) -> dict[str, list[float]]:
        """What speaks for each tool, by the names of `Weights`. Signals that say nothing are left out."""
        words = split_words(without_data(query))
        roots, spoken = stem_words(words), set(words)
        asked: list[tuple[str, Iterable[str]]] = [
            (root, SYNONYMS.get(root) or self._keywords.find_similar_stems(root)) for root in roots[:MAX_QUERY_WORDS]
        ]
        # What a phrase stands for counts as a synonym does: it has no word of its own.
        asked += [("", (root,)) for root in expand_phrases(query) if root not in roots]
        scores = self._keywords.compute_scores(asked, VERBS, VERB_SHARE)
        unit = self._keywords.rarest or 1.0
        found = {"words": [score / unit for score in scores]}
        if any(given := self._takers.score_tools(query)):
            found["argument"] = given
        if meaning is not None:
            found["meaning"] = meaning
        if named := {id: share for id, (name, share) in self._servers.items() if name <= spoken}:
            found["server"] = [named.get(entry.server_id, 0.0) for entry in self.entries]
        if looked := rate_lookup_intent(query):
            unknown = self._unknown(roots)
            found["lists"] = [float(each > 0) for each in self._finds]
            found["web"] = [unknown * share for share in self._web]
            if looked > 1:
                found["searches"] = [float(each > 1) for each in self._finds]
        return found

    def compute_action_factors(self, query: str) -> list[float]:
        """What is left to each tool for the kind of thing that it does."""
        wanted = deeds_wanted(query)
        return [OTHER_DEED if wanted and does and not wanted & does else 1.0 for does in self._deeds]

    def _unknown(self, roots: list[str]) -> float:
        """The share of words that no tool has."""
        most = sum(map(self._keywords.get_max_score, roots))
        return (
            sum(self._keywords.get_max_score(root) for root in roots if not self._keywords.has_stem(root)) / most
            if most
            else 0
        )

    def _of_the_web(self) -> list[float]:
        """1 for the tool that searches the web, less for those that may; mostly 0."""
        most = sum(map(self._keywords.get_max_score, _WEB)) or 1.0
        shares = [score / most for score in self._keywords.compute_scores([(root, ()) for root in _WEB])]
        best = max(shares, default=0.0) or 1.0
        return [share / best if share > SEARCHES_WEB else 0.0 for share in shares]

    def _compute_coverage(self, words: list[str], scores: list[float]) -> float:
        most = sum(map(self._keywords.get_max_score, stem_words(words)))
        return max(scores, default=0.0) / most if most else 0.0

    def _if_known(self, name: re.Match[str]) -> str:
        return name[0] if any(map(self._keywords.has_stem, map(stem_word, split_words(name[0])))) else " "

    def _exact(self, words: list[str]) -> dict[int, float]:
        """Tools with the very name that was asked for, whatever joins its words, and those whose names begin so."""
        asked = " ".join(words)
        begun = [place for place, name in enumerate(self._names) if name.startswith(asked)] if len(words) > 1 else []
        found = {place: 0.9 for place in begun if self._names[place].startswith(asked + " ")}
        return found | {place: 1.0 for place, name in enumerate(self._names) if name == asked}

    def _by_meaning(self, query: str) -> list[float] | None:
        """Cosines, from 0 to 1; None while there are no vectors."""
        vectors = self._vectors
        if vectors is None or not vectors.is_ready or not self.entries:
            return None
        try:
            if self._matrix is None:
                self._matrix = vectors.make_matrix(self.entries)
            cosines = self._matrix @ vectors.embed_query(_NAME.sub(self._if_known, query))
        except Exception as error:
            vectors.log_keyword_fallback(error)
            return None
        return cosines.clip(min=0.0).tolist()


def _telling(
    entries: Sequence[ToolEntry], weights: Sequence[dict[str, float]]
) -> dict[str, tuple[frozenset[str], float]]:
    """The words of each server's name, and how much they tell: the share of the tools with them that are its own."""
    holding, own = Counter(root for each in weights for root in each), Counter(entry.server_id for entry in entries)
    names = {id: frozenset(split_words(id)) - STOP_WORDS for id in own}
    return {
        id: (name, min(own[id] / max(holding[stem_word(word)], own[id]) for word in name))
        for id, name in names.items()
        if name
    }


# -- `Server(search=Search(…))`: how a server with many tools is searched and listed.


Level: TypeAlias = Literal["auto", "L0", "L1", "L2", "L3"]


@explain_arguments
@dataclass(frozen=True, slots=True)
class Search:
    """What `tools/list` shows, and how tools are found.

    `level` "L0" lists every tool, "L1" the categories, "L2" only what searches, "L3" also what a conversation has
    loaded; "auto" is L0 while all tools fit into the budget, else L3. `pinned` tools are in every list. `strategy` is
    used when a caller names none. `embedder` replaces the vectors of the `[semantic]` extra. Clients whose names are
    in `whole_list_for` get every tool, because they search by themselves.
    """

    level: Level = "auto"
    pinned: Sequence[str] = ()
    budget: ToolBudget = field(default_factory=ToolBudget)
    strategy: SearchStrategy = "hybrid"
    embedder: Embedder | None = None
    whole_list_for: Sequence[str] = ()

    def __post_init__(self) -> None:
        _one_of("level", self.level, get_args(Level))
        _one_of("strategy", self.strategy, SEARCH_STRATEGIES)
        for name in ("pinned", "whole_list_for"):
            if isinstance(given := getattr(self, name), str):
                raise UsageError(f"Search({name}={given!r}) is not a list", fix=f"write {name}=[{given!r}]")
        if self.embedder is not None and not hasattr(self.embedder, "embed"):
            raise UsageError(
                f"Search(embedder={self.embedder!r}) has no method `embed`",
                fix="give an object with embed(texts), which returns one vector for each text",
            )

    @classmethod
    def of(cls, given: Any) -> Search:
        """What `Server(search=…)` was given: "auto", "always" or a Search. Raises UsageError for anything else."""
        if isinstance(given, Search):
            return given
        _one_of("search", given, ("auto", "always"), "Server")
        return cls() if given == "auto" else cls(level="L3")


def _one_of(name: str, given: Any, known: Sequence[str], subject: str = "Search") -> None:
    if given not in known:
        more = ", or Search(…)" if subject == "Server" else ""
        raise UsageError(
            f"{subject}({name}={given!r}) is not possible", fix=f"use one of {', '.join(map(repr, known))}{more}"
        )


# -- What a sentence asks for and what a tool does: read, create, delete, change, send or act.
#
# A verb says little of which tool is meant, as half of all tools `get` something. But it tells which ones are not
# meant: who asks a question wants nothing deleted.


# The verbs of each kind of deed, some with the word after them. Some are of several kinds.
_DEEDS = """
read: get read show fetch retrieve view see look display load print check tell inspect list browse search find
read: locate query describe count download export know compare lookup explain examine return scan verify
read: analyze summarize give extract monitor diff status
read: make-sure find-out take-look have-look pull-up work-out figure-out go-through walk-me compute calculate detect
create: create make new add build generate compose draft insert register setup begin start produce open put plan
create: book schedule prepare write install upload attach append log file save store keep record invite raise
create: import post push fork copy note remember upsert manage
create: set-up put-together come-up write-down jot kick-off sign-up back-up duplicate clone remind
delete: delete remove erase drop destroy discard forget clear wipe purge trash cancel unlink detach uninstall
delete: throw rid evict stop take manage
delete: get-rid throw-away throw-out take-out take-off take-down clean-up tidy-up clean-out stop-sharing
change: update change edit modify alter set adjust revise rewrite replace patch amend fix correct rename move
change: transition assign manage mark turn format restrict reset tag label colour color connect link merge give
change: grant share allow bring put point switch transform convert
change: go-back roll-back undo revert restore bring-up hand-over take-over put-off push-back swap archive
send: send post mail notify deliver message tell email reply answer respond announce publish comment write say
send: leave push
send: let-everyone let-everybody let-them let-him let-her forward ask drop-a ping
act: run execute start launch evaluate trigger invoke stop kill apply click press drag hover navigate go visit
act: wait type fill scale merge hold hit open close handle take
"""
READ = 1  # the kind of the first line

# In the name of a tool these are what it works on.
_THINGS = frozenset("file message comment log note record label status mail email new link".split())
_QUESTIONS = frozenset("which what who whom whose when where how why is are does do did has have was were am".split())
_LEADS = frozenset("i d ll we you us me my to let and just also now then hey hi".split())
_PLEASE = re.compile(
    r"\b(?:please|kindly|help me|(?:can|could|would|will) you|i(?:['’]d| would)? (?:want|need|like)(?: to)?)\b", re.I
)
_TO_ME = re.compile(r"\b(?:give|get|bring|show|tell) me\b|\blet me (?:see|know)\b", re.I)

# How a query begins that wants to find out something, and what it says if that may be anywhere.
_LOOKING = re.compile(
    r"\W{0,9}(?:(?:hey|hi|so|ok|and)\b\W{1,9})?"
    r"(?:where|did|do|does|has|have|is there|are there|was|were|which|who|whom|whose|what|"
    r"any|show|list|find|look|search)\b",
    re.I,
)
_ANYWHERE = re.compile(r"\b(?:where|did|has|have|ever|anyone|anybody|somebody|anything|everything|any|all)\b", re.I)
_LISTS, _SEARCHES = frozenset("list filter grep".split()), frozenset("search find query".split())


def _deeds() -> dict[str, int]:
    found: dict[str, int] = {}
    bits: dict[str, int] = {}
    for line in _DEEDS.strip().splitlines():
        kind, verbs = line.split(": ")
        bit = bits.setdefault(kind, READ << len(bits))
        for root in map(stem_word, verbs.split()):
            found[root] = found.get(root, 0) | bit
    return found


_VERB_KINDS = _deeds()
VERBS = frozenset(_VERB_KINDS)
"""The stems of all verbs."""


def deeds_wanted(query: str) -> int:
    """The kinds of deed that a query asks for, as bits; 0 if that is not clear."""
    if _TO_ME.search(query):
        return READ
    for part in reversed(_PLEASE.split(query)):
        words = split_words(part)
        at = next(
            (at for at, word in enumerate(words) if word not in _LEADS or _two(words, at) in _VERB_KINDS), len(words)
        )
        first = words[at] if at < len(words) else ""
        if (
            kinds := READ
            if first in _QUESTIONS
            else _VERB_KINDS.get(_two(words, at)) or _VERB_KINDS.get(stem_word(first), 0)
        ):
            return kinds
    return 0


def _two(words: list[str], at: int) -> str:
    return stem_word("-".join(words[at : at + 2]))


def deeds_of(entry: ToolEntry) -> int:
    """The kinds of deed that a tool does, by the first verb of its name or of its description; 0 if there is none."""
    words = [word for word in split_words(entry.name) if word not in _THINGS] + split_words(entry.description[:60])[:3]
    return next((kinds for word in words if (kinds := _VERB_KINDS.get(stem_word(word), 0))), 0)


def rate_lookup_intent(query: str) -> int:
    """1 if a query wants to find out something, 2 if that may be anywhere; 0 if it wants something done."""
    return 0 if not _LOOKING.match(query) else 2 if _ANYWHERE.search(query) else 1


def finds(entry: ToolEntry) -> int:
    """1 if a tool lists things, 2 if it searches for them; else 0."""
    words = frozenset(split_words(entry.name))
    return 2 if words & _SEARCHES else 1 if words & _LISTS else 0


# -- What a query brings along for a tool's arguments: addresses, keys, file names, times.
#
# As words they say nothing of the tool. But who gives an address wants a tool that takes one.


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
_DATA_PATTERNS = tuple((re.compile(looks), frozenset(names.split())) for looks, names in _GIVEN)


def without_data(query: str) -> str:
    """A query without quotations, numbers and keys."""
    said = _DATA.sub(" ", _QUOTED.sub(" ", query))
    return said if len(split_words(said)) > 1 else query


class Takers:
    """Which tools take what a query gives."""

    def __init__(self, entries: Sequence[ToolEntry]) -> None:
        self._size = len(entries)
        names = [{word for name in entry.parameters[::3] for word in split_words(name)} for entry in entries]
        self._places = [[at for at, each in enumerate(names) if wanted & each] for _, wanted in _DATA_PATTERNS]

    def score_tools(self, query: str) -> list[float]:
        """For each tool how much of what is given it takes. What few tools take counts most."""
        found = [0.0] * self._size
        for (looks, _), places in zip(_DATA_PATTERNS, self._places, strict=True):
            if places and looks.search(query):
                rarity = log(self._size / len(places)) / log(self._size) if self._size > 1 else 1.0
                for at in places:
                    found[at] += rarity
        return found


# -- Pairs of tools that could be mixed up: they are about the same things, by the words that few tools have.


CLOSE = 0.7
"""The cosine from which two tools are close. Chosen on the corpus of `tests/search`: of 51 pairs that it finds among
16,195, people accept both tools for one query in 9. It was chosen on these same pairs, so others may fare worse."""
MIN_TOOLS_FOR_RARITY = 20
"""Of few tools, a word that both have would be common. It's as rare as among so many."""
MAX_SHARED_WORDS = 4


class SimilarToolPair(NamedTuple):
    """Two tools, how like each other they are (up to 1), and the words that make them so, the rarest first."""

    one: ToolEntry
    other: ToolEntry
    likeness: float
    shared: tuple[str, ...]


def find_similar_tool_pairs(entries: Sequence[ToolEntry], least: float = CLOSE) -> list[SimilarToolPair]:
    """The pairs that do the same kind of thing with the same words, the closest first."""
    weights = [weigh_stems(entry) for entry in entries]
    holding = Counter(root for each in weights for root in each)
    rarity = {root: compute_rarity(max(len(entries), MIN_TOOLS_FOR_RARITY), held) for root, held in holding.items()}
    vectors = [{root: weight * rarity[root] for root, weight in each.items()} for each in weights]
    lengths = [sqrt(sum(value * value for value in vector.values())) or 1.0 for vector in vectors]
    deeds = [deeds_of(entry) for entry in entries]
    pairs: list[SimilarToolPair] = []
    for one, other in combinations(range(len(entries)), 2):
        if not deeds[one] & deeds[other]:
            continue
        shares = {root: value * vectors[other].get(root, 0.0) for root, value in vectors[one].items()}
        likeness = sum(shares.values()) / (lengths[one] * lengths[other])
        if likeness >= least:
            best = sorted((root for root, share in shares.items() if share), key=lambda root: -shares[root])
            words = _find_words(entries[one], best[:MAX_SHARED_WORDS])
            pairs.append(SimilarToolPair(entries[one], entries[other], likeness, words))
    return sorted(pairs, key=lambda pair: -pair.likeness)


def _find_words(entry: ToolEntry, roots: Sequence[str]) -> tuple[str, ...]:
    """Stems as the words that the tool has."""
    words = {
        stem_word(word): word
        for text in (*entry.parameters, entry.description, entry.name)
        for word in split_words(text)
    }
    return tuple(words.get(root, root) for root in roots)
