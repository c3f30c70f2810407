"""Search by meaning: texts as vectors, from weights that lie in a package. Nothing is ever downloaded.

numpy, safetensors and tokenizers are imported when weights are loaded, by name: a server without `[semantic]` has none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Protocol

from defserve.errors import UsageError
from defserve.search.entries import ToolEntry
from defserve.search.words import STOP_WORDS, split

LONGEST_QUERY = 2_000
"""Characters of a text that are embedded."""

LONGEST_SAID = 120
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
            said = split(text)
            kept = " ".join([word for word in said if word not in STOP_WORDS] or said)
            ids = [id for id in self._tokenizer.encode(kept, add_special_tokens=False).ids if id < size]
            if ids:
                found[row] = self._table[ids].astype("float32").mean(axis=0)
        return found


def spoken(entry: ToolEntry) -> tuple[str, str]:
    """What is embedded of a tool: its name, and its name with what it says of itself."""
    name = " ".join((*split(entry.server_id), *split(entry.name)))
    return name, f"{name} {entry.title} {entry.description[:LONGEST_SAID]}"


class Vectors:
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

    def begin(self) -> None:
        """Load the weights, in a thread. Returns at once; does nothing the second time."""
        if self._thread is not None:
            return  # without the lock, which is held while tools are embedded
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._load, name="defserve-search", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the weights are there. False if they are not."""
        self.begin()
        if self._thread is not None:
            self._thread.join(seconds)
        return self.ready

    @property
    def ready(self) -> bool:
        return self._embedder is not None

    def _load(self) -> None:
        try:
            embedder = self._make()
            self._numpy = import_module("numpy")
            self._embedder = embedder
        except UsageError as error:
            self.fell_back(error, logging.INFO)  # nobody asked for the extra
        except Exception as error:
            self.fell_back(error)

    def fell_back(self, error: Exception, level: int = logging.WARNING) -> None:
        """Say once why a search used keywords alone. Peers decide how often they search."""
        if not self.failed:
            self.failed = f"{type(error).__name__}: {error}"
            logging.getLogger("defserve").log(level, "tools are searched by keywords alone: %s", error)

    def matrix(self, entries: Sequence[ToolEntry]) -> Any:
        """One row for each tool. Raises what the embedder raises."""
        with self._lock:
            known = self._known
            if missing := [entry for entry in entries if entry not in known]:
                rows = self._embedded([text for entry in missing for text in spoken(entry)])
                # The mean of both cosines is the cosine with their mean, since the query is one vector.
                known |= dict(zip(missing, (rows[::2] + rows[1::2]) / 2, strict=True))
            return self._numpy.stack([known[entry] for entry in entries])

    def keep(self, entries: Iterable[ToolEntry]) -> None:
        """Forget the vectors of all other tools."""
        with self._lock:
            self._known = {entry: self._known[entry] for entry in entries if entry in self._known}

    def query(self, text: str) -> Any:
        """The vector of a query, of length 1."""
        return self._embedded([text[:LONGEST_QUERY]])[0]

    def _embedded(self, texts: Sequence[str]) -> Any:
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
