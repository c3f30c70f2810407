"""Pairs of tools that could be mixed up, against what people accept for one query."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

from defserve.search.entries import make_listed_entry
from defserve.search.ranking import find_similar_tool_pairs

CORPUS = Path(__file__).parent / "corpus"


def test_of_the_pairs_that_are_found_some_are_those_that_people_accept_for_one_query() -> None:
    accepted: set[frozenset[str]] = set()
    for name in ("queries.jsonl", "fresh.jsonl"):
        for line in (CORPUS / name).read_text(encoding="utf-8").splitlines():
            accepted |= {frozenset(pair) for pair in combinations(json.loads(line)["right"], 2)}
    found: list[frozenset[str]] = []
    for path in sorted((CORPUS / "tools").glob("*.json")):
        listed = json.loads(path.read_text(encoding="utf-8"))
        found += [
            frozenset(f"{listed['server']}/{each.name}" for each in (pair.one, pair.other))
            for pair in find_similar_tool_pairs([make_listed_entry(tool) for tool in listed["tools"]])
        ]
    assert (len(found), len([pair for pair in found if pair in accepted])) == (51, 9)


def test_a_pair_names_the_words_that_it_shares() -> None:
    (pair,) = find_similar_tool_pairs(
        [
            make_listed_entry({"name": "lend", "description": "Give a book to a person."}),
            make_listed_entry({"name": "hand_out", "description": "Give a book to a person today."}),
        ],
        0.4,
    )
    assert {"book", "person"} <= set(pair.shared)


def test_tools_that_do_other_things_are_not_close() -> None:
    one = {"name": "delete_book", "description": "Delete a book."}
    other = {"name": "read_book", "description": "Read a book."}
    assert find_similar_tool_pairs([make_listed_entry(one), make_listed_entry(other)], 0.1) == []
