"""Matchers, and what counts as the right answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.tooling.evals.cases import collect_suite_warnings, parse_suite
from defserve.tooling.evals.judging import (
    MISSING,
    Judgement,
    ModelAnswer,
    ModelCall,
    ToolFacts,
    find_mismatch,
    judge_turn,
)
from tests.rows import for_each_row

TEXT = {"type": "object", "properties": {"title": {"type": "string"}, "limit": {"type": "integer", "default": 10}}}
TOOLS = {name: {"name": name, "inputSchema": TEXT} for name in ("find", "lend", "forget")}
FACTS = ToolFacts(TOOLS, frozenset({"find"}))


@pytest.mark.parametrize(
    ("expected", "actual", "fits"),
    [
        (1, 1.0, True),
        (1, True, False),
        (True, 1, False),
        ("no", "no", True),
        ("a", "A", False),
        ("e\u0301", "\u00e9", True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": {"b": {"min": 3}}}, {"a": {"b": 2}}, False),
        ([1, {"a": 1}], [1, {"a": 1, "b": 2}], True),
        ([1], [1, 2], False),
        ({"one_of": [1, {"contains": "x"}]}, "a X b", True),
        ({"one_of": [1, 2]}, 3, False),
        ({"contains": "lem"}, "Stanisław LEM", True),
        ({"contains": 2}, [1, 2], True),
        ({"contains": "a"}, 3, False),
        ({"like": "New-York, NY"}, "new york ny", True),
        ({"like": "x"}, "y", False),
        ({"min": 1, "max": 3}, 3, True),
        ({"min": 1}, True, False),
        ({"type": "integer"}, 2.0, True),
        ({"type": "integer"}, 2.5, False),
        ({"type": "null"}, None, True),
        ({"absent": True}, MISSING, True),
        ({"absent": True}, 1, False),
        ("x", MISSING, False),
    ],
)
def test_a_value_fits_or_not(expected: Any, actual: Any, fits: bool) -> None:
    assert (find_mismatch(expected, actual) is None) is fits


def test_the_schemas_default_counts_as_absent() -> None:
    assert find_mismatch({"absent": True}, 10, default=10) is None


def judge(expect: str, *calls: tuple[str, Any], text: str = "", stop: Any = "end", more: str = "") -> Judgement:
    suite = parse_suite(f"cases:\n - {{name: a, prompt: b, expect: {expect}{more}}}\n", Path("s.eval.yaml"))
    case = suite.cases[0]
    answer = ModelAnswer(text, tuple(ModelCall(name, arguments) for name, arguments in calls), stop)
    return judge_turn(case.turns[0].expect, case, [answer], FACTS, "turn it on")


def test_all_parallel_calls_are_read() -> None:
    assert judge("lend", ("find", {}), ("lend", {})).passed
    assert not judge("find", ("find", {}), ("lend", {})).passed
    assert judge("{all: [lend, find]}", ("find", {}), ("lend", {})).passed
    assert not judge("{in_order: [lend, find]}", ("find", {}), ("lend", {})).passed
    assert judge("{in_order: [find, lend]}", ("find", {}), ("lend", {})).passed
    assert not judge("{all: [lend, lend]}", ("lend", {})).passed
    assert judge("{any: [forget, lend]}", ("lend", {})) == (True, "lend", "")


def test_an_invented_argument_fails() -> None:
    found = judge("lend", ("lend", {"titel": "Solaris"}))
    assert (found.passed, found.called) == (False, "lend")
    assert "titel: unknown; did you mean 'title'?" in found.reason


def test_an_invented_tool_is_unknown_and_the_nearest_is_named() -> None:
    found = judge("lend", ("lendd", {}))
    assert (found.passed, found.called) == (False, "unknown")
    assert "the nearest is lend" in found.reason


def test_a_forbidden_tool_fails_whatever_else_is_right() -> None:
    assert judge("lend", ("lend", {}), ("find", {}), more=", forbid: [find]") == (
        False,
        "find",
        "find is forbidden here",
    )


@pytest.mark.parametrize("expect", ["none", "lend"])
@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", '<tool_call>{"a": 1}</tool_call>', "[TOOL_CALLS] x"),
        *('Sure: {"name": "lend", "arguments": {}}', '```json\n{"name": "greet", "arguments": {}}\n```'),
        '[{"function": "greet", "parameters": {}}]',
    ],
)
def test_what_is_no_answer_is_malformed_also_if_none_is_expected(expect: str, text: str) -> None:
    found = judge(expect, text=text)
    assert (found.passed, found.called) == (False, "malformed")
    assert "turn it on" in found.reason


def test_json_that_is_no_call_is_an_answer() -> None:
    assert judge("none", text='{"name": "Ada", "born": 1815}').passed
    assert judge("none", text='Such as {"name": "greet", "arguments": {}}').passed


def test_arguments_that_are_no_object_are_malformed() -> None:
    assert judge("lend", ("lend", None)).called == "malformed"


def test_no_call_at_all_is_no_pass() -> None:
    assert judge("lend", text="Sure!") == (False, "none", "lend was not called")
    assert judge("none", text="Good morning!").passed


@pytest.mark.parametrize("stop", ["refused", "filtered", "length"])
def test_refusal_filter_and_length_have_columns_of_their_own(stop: str) -> None:
    assert judge("lend", text="no", stop=stop)[:2] == (False, stop)
    assert judge("lend", text="no", stop=stop, more=", refusal: ok").passed is (stop != "length")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cases: [{name: a, promt: b, expect: none}]", "'promt' means nothing"),
        ("cases: [{name: a, prompt: b}]", "expects nothing"),
        ("cases: [{name: a, expect: none}]", "asks nothing"),
        ("cases: [{prompt: b, expect: none}]", "no name"),
        ("cases: [{name: a, prompt: b, expect: none}, {name: a, prompt: c, expect: none}]", "two cases"),
        ("cases: [{name: a, prompt: b, expect: {x: {}, y: {}}}]", "not a call"),
        ("cases: [{name: a, prompt: b, expect: {x: {t: {type: text}}}}]", "type is 'text'"),
        ("cases: [{name: a, prompt: b, turns: [{expect: x}, {expect: y}]}]", "no `result`"),
        ("runs: 0\ncases: []", "runs is 0"),
        ("least: 2\ncases: []", "least is 2"),
        ("a", "holds no cases"),
        ("cases: [&a x, *a]", "alias"),
    ],
)
def test_a_wrong_suite_is_refused_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_suite(text, Path("s.eval.yaml"))


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ("lnd", "did you mean 'lend'"),
        ("{lend: {titel: x}}", "did you mean 'title'"),
        ("{lend: {title: {contain: x}}}", "'contain' is no matcher"),
    ],
)
def test_names_are_checked_before_any_request(expect: str, problem: str) -> None:
    suite = parse_suite(f"cases: [{{name: a, prompt: b, expect: {expect}}}]", Path("s.eval.yaml"))
    with pytest.raises(UsageError, match=problem):
        collect_suite_warnings(suite, TOOLS)


def test_yaml_words_stay_texts() -> None:
    suite = parse_suite("cases: [{name: a, prompt: b, expect: {lend: {title: no}}}]", Path("s.eval.yaml"))
    assert suite.cases[0].turns[0].expect.calls[0].arguments == {"title": "no"}


def test_json_lines_are_cases_too() -> None:
    suite = parse_suite('{"name": "a", "prompt": "b", "expect": "none"}\n\n', Path("s.eval.jsonl"))
    assert [case.name for case in suite.cases] == ["a"]


def test_a_text_in_json_lines_may_hold_any_character_that_json_does() -> None:
    suite = parse_suite('{"name": "a\u2028b\x85c", "prompt": "b", "expect": "none"}\r\n', Path("s.eval.jsonl"))
    assert [case.name for case in suite.cases] == ["a\u2028b\x85c"]


@for_each_row("deep", ["[" * 30 + "]" * 30, '{"a":' * 30 + "1" + "}" * 30, "[" * 200_000])
def test_deep_json_lines_are_an_error_like_deep_yaml(deep: str) -> None:
    with pytest.raises(UsageError, match="nested deeper than|not JSON"):
        parse_suite(f'{{"name": "a", "prompt": "b", "expect": {{"t": {{"a": {deep}}}}}}}', Path("s.eval.jsonl"))


@for_each_row("messages", ["5", "true", "1.5", "{user: hi}", "hi"])
def test_messages_that_are_no_list_are_an_error(messages: str) -> None:
    with pytest.raises(UsageError, match="messages|asks nothing"):
        parse_suite(f"cases: [{{name: a, messages: {messages}, expect: none}}]", Path("s.eval.yaml"))


def test_a_prompt_that_names_the_tool_is_a_warning() -> None:
    tools = {"find_books": {"name": "find_books"}}
    suite = parse_suite("cases: [{name: a, prompt: Use find_books, expect: find_books}]", Path("s.eval.yaml"))
    assert "the prompt names the tool find_books" in collect_suite_warnings(suite, tools)[0]
