"""How well a query fits a tool: by keywords (BM25), and by meaning (vectors, from weights that lie in a package)."""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import log
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Protocol, TypeAlias

from defserve.base.redaction import get_logger
from defserve.errors import UsageError
from defserve.search.entries import (
    MAX_DESCRIPTION_LENGTH,
    STOP_WORDS,
    ToolEntry,
    is_misspelling,
    split_words,
    stem_word,
)

# How much a word counts where it stands. The gist counts twice, as it is part of the description.
NAME, SERVER, TITLE, LABEL, GIST, DESCRIPTION = 3.0, 2.0, 1.5, 1.5, 3.0, 1.0
PARAMETER, ABOUT_PARAMETER, VALUES = 0.8, 0.1, 0.3
SATURATION, LENGTH = 1.2, 0.75
SYNONYM = 0.65
"""What a synonym counts, where the word itself counts 1."""

MIN_MISSPELT_LENGTH = 5
"""Letters. Shorter words are near to too many others."""

MAX_ALIKE_WORDS = 1_000
"""Words with one first letter and one length that a misspelt word is compared with: servers choose their words."""

MAX_GIST_LENGTH = 200
_SENTENCES = re.compile(r"(?<=[.!?:])\s+|\n+")

MAX_MERGED_POSTINGS = 500_000
"""Tools in all merged lists that an index keeps: 4 MB."""

Postings: TypeAlias = "tuple[array[int], array[float]]"
"""The places of tools, and the share that a word has in the score of each."""


def weigh_stems(entry: ToolEntry) -> dict[str, float]:
    """The stems of a tool, each with the weights of all places where it stands."""
    found: dict[str, float] = {}
    said = " ".join(entry.description[:MAX_DESCRIPTION_LENGTH].split())
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
        for word in split_words(text):
            if word not in STOP_WORDS:
                root = stem_word(word)
                found[root] = found.get(root, 0.0) + weight
    return found


def gist(entry: ToolEntry) -> str:
    """The sentence of the description that says what the tool's name says; the first, if none does.

    Many descriptions begin with warnings or headings that all tools of a server share.
    """
    own = set(map(stem_word, split_words(entry.name))).difference(
        map(stem_word, split_words(entry.server_id)), STOP_WORDS
    )
    sentences = [
        said[:MAX_GIST_LENGTH] for each in _SENTENCES.split(entry.description[:1_500]) if (said := each.strip())
    ]
    return max(sentences[:12], key=lambda said: len(own.intersection(map(stem_word, split_words(said)))), default="")


class KeywordIndex:
    """Scores for a fixed list of tools. The share of each word is worked out when the index is made."""

    def __init__(self, weights: Sequence[dict[str, float]]) -> None:
        self.size = len(weights)
        self.rarest = compute_rarity(self.size, 0)
        """What a word tells that no tool has."""
        self._postings: dict[str, Postings] = {}
        self._merged: dict[tuple[str, ...], Postings] = {}
        self._room = MAX_MERGED_POSTINGS
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
            if len(alike) < MAX_ALIKE_WORDS:
                alike.append(root)
        for places, shares in self._postings.values():
            rarity = compute_rarity(self.size, len(places))
            for at, share in enumerate(shares):
                shares[at] = share * rarity

    def has_stem(self, root: str) -> bool:
        """Whether a tool has a word."""
        return root in self._postings

    def find_similar_stems(self, root: str) -> tuple[str, ...]:
        """The words of tools that a word which no tool has may be, if it is misspelt. The first letter is right."""
        if len(root) < MIN_MISSPELT_LENGTH or self.has_stem(root):
            return ()
        size = len(root)
        known = (word for length in (size - 1, size, size + 1) for word in self._by_look.get((root[0], length), ()))
        return tuple(word for word in known if is_misspelling(root, word))

    def get_max_score(self, root: str) -> float:
        """The most that a word can add to a score."""
        known = self._postings.get(root)
        return (SATURATION + 1) * (compute_rarity(self.size, len(known[0])) if known is not None else self.rarest)

    def compute_scores(
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
            self._merged, self._room = {}, MAX_MERGED_POSTINGS - len(best)
        self._merged[(root, *known)] = merged
        return merged


def compute_rarity(size: int, held: int) -> float:
    """How much a word tells that so many of so many tools have."""
    return log(1 + (size - held + 0.5) / (held + 0.5))


# -- Search by meaning: texts as vectors, from weights that lie in a package. Nothing is ever downloaded.
#
# numpy, safetensors and tokenizers are imported when weights are loaded, by name: a server without `[semantic]` has
# none.


MAX_QUERY_LENGTH = 2_000
"""Characters of a text that are embedded."""

MAX_EMBEDDED_LENGTH = 120
"""Characters of a description that are embedded. Longer ones drown the name."""

INSTALL = "pip install 'defserve[semantic]'"


class Embedder(Protocol):
    """Turns texts into vectors of one length. Texts that mean the same point the same way."""

    def embed(self, texts: Sequence[str], /) -> Any:
        """One vector for each text: a list of lists of floats, or a numpy array. Called in a worker thread."""
        ...


class PackagedEmbedder:
    """The mean of word vectors, from the weights in the wordllama package. Loading takes half a second."""

    def __init__(self) -> None:
        """Raises UsageError if the extra is not installed."""
        missing = [name for name in ("numpy", "safetensors", "tokenizers", "wordllama") if find_spec(name) is None]
        if missing:
            raise UsageError(f"search by meaning needs {', '.join(missing)}", fix=INSTALL)
        spec = find_spec("wordllama")  # its files are read; it is not imported, because it wants a hub
        folders = [Path(place) for place in (spec.submodule_search_locations or ()) if spec] if spec else []
        weights = next((file for folder in folders for file in sorted(folder.glob("weights/*.safetensors"))), None)
        tokenizer = next((file for folder in folders for file in sorted(folder.glob("tokenizer*/*.json"))), None)
        if weights is None or tokenizer is None:
            raise UsageError("the wordllama package here has no weights", fix=INSTALL)
        self._numpy: Any = import_module("numpy")
        tables: dict[str, Any] = import_module("safetensors.numpy").load_file(str(weights))
        self._table: Any = next(iter(tables.values()))
        self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(tokenizer))

    def embed(self, texts: Sequence[str], /) -> Any:
        numpy, size = self._numpy, len(self._table)
        found = numpy.zeros((len(texts), self._table.shape[1]), dtype="float32")
        for row, text in enumerate(texts):
            said = split_words(text)
            kept = " ".join([word for word in said if word not in STOP_WORDS] or said)
            ids = [id for id in self._tokenizer.encode(kept, add_special_tokens=False).ids if id < size]
            if ids:
                found[row] = self._table[ids].astype("float32").mean(axis=0)
        return found


@cache
def get_packaged_embedder() -> PackagedEmbedder:
    """The one of this process: nothing in it changes, and its weights are many megabytes."""
    return PackagedEmbedder()


def build_embedded_texts(entry: ToolEntry) -> tuple[str, str]:
    """What is embedded of a tool: its name, and its name with what it says of itself."""
    name = " ".join((*split_words(entry.server_id), *split_words(entry.name)))
    return name, f"{name} {entry.title} {entry.description[:MAX_EMBEDDED_LENGTH]}"


class ToolVectors:
    """The vectors of tools, made in a thread of their own when they are first asked for.

    `failed` says why a search did without them.
    """

    def __init__(self, make: Callable[[], Embedder]) -> None:
        self._make = make
        self._embedder: Embedder | None = None
        self._numpy: Any = None
        self._known: dict[ToolEntry, Any] = {}
        self._lock = Lock()
        self._thread: Thread | None = None
        self.failed = ""

    def start_loading(self) -> None:
        """Load the weights, in a thread. Returns at once; does nothing the second time."""
        if self._thread is not None:
            return  # without the lock, which is held while tools are embedded
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._load, name="defserve-search", daemon=True)
                self._thread.start()

    def wait_until_loaded(self, seconds: float) -> bool:
        """Wait until the weights are there. False if they are not."""
        self.start_loading()
        if self._thread is not None:
            self._thread.join(seconds)
        return self.is_ready

    @property
    def is_ready(self) -> bool:
        return self._embedder is not None

    def _load(self) -> None:
        try:
            embedder = self._make()
            self._numpy = import_module("numpy")
            self._embedder = embedder
        except UsageError as error:
            self.log_keyword_fallback(error, logging.INFO)  # nobody asked for the extra
        except Exception as error:
            self.log_keyword_fallback(error)

    def log_keyword_fallback(self, error: Exception, level: int = logging.WARNING) -> None:
        """Say once why a search used keywords alone. Peers decide how often they search."""
        if not self.failed:
            self.failed = f"{type(error).__name__}: {error}"
            get_logger().log(level, "tools are searched by keywords alone: %s", error)

    def make_matrix(self, entries: Sequence[ToolEntry]) -> Any:
        """One row for each tool. Raises what the embedder raises."""
        with self._lock:
            known = self._known
            if missing := [entry for entry in entries if entry not in known]:
                rows = self._embed_texts([text for entry in missing for text in build_embedded_texts(entry)])
                # The mean of both cosines is the cosine with their mean, since the query is one vector.
                known |= dict(zip(missing, (rows[::2] + rows[1::2]) / 2, strict=True))
            return self._numpy.stack([known[entry] for entry in entries])

    def retain_entries(self, entries: Iterable[ToolEntry]) -> None:
        """Forget the vectors of all other tools."""
        with self._lock:
            self._known = {entry: self._known[entry] for entry in entries if entry in self._known}

    def embed_query(self, text: str) -> Any:
        """The vector of a query, of length 1."""
        return self._embed_texts([text[:MAX_QUERY_LENGTH]])[0]

    def _embed_texts(self, texts: Sequence[str]) -> Any:
        numpy, embedder = self._numpy, self._embedder
        assert embedder is not None
        made = numpy.asarray(embedder.embed(texts), dtype="float32")
        if made.ndim != 2 or len(made) != len(texts) or not numpy.isfinite(made).all():
            raise UsageError(
                f"{type(embedder).__name__}.embed gave an array of shape {made.shape} for {len(texts)} texts",
                fix="return one vector of finite numbers for each text, all of one length",
            )
        lengths = numpy.linalg.norm(made, axis=1, keepdims=True)
        return made / numpy.maximum(lengths, 1e-9)
