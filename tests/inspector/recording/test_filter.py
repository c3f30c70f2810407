"""The filter of the timeline: what fits, and what does not parse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.inspector.recording.recorder import RecordedMessage
from defserve.inspector.recording.timeline import CHOICES, MAX_FILTER_LENGTH, NAMES, InvalidFilter, parse_filter
from tests.effort import examples
from tests.rows import for_each_row

CALL: dict[str, Any] = {
    "seq": 3,
    "time": 1.0,
    "era": "stateless",
    "direction": "sent",
    "kind": "request",
    "method": "tools/call",
    "id": 7,
    "size": 10,
    "about": "list_Sensors",
}


def fits(text: str, **changes: Any) -> bool:
    return parse_filter(text).is_match(RecordedMessage(**{**CALL, **changes}))


@for_each_row(
    "text",
    [
        "",
        "  ",
        "sensors",
        "SENSORS",
        "tools sensors",
        "7",
        "method:tools",
        "tool:list",
        "id:7",
        "era:stateless",
        "dir:sent",
        "not:ping",
        "not:is:error",
        "not:not:tools",
        'method:"tools/call"',
        '"list_sensors"',
        "NOT:era:handshake",
    ],
)
def test_these_fit_a_call(text: str):
    assert fits(text)


@for_each_row(
    "text",
    [
        "thermo",
        "not:sensors",
        "sensors ping",
        "method:list",
        "tool:call",
        "id:77",
        "era:handshake",
        "dir:received",
        "is:error",
        "is:slow",
        "not:id:7",
        '"tools sensors"',
    ],
)
def test_these_do_not(text: str):
    assert not fits(text)


def test_tools_are_those_of_calls_alone():
    assert not fits("tool:list", method="prompts/get")


def test_errors_and_slow_answers_are_found():
    assert fits("is:error", error=-32602) and fits("is:error", error=True)
    assert fits("is:slow", ms=1000.0) and not fits("is:slow", ms=999.0)


def test_a_uri_is_a_word_and_no_name():
    assert fits("file:///beds", method="resources/read", about="file:///beds/1")


@for_each_row(
    ("text", "wrong", "told"),
    [
        ("ping metod:x", "metod:", "write method:"),
        ("zzzz:x", "zzzz:", "use one of method:, tool:"),
        ("era:old", "old", "use one of handshake, stateless"),
        ("not:dir:up", "up", "use one of sent, received"),
        ("a is:", "is:", "is:error"),
        ("not: a", "not:", "not:ping"),
        ('tool:"a b', '"a b', "end it"),
        ('"a"b c', "b", "put a blank between"),
        ('""', '""', "not:ping"),
    ],
)
def test_what_does_not_parse_is_told_with_its_place_and_a_fix(text: str, wrong: str, told: str):
    with pytest.raises(InvalidFilter) as caught:
        parse_filter(text)
    assert text[caught.value.start : caught.value.stop] == wrong
    assert told in caught.value.way and caught.value.problem in str(caught.value)


def test_a_very_long_filter_is_refused():
    with pytest.raises(InvalidFilter):
        parse_filter("x" * (MAX_FILTER_LENGTH + 1))


ALPHABET = st.sampled_from([*'ab7 \t:"/', "not:", *(f"{name}:" for name in NAMES), *sum(CHOICES.values(), ())])


@pytest.mark.slow
@given(st.lists(ALPHABET, max_size=14).map("".join) | st.text(max_size=40))
@settings(max_examples=examples(400))
def test_any_text_parses_or_is_told_with_a_place_in_it(text: str):
    try:
        terms = parse_filter(text).terms
    except InvalidFilter as problem:
        assert 0 <= problem.start < problem.stop <= max(len(text), 1)
        return
    # Terms are in their order, cover everything but blanks, and do not overlap.
    covered = "".join(text[term.start : term.stop] for term in terms)
    assert "".join(covered.split()) == "".join(text.split())
    assert all(term.start <= term.value_start < term.stop for term in terms)
    RecordedMessage(**CALL)
    parse_filter(text).is_match(RecordedMessage(**CALL))


WORDS = st.text("abc/_7", min_size=1, max_size=4)
TERMS = st.builds("{}:{}".format, st.sampled_from(["method", "tool", "id"]), WORDS) | WORDS


@pytest.mark.slow
@given(TERMS, TERMS, WORDS, WORDS)
@settings(max_examples=examples(200))
def test_not_turns_a_term_round_and_several_must_all_fit(one: str, other: str, method: str, about: str):
    assert fits(f"not:{one}", method=method, about=about) is not fits(one, method=method, about=about)
    both = fits(one, method=method, about=about) and fits(other, method=method, about=about)
    assert (
        fits(f"{one} {other}", method=method, about=about)
        is both
        is fits(f"{other}  {one}", method=method, about=about)
    )
