"""Ranking: exact names first, filters always, no score for what is not there, and no query that costs much."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import UsageError
from defserve.protocols.mgp.tool_discovery import ToolDiscovery
from defserve.search import Search
from defserve.search.entries import EntryFilter, ToolEntry, extract_parameter_texts, normalize_labels
from defserve.search.ranking import SEARCH_STRATEGIES, ToolIndex
from defserve.search.scores import MAX_MERGED_POSTINGS, KeywordIndex, PackagedEmbedder, ToolVectors, gist, weigh_stems
from tests.effort import cpu_within
from tests.rows import for_each_row


def entry(name: str, said: str = "", **more: Any) -> ToolEntry:
    return ToolEntry(f"s.{name}", "s", name, description=said, **more)


TOOLS = [
    entry("read_file", "Read a file."),
    entry("read_file_lines", "Read some lines of a file."),
    entry("write_file", "Write a file.", risk="dangerous"),
    entry("list_tables", "Show the tables of a database.", categories=("data.sql",)),
]
NO_FILTER = EntryFilter()


def index(tools: Any = TOOLS, vectors: ToolVectors | None = None) -> ToolIndex:
    return ToolIndex(tuple(tools), weigh_stems, vectors)


def names(found: Any) -> list[str]:
    return [hit.entry.name for hit in found.hits]


@for_each_row("asked", ["read_file", "read file", "readFile", "Read-File"])
def test_the_very_name_comes_first_however_it_is_joined(asked: str):
    found = index().search(asked, "keyword", NO_FILTER)
    assert names(found)[:2] == ["read_file", "read_file_lines"]
    assert found.hits[0].score == 1.0


def test_among_equals_the_preferred_comes_first_then_the_name():
    tools = [entry(name, "Ring a bell.") for name in ("q_one", "p_one", "r_one")]
    assert names(index(tools).search("bell", "keyword", NO_FILTER)) == ["p_one", "q_one", "r_one"]
    preferred = index(tools).search("bell", "keyword", NO_FILTER, lambda each: each.name != "r_one")
    assert names(preferred) == ["r_one", "p_one", "q_one"]


@for_each_row("strategy", SEARCH_STRATEGIES)
def test_filters_hold(strategy: Any):
    found = index().search("file", strategy, EntryFilter(risk_level_max="moderate"))
    assert "write_file" not in names(found)
    assert names(index().search("tables", strategy, EntryFilter(categories=("data",)))) == ["list_tables"]
    assert names(index().search("tables", strategy, EntryFilter(categories=("dat",)))) == []


def test_without_vectors_the_strategy_that_was_used_is_told():
    assert index().search("file", "semantic", NO_FILTER).strategy == "keyword"
    assert index().search("file", "hybrid", NO_FILTER).strategy == "keyword"


def test_synonyms_find_what_no_word_does():
    tools = [entry("create_directory", "Makes a directory."), entry("get_weather", "Tells the weather.")]
    assert names(index(tools).search("new folder", "hybrid", NO_FILTER)) == ["create_directory"]
    assert names(index(tools).search("new folder", "keyword", NO_FILTER)) == []


def test_a_question_finds_what_reads_before_what_writes():
    tools = [entry("create_comment", "Comments on a row."), entry("list_comments", "Lists the comments on a row.")]
    assert names(index(tools).search("What did Bob comment on the row?", "hybrid", NO_FILTER))[0] == "list_comments"
    assert names(index(tools).search("Please add a comment on the row.", "hybrid", NO_FILTER))[0] == "create_comment"


def test_a_tool_that_does_something_else_is_still_found():
    tools = [entry("delete_lamp", "Deletes a lamp."), *TOOLS]
    assert names(index(tools).search("look at the lamp", "hybrid", NO_FILTER))[0] == "delete_lamp"


def test_a_named_server_counts_unless_its_name_is_a_common_word():
    def first(server: str, others: str) -> str:
        named = ToolEntry("named", server, "find", description="Finds.")
        better = ToolEntry("better", "store", "find_row", description="Finds a row in a table.")
        more = [entry(f"tool_{at}", f"Counts {others}.") for at in range(9)]
        return (
            index([named, better, *more])
            .search(f"find a row in a table of {server}", "hybrid", NO_FILTER)
            .hits[0][0]
            .tool_id
        )

    assert first("acme", others="things") == "named"
    assert first("acme", others="acme") == "better"


def test_who_looks_for_something_finds_what_searches_before_what_gets_one():
    tools = [entry("get_note", "Gets a note."), entry("search_notes", "Searches notes."), *TOOLS]
    assert names(index(tools).search("Where did we note the shoe size?", "hybrid", NO_FILTER))[0] == "search_notes"


def test_a_question_that_no_tool_knows_words_of_goes_to_the_web():
    notes = entry("search_notes", "Searches notes.")
    tools = [entry("web_search", "Search the web and the news on the internet."), notes, *TOOLS]
    assert names(index(tools).search("Which tree is the tallest of Chile?", "hybrid", NO_FILTER))[0] == "web_search"
    assert names(index(tools).search("Climb the tallest of Chile!", "hybrid", NO_FILTER)) == []


def test_a_tool_that_takes_what_is_given_comes_first():
    takes = extract_parameter_texts({"properties": {"url": {"type": "string"}}})
    tools = [entry("alpha", "Reads a text."), entry("omega", "Reads a text.", parameters=takes), *TOOLS]
    assert names(index(tools).search("read https://a.test", "hybrid", NO_FILTER))[0] == "omega"


def test_a_misspelt_word_is_found_unless_a_tool_has_it():
    tools = [entry("list_tables", "Lists tables."), entry("list_cables", "Lists cables."), *TOOLS[:3]]
    assert names(index(tools).search("my tabels", "hybrid", NO_FILTER)) == ["list_tables"]
    assert names(index(tools).search("my cables", "hybrid", NO_FILTER)) == ["list_cables"]


def test_a_misspelt_word_is_compared_with_few_however_many_words_a_server_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.search.scores.MAX_ALIKE_WORDS", 10)
    compared: list[str] = []
    monkeypatch.setattr("defserve.search.scores.is_misspelling", lambda one, other: compared.append(other) or False)
    words = KeywordIndex([{f"w{at:05}": 1.0 for at in range(1_000)}])
    assert words.find_similar_stems("wrong0") == ()
    assert len(compared) == 10


def test_texts_that_an_argument_may_be_are_found():
    schema = {
        "properties": {"a": {"enum": ["walking", 3]}, "b": {"items": {"enum": ["driving"]}}, "c": {"enum": "odd"}}
    }
    tools = [entry("route", parameters=extract_parameter_texts(schema)), *TOOLS]
    for said in ("walking", "driving"):
        assert names(index(tools).search(said, "keyword", NO_FILTER)) == ["route"]


def test_the_gist_of_a_description_is_what_the_name_says():
    said = "Warning: this is dangerous!\nAsk first.\n\nPurpose:\n  Creates many rows. Use with care."
    assert gist(entry("create_rows", said)) == "Creates many rows."
    assert gist(entry("x", "First. Second.")) == "First."
    assert gist(entry("x")) == ""


def test_somebodys_name_is_not_embedded_unless_tools_have_it():
    pytest.importorskip("numpy")
    own = Letters()
    vectors = ToolVectors(lambda: own)
    assert vectors.wait_until_loaded(60)
    index([entry("read", "Reads Slack.")], vectors).search("what did Dana's friend say on Slack", "hybrid", NO_FILTER)
    assert "Dana" not in own.asked[-1]
    assert own.asked[-1].endswith("Slack")


def test_nothing_and_nonsense_find_nothing():
    for strategy in ("keyword", "hybrid", "semantic"):
        assert index().search("zygote xylophone", strategy, NO_FILTER).hits == []
        assert index([]).search("file", strategy, NO_FILTER).hits == []


@given(st.text(max_size=300), st.sampled_from(SEARCH_STRATEGIES))
def test_any_query_gives_scores_from_zero_to_one_best_first(query: str, strategy: Any):
    found = index().search(query, strategy, NO_FILTER)
    scores = [hit.score for hit in found.hits]
    assert all(0 < score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)


@for_each_row(
    "piece",
    [
        "a",
        "1",
        "1.",
        "a@",
        "AB-1 ",
        '"',
        "#a",
        "a.b",
        "é",
        "日",
        "readFile",
        " how many",
        "a Bob",
        "a-",
        "1.1,",
        " ~a.",
        "http",
    ],
)
def test_no_query_takes_long(piece: str):
    assert cpu_within(1, lambda: index().search(piece * 2_000, "hybrid", NO_FILTER))


def test_the_lists_that_an_index_keeps_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.search.scores.MAX_MERGED_POSTINGS", 100)
    words = KeywordIndex([{f"w{at % 7}": 1.0, "common": 0.5} for at in range(20)])
    for at in range(200):
        words.compute_scores([(f"w{at % 7}", ("common", f"x{at}"))])
    assert sum(len(places) for places, _ in words._merged.values()) <= 100 < MAX_MERGED_POSTINGS


def test_what_is_read_of_a_tool_is_bounded():
    schema = {"properties": {f"p{at}" * 100: {"description": "d" * 5000} for at in range(1000)}}
    assert sum(map(len, extract_parameter_texts(schema))) < 64 * 700
    assert extract_parameter_texts({"properties": ["odd"]}) == extract_parameter_texts({}) == ()
    assert len(normalize_labels([f"{at}" * 1000 for at in range(1000)])) <= 32


class Letters:
    """An operator's own embedder: how often each letter occurs."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Any) -> list[list[float]]:
        self.asked += texts
        return [[float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


def test_the_embedder_can_be_the_operators_own():
    pytest.importorskip("numpy")
    own = Letters()
    vectors = ToolVectors(lambda: own)
    assert vectors.wait_until_loaded(60)
    tools = [entry("aaa", "aaa"), entry("zzz", "zzz")]
    found = index(tools, vectors).search("zz zz", "semantic", NO_FILTER)
    assert (names(found)[0], found.strategy) == ("zzz", "semantic")
    index(tools, vectors).search("aa aa", "semantic", NO_FILTER)
    assert sum("zzz" in text for text in own.asked) == 2, "a tool is embedded once, however many indexes hold it"


@for_each_row("made", [[[1.0]], [[float("nan")] * 3] * 2, [1.0, 2.0], "text"])
def test_an_embedder_that_gives_nonsense_leaves_keywords(made: Any):
    pytest.importorskip("numpy")

    class Odd:
        def embed(self, texts: Any) -> Any:
            return made

    vectors = ToolVectors(Odd)
    assert vectors.wait_until_loaded(60)
    found = index(TOOLS, vectors).search("read a file", "hybrid", NO_FILTER)
    assert (names(found)[0], found.strategy) == ("read_file", "keyword")
    assert vectors.failed


def test_an_embedder_without_the_method_is_refused():
    with pytest.raises(UsageError, match="embed"):
        Search(embedder=object())  # type: ignore[arg-type]


@pytest.mark.skipif(find_spec("wordllama") is None, reason="needs the extra [semantic]")
def test_weights_are_read_from_the_package_and_nothing_is_asked_of_a_network(monkeypatch: pytest.MonkeyPatch):
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("something wants to connect")

    monkeypatch.setattr("socket.socket.connect", no_network)
    cat, dog, car = PackagedEmbedder().embed(["a cat", "a dog", "invoice"])
    assert (cat * dog).sum() > (cat * car).sum()


@pytest.mark.skipif(find_spec("wordllama") is None, reason="needs the extra [semantic]")
def test_servers_of_one_process_share_the_weights() -> None:
    discoveries = [ToolDiscovery(Search(), None, None) for _ in range(2)]  # type: ignore[arg-type]
    assert all(each._vectors.wait_until_loaded(60) for each in discoveries)
    one, other = (each._vectors._embedder for each in discoveries)
    assert one is not None and one is other


@pytest.mark.skipif(find_spec("wordllama") is not None, reason="the extra is installed")
def test_without_the_extra_nobody_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "defserve"):
        vectors = ToolVectors(PackagedEmbedder)
        assert not vectors.wait_until_loaded(10)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "pip install 'defserve[semantic]'" in record.getMessage()
