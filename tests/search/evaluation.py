"""How well each strategy finds tools, on the corpus: `python -m tests.search.evaluation --split tune`.

Words and phrases were written by people who knew `tune`, later also `held` and `fresh`. `tests/search/weights.py` fits
the weights and tells what they find for servers that they were not fitted on. A split that is none of these is new:
measure it once. FTS5 is SQLite's own BM25, for comparison.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

from defserve.search.entries import EntryFilter, ToolEntry, derive_categories, extract_parameter_texts
from defserve.search.entries import split_words as words_in
from defserve.search.ranking import ToolIndex
from defserve.search.scores import PackagedEmbedder, ToolVectors, weigh_stems

CORPUS = Path(__file__).parent / "corpus"
PAGE = Path(__file__).parents[2] / "docs" / "search.md"
BEGIN, END = '<!-- make search ARGS="--split {} --write" -->', "<!-- end -->"
KINDS = ("keyword", "sentence", "paraphrase", "language", "none")
SPLITS = ("tune", "held", "fresh")
"""What rankers may be fitted on."""
TOP = 5

Ranked = tuple[Sequence[str], bool]
Ranker = Callable[[str], Ranked]
"""A query to the ids of tools, best first, and whether they are said to be weak."""


class Query(NamedTuple):
    kind: str
    query: str
    right: frozenset[str]


class Score(NamedTuple):
    """Shares of queries: with a right tool first, and among the first five; mean reciprocal rank; milliseconds each.

    For queries that no tool serves: the share answered with nothing, and with nothing or with what is said to be weak.
    """

    first: float
    among_five: float
    reciprocal: float
    milliseconds: float


@cache
def entries() -> tuple[ToolEntry, ...]:
    found: list[ToolEntry] = []
    for file in sorted((CORPUS / "tools").glob("*.json")):
        listed = json.loads(file.read_text(encoding="utf-8"))
        server = listed["server"]
        found += [
            ToolEntry(
                f"{server}/{tool['name']}",
                server,
                tool["name"],
                tool.get("title") or "",
                tool.get("description") or "",
                derive_categories(server, ()),
                parameters=extract_parameter_texts(tool.get("inputSchema") or {}),
            )
            for tool in listed["tools"]
        ]
    return tuple(found)


def queries(split: str) -> list[Query]:
    """The queries of a split; of all that rankers may be fitted on, if it is `all`."""
    files = sorted(CORPUS.glob("*.jsonl"))
    read = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    wanted = SPLITS if split == "all" else (split,)
    return [Query(each["kind"], each["query"], frozenset(each["right"])) for each in read if each["split"] in wanted]


def rankers(*, semantic: bool = True) -> dict[str, Ranker]:
    """Every strategy by name. Without the extra there is only what needs none."""
    found: dict[str, Ranker] = {"FTS5": fts5()}
    vectors = ToolVectors(PackagedEmbedder)
    strategies: tuple[Any, ...] = ("keyword",)
    if semantic and vectors.wait_until_loaded(60):
        strategies = ("keyword", "semantic", "hybrid")
    index = ToolIndex(entries(), weigh_stems, vectors)

    def ranker(strategy: Any) -> Ranker:
        def rank(query: str) -> Ranked:
            found = index.search(query, strategy, EntryFilter())
            return [hit.entry.tool_id for hit in found.hits[:TOP]], found.weak

        return rank

    return found | {strategy: ranker(strategy) for strategy in strategies}


def fts5() -> Ranker:
    """SQLite's full-text search with its own stemmer, as one would use it: any word may match."""
    database = sqlite3.connect(":memory:")
    database.execute("create virtual table tools using fts5(id unindexed, name, said, tokenize='porter unicode61')")
    rows = [(e.tool_id, f"{e.server_id} {' '.join(words_in(e.name))} {e.title}", e.description) for e in entries()]
    database.executemany("insert into tools values (?, ?, ?)", rows)
    database.commit()

    def rank(query: str) -> Ranked:
        asked = " OR ".join(f'"{word}"' for word in words_in(query))
        found = database.execute("select id from tools where tools match ? order by rank limit ?", (asked, TOP))
        return ([id for (id,) in found] if asked else []), False

    finalize(rank, database.close)
    return rank


def evaluated(rank: Ranker, asked: Sequence[Query]) -> dict[str, Score]:
    """The scores of a ranker by kind of query."""
    found: dict[str, Score] = {}
    for kind in KINDS:
        of_kind = [each for each in asked if each.kind == kind]
        places: list[int | None] = []
        began = time.process_time()
        for each in of_kind:
            ids, weak = rank(each.query)
            if kind == "none":
                places.append(1 if weak and ids else None if ids else 0)
            else:
                places.append(next((at for at, id in enumerate(ids) if id in each.right), None))
        spent = time.process_time() - began
        count = len(of_kind) or 1
        found[kind] = Score(
            sum(place == 0 for place in places) / count,
            sum(place is not None for place in places) / count,
            sum(1 / (place + 1) for place in places if place is not None) / count,
            1000 * spent / count,
        )
    return found


def table(split: str) -> str:
    """The scores of every ranker as Markdown."""
    asked = queries(split)
    counts = {kind: count for kind in KINDS if (count := sum(each.kind == kind for each in asked))}
    lines = [
        "| strategy | " + " | ".join(f"{kind} ({count})" for kind, count in counts.items()) + " | ms a query |",
        "|---|" + "---|" * (len(counts) + 1),
    ]
    for name, rank in rankers().items():
        rank("warm up")
        scores = evaluated(rank, asked)
        cells = [f"{scores[kind].first:.1%} / {scores[kind].among_five:.1%}" for kind in counts]
        mean = sum(scores[kind].milliseconds * count for kind, count in counts.items()) / (len(asked) or 1)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {mean:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", default="tune", help=f"{', '.join(SPLITS)}, all, or a new one")
    parser.add_argument("--write", action="store_true", help="write the table into docs/search.md")
    options = parser.parse_args()
    servers, made = len(list((CORPUS / "tools").glob("*.json"))), table(options.split)
    print(f"{len(entries())} tools of {servers} servers, split {options.split}: top 1 / top 5")
    print(f"none: nothing / nothing or weak\n\n{made}")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        mark = BEGIN.format(options.split)
        begin = page.index(mark) + len(mark)
        PAGE.write_text(f"{page[:begin]}\n{made}\n{page[page.index(END, begin) :]}", encoding="utf-8")


if __name__ == "__main__":
    main()
