"""Text to words: names are split, endings go, and no text of a peer costs much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.search.entries import (
    MAX_INDEXED_TEXT_LENGTH,
    MAX_WORD_LENGTH,
    is_misspelling,
    split_words,
    stem_word,
    stem_words,
)
from defserve.search.vocabulary import SYNONYMS, expand_phrases
from tests.rows import for_each_row


@for_each_row(
    ("text", "found"),
    [
        ("read_file", ["read", "file"]),
        ("readHTMLFile2", ["read", "html", "file", "2"]),
        ("API-post-page", ["api", "post", "page"]),
        ("mgp.tools.call", ["mgp", "tools", "call"]),
        ("Führe aus!", ["führe", "aus"]),
        ("Redisのキー", ["redis", "のキ", "キー"]),
        ("图", ["图"]),
        ("ꀀA", ["ꀀ", "a"]),
        ("", []),
    ],
)
def test_text_is_split_where_names_are_joined(text: str, found: list[str]):
    assert split_words(text) == found


@for_each_row(
    "same",
    [
        "create creates created creating creation",
        "delete deletes deleted deleting deletion",
        "file files filing",
        "query queries queried",
        "stop stops stopped stopping",
        "deploy deploys deployed deployment deployments",
        "answer answers answered answering",
        "reply replies replied replying",
        "filter filters filtered",
        "attendee attendees",
        "watch watcher watchers watching",
        "pay pays payment payments",
    ],
)
def test_forms_of_a_word_have_one_stem(same: str):
    assert len({stem_word(word) for word in same.split()}) == 1


@for_each_row("word", ["status", "class", "axis", "as", "go", "redis", "日本"])
def test_words_that_only_look_like_forms_stay(word: str):
    assert stem_word(word) == word


@for_each_row(
    ("one", "other"),
    [
        ("notion", "note"),
        ("station", "state"),
        ("comment", "come"),
        ("author", "auth"),
        ("news", "new"),
        ("app", "apply"),
    ],
)
def test_other_words_have_other_stems(one: str, other: str):
    assert stem_word(one) != stem_word(other)


def test_stop_words_go_unless_there_is_nothing_else():
    assert stem_words(split_words("please show me all the files")) == [stem_word("show"), stem_word("files")]
    assert stem_words(split_words("what is it")) == ["what", "is", "it"]


@given(st.text())
def test_any_text_gives_short_words_in_lower_case(text: str):
    assert all(0 < len(word) <= MAX_WORD_LENGTH and word == word.lower() for word in split_words(text))
    assert len(stem_words(split_words(text))) <= len(split_words(text))


def test_a_long_text_is_cut():
    assert len(split_words("a " * MAX_INDEXED_TEXT_LENGTH)) == MAX_INDEXED_TEXT_LENGTH // 2
    assert split_words("x" * 10_000) == ["x" * MAX_WORD_LENGTH]


@for_each_row(
    ("query", "root"),
    [
        ("my PR", "pull"),
        ("how many are there", "count"),
    ],
)
def test_phrases_stand_for_words_of_tools(query: str, root: str):
    assert stem_word(root) in expand_phrases(query)


def test_synonyms_go_both_ways_and_never_name_themselves():
    for word, others in SYNONYMS.items():
        assert word not in others
        assert all(word in SYNONYMS[other] for other in others)


@for_each_row("wrong", ["calndar", "calenddar", "calemdar", "claendar", "calenda", "calendars"])
def test_a_letter_that_is_missing_wrong_or_swapped_makes_a_word_misspelt(wrong: str):
    assert is_misspelling(wrong, "calendar")
    assert is_misspelling("calendar", wrong)


@for_each_row("other", ["clndar", "candelar", "calendar__", "", "lacendra"])
def test_two_letters_make_another_word(other: str):
    assert not is_misspelling(other, "calendar")


@given(st.text(max_size=8), st.text(max_size=8))
def test_any_two_texts_are_misspelt_both_ways_or_not_at_all(one: str, other: str):
    assert is_misspelling(one, other) == is_misspelling(other, one)
    if is_misspelling(one, other):
        assert abs(len(one) - len(other)) <= 1
