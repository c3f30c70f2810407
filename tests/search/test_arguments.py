"""What a query brings along: tools that take it come first, and as words it says nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.search.entries import ToolEntry, extract_parameter_texts, split_words
from defserve.search.ranking import Takers, without_data
from tests.rows import for_each_row

TAKES = ["url", "recipient", "issue_key", "filePath", "channel_id", "latitude", "start_time", "commit", "colour"]


def tool(parameter: str) -> ToolEntry:
    return ToolEntry(parameter, "s", parameter, parameters=extract_parameter_texts({"properties": {parameter: {}}}))


def takers(query: str) -> list[str]:
    shares = Takers([*map(tool, TAKES)]).score_tools(query)
    return [name for name, share in zip(TAKES, shares, strict=True) if share > 0]


@for_each_row(
    ("query", "takes"),
    [
        ("what does https://news.test/a say", "url"),
        ("read example.org for me", "url"),
        ("write to ann@mail.test", "recipient"),
        ("close OPS-12", "issue_key"),
        ("open notes.txt", "filePath"),
        ("say it in #general", "channel_id"),
        ("which street is at 48.85, 2.29", "latitude"),
        ("which street is at 46.02 north, 7.75 east", "latitude"),
        ("call her at 3 pm", "start_time"),
        ("what did 3fa9c1d0 change", "commit"),
    ],
)
def test_tools_that_take_what_is_given_are_known(query: str, takes: str):
    assert takers(query) == [takes]


@for_each_row("query", ["", "paint it red", "He left. She stayed.", "version 4", "a decade", "c#"])
def test_plain_words_give_nothing(query: str):
    assert takers(query) == []


def test_what_every_tool_takes_tells_nothing_and_what_few_take_tells_most():
    every = Takers([tool("url"), tool("url")]).score_tools("see https://a.test")
    few = Takers([tool("url"), *map(tool, TAKES[2:])]).score_tools("see https://a.test")
    assert every == [0.0, 0.0]
    assert few[0] > 0.5
    assert Takers([]).score_tools("see https://a.test") == []
    assert Takers([tool("url")]).score_tools("see https://a.test") == [1.0]


@given(st.text(max_size=200))
def test_any_query_keeps_something_to_search_for(query: str):
    assert bool(split_words(without_data(query))) == bool(split_words(query))
    assert all(share >= 0 for share in Takers([tool("url"), tool("path")]).score_tools(query))


@for_each_row(
    ("query", "left"),
    [
        ('replace "old name" by "new name" everywhere', "replace by everywhere"),
        ("what does ticket ABC-123 say", "what does ticket say"),
        ("move 20 rows to 14:30", "move rows to"),
        ('"all of it"', "all of it"),
    ],
)
def test_data_in_a_query_says_nothing_of_the_tool(query: str, left: str):
    assert split_words(without_data(query)) == left.split()
