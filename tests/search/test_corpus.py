"""The corpus for tool search keeps its rules: enough of each kind, ids that exist, clean splits, true paraphrases."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tests.rows import for_each_row

CORPUS = Path(__file__).parent / "corpus"
LICENCES = {"MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "MIT AND Apache-2.0"}
LEAST = {"keyword": 100, "sentence": 100, "paraphrase": 80, "none": 30, "language": 20}

# Words that say nothing about what a tool does.
STOP_WORDS = set(
    """a about after again all also am an and any anything are as at be because been before being both but by can could
    did do does doing done down each else even every everything few for from get gets getting give given go goes going
    got had has have having he her here him his how i if in into is it its just let like make makes making may me might
    mine more most much must my need needs no not nothing now of off on one only or other our out over own per please
    put s same say see she should so some someone something still such t take than that the their them then there these
    they thing things this those through to too two under until up us use used uses using very want wants was way we
    were what when where whether which while who whose why will with without would yet you your yours""".split()
)
WORD = re.compile(r"[a-z]+")
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Longest first; what remains must be three letters at least.
SUFFIXES = "ingly edly ments ment ings ing ions ion ives ive ers er ors or ies ied ily ed es ly al y e s".split()


def stem(word: str) -> str:
    """The word without its ending: `copies`, `copied` and `copying` are `cop`."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    if len(word) > 3 and (word[-1] == word[-2] or word[-1] in "eiy"):
        word = word[:-1]
    return word


def stems(text: str) -> set[str]:
    words = WORD.findall(HUMP.sub(" ", text).lower())
    return {stem(word) for word in words if word not in STOP_WORDS and len(word) > 1}


def shared(asked: str, told: str) -> set[tuple[str, str]]:
    """The pairs of stems that are one word: the same, or one begins with the other (`inform`, `informat`)."""
    return {
        (one, other)
        for one in stems(asked)
        for other in stems(told)
        if one == other or (min(len(one), len(other)) >= 4 and (one.startswith(other) or other.startswith(one)))
    }


def read_servers() -> dict[str, dict[str, Any]]:
    files = sorted((CORPUS / "tools").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def read_queries() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPUS / "queries.jsonl").read_text(encoding="utf-8").splitlines()]


SERVERS = read_servers()
QUERIES = read_queries()
TOOLS = {f"{name}/{tool['name']}": tool for name, server in SERVERS.items() for tool in server["tools"]}


def servers_of(query: dict[str, Any]) -> set[str]:
    return {tool.split("/")[0] for tool in query["right"]}


def test_it_holds_at_least_450_tools_of_14_servers() -> None:
    assert len(SERVERS) >= 14
    assert len(TOOLS) >= 450
    assert len(TOOLS) == sum(len(server["tools"]) for server in SERVERS.values())


@for_each_row("name", SERVERS)
def test_each_server_says_where_it_is_from_and_lists_whole_tools(name: str) -> None:
    server = SERVERS[name]
    assert server["server"] == name
    assert server["package"]
    assert server["version"]
    assert server["licence"] in LICENCES
    for tool in server["tools"]:
        assert tool["inputSchema"]["type"] == "object"
        assert "_meta" not in tool
        assert len(tool.get("description", "")) <= 2000


@for_each_row("kind", LEAST)
def test_each_kind_has_enough_queries(kind: str) -> None:
    assert sum(query["kind"] == kind for query in QUERIES) >= LEAST[kind]


def test_each_query_is_one_of_the_kinds_and_is_asked_once() -> None:
    assert {query["kind"] for query in QUERIES} == set(LEAST)
    assert {query["split"] for query in QUERIES} == {"tune", "held"}
    assert [text for text, count in Counter(query["query"].lower() for query in QUERIES).items() if count > 1] == []


def test_the_right_tools_are_in_the_corpus_and_only_none_has_no_right_tool() -> None:
    assert [(query["query"], tool) for query in QUERIES for tool in query["right"] if tool not in TOOLS] == []
    assert [query["query"] for query in QUERIES if (query["kind"] == "none") != (not query["right"])] == []
    assert [query["query"] for query in QUERIES if len(set(query["right"])) != len(query["right"])] == []


def test_a_server_is_in_one_split_and_both_splits_are_about_as_large() -> None:
    of = {
        split: set[str]().union(*(servers_of(q) for q in QUERIES if q["split"] == split)) for split in ("tune", "held")
    }
    assert of["tune"] & of["held"] == set()
    assert of["tune"] | of["held"] == set(SERVERS)
    assert abs(len(of["tune"]) - len(of["held"])) <= 3
    for kind in LEAST:
        splits = Counter(query["split"] for query in QUERIES if query["kind"] == kind)
        assert min(splits["tune"], splits["held"]) >= 0.35 * splits.total()


@for_each_row("query", [q for q in QUERIES if q["kind"] == "paraphrase"], ids=lambda query: query["query"])
def test_a_paraphrase_shares_no_word_with_its_tools(query: dict[str, Any]) -> None:
    assert len(stems(query["query"])) >= 2
    for name in query["right"]:
        tool = TOOLS[name]
        title = f"{tool.get('title', '')} {tool.get('annotations', {}).get('title', '')}"
        assert shared(query["query"], f"{tool['name']} {title} {tool.get('description', '')}") == set()


def test_a_keyword_query_is_two_to_five_words() -> None:
    assert [q["query"] for q in QUERIES if q["kind"] == "keyword" and not 2 <= len(q["query"].split()) <= 5] == []


@for_each_row(
    ("one", "other"),
    [
        ("copies", "copying"),
        ("creation", "creates"),
        ("information", "inform"),
        ("pages", "page"),
        ("users", "getUser"),
    ],
)
def test_forms_of_one_word_are_a_shared_word(one: str, other: str) -> None:
    assert shared(one, other)


@for_each_row(("one", "other"), [("ticket", "issue"), ("what is the", "the what"), ("sit", "website")])
def test_other_words_and_stop_words_are_not_shared(one: str, other: str) -> None:
    assert not shared(one, other)
