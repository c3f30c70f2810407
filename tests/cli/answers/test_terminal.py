from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from defserve.cli.terminal_answers import agree, fill_in
from defserve.client import Accept, Cancel, Decline
from tests.rows import for_each_row

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Your name"},
        "age": {"type": "integer"},
        "keep": {"type": "boolean", "default": True},
        "size": {"enum": ["s", "m"]},
    },
    "required": ["name"],
}


def typing(*lines: str) -> Callable[[], str]:
    """A person who types these lines, then closes the terminal."""
    left = iter(lines)
    return lambda: next(left, "")


def test_every_field_is_asked_for_and_read_as_its_type(capsys: pytest.CaptureFixture[str]):
    answer = fill_in("Who are you?", SCHEMA, typing("Ann\n", "7\n", "y\n", "m\n"))
    assert answer == {"name": "Ann", "age": 7, "keep": True, "size": "m"}
    out, err = capsys.readouterr()
    assert out == ""
    assert "Who are you?" in err and "Your name (string)" in err and "keep [Y/n]" in err and "s | m" in err


def test_empty_optional_fields_are_left_out():
    assert fill_in("?", SCHEMA, typing("Ann\n", "\n", "\n", "\n")) == {"name": "Ann"}


REQUIRED = [
    {"type": "string"},
    {"type": "string", "minLength": 2},
    {"type": "string", "format": "email"},
    {"type": "integer"},
    {"type": "number", "minimum": 1},
    {"type": "array"},
    {"enum": ["s", "m"]},
    {"enum": [1, 2]},
    {"type": "string", "oneOf": [{"const": "s", "title": "Small"}]},
    {"type": "array", "items": {"enum": ["s", "m"]}},
    {"type": "array", "items": {"anyOf": [{"const": "s", "title": "Small"}]}},
    {"type": "unknown"},
    {},
]


@pytest.mark.parametrize("field", REQUIRED, ids=range(len(REQUIRED)))
@pytest.mark.parametrize("empty", ["\n", "  \n", "\t\n"])
def test_enter_at_a_required_question_asks_again_and_says_how_to_decline(
    field: dict[str, object], empty: str, capsys: pytest.CaptureFixture[str]
):
    form = {"properties": {"it": field}, "required": ["it"]}
    assert fill_in("?", form, typing(*[empty] * 5, "/decline\n")) is Decline
    told = capsys.readouterr().err
    assert told.count("an answer is needed") == 5 and "/decline" in told and "Ctrl-D" in told
    assert fill_in("?", form, typing(empty)) is Cancel, "the end of input still dismisses it"


def test_after_enter_the_answer_that_is_typed_counts():
    assert fill_in("?", SCHEMA, typing("\n", "Ann\n", "\n", "\n", "\n")) == {"name": "Ann"}


def test_empty_lines_without_an_end_are_not_read_for_ever():
    form = {"properties": {"it": {"type": "string"}}, "required": ["it"]}
    assert fill_in("?", form, lambda: "\n") is Cancel


@for_each_row("field", [{"type": "string"}, {"type": "boolean"}, {"type": "integer"}, {"enum": ["a"]}])
@for_each_row("is_required", [True, False])
def test_every_question_can_be_declined_by_the_same_word(field: dict[str, object], is_required: bool):
    form = {"properties": {"it": field, "b": {"type": "string"}}, "required": ["it"] if is_required else []}
    assert fill_in("?", form, typing(" /Decline \n")) is Decline


def test_enter_at_a_required_question_with_a_default_gives_the_default():
    form = {"properties": {"size": {"enum": ["s", "m"], "default": "m"}}, "required": ["size"]}
    assert fill_in("?", form, typing("\n")) == {"size": "m"}


def test_who_types_nothing_that_fits_is_told_that_the_question_is_dismissed(capsys: pytest.CaptureFixture[str]):
    form = {"properties": {"value": {"type": "integer"}}, "required": ["value"]}
    assert fill_in("?", form, typing("a\n", "b\n", "c\n")) is Cancel
    assert "dismissed" in capsys.readouterr().err


def test_the_end_of_input_dismisses():
    assert fill_in("?", SCHEMA, typing("Ann\n")) is Cancel


@for_each_row(("line", "decision"), [("y\n", Accept), ("YES\n", Accept), ("n\n", Decline), ("", Cancel)])
def test_a_question_without_fields_is_a_yes_or_no(line: str, decision: object):
    assert agree("Sure?", typing(line)) is decision
    assert fill_in("Sure?", {"type": "object", "properties": {}}, typing(line)) is decision


@pytest.mark.parametrize(("line", "answer"), [("y\n", True), ("No\n", False)])
def test_a_lone_yes_or_no_is_asked_on_one_line(line: str, answer: bool, capsys: pytest.CaptureFixture[str]):
    form = {"properties": {"value": {"type": "boolean", "title": "Confirm"}}, "required": ["value"]}
    assert fill_in("Sure?", form, typing(line)) == {"value": answer}
    assert capsys.readouterr().err == "\nSure? [y/n] "


@for_each_row("field", [{}, {"default": True}, {"default": False}])
@for_each_row("required", [[], ["value"]])
def test_enter_neither_agrees_nor_declines(field: dict[str, Any], required: list[str]):
    form = {"properties": {"value": {"type": "boolean", **field}}, "required": required}
    assert fill_in("Sure?", form, typing("\n", "\n", "y\n")) == {"value": True}
    assert fill_in("Sure?", form, typing("\n", "n\n")) == {"value": False}
    assert fill_in("Sure?", form, typing("\n")) is Cancel
    assert agree("Sure?", typing("\n", "y\n")) is Accept


@pytest.mark.parametrize(
    ("field", "wrong", "right", "value", "told"),
    [
        ({"type": "boolean"}, "perhaps\n", "y\n", True, "type y or n"),
        ({"type": "integer"}, "1.5\n", "2\n", 2, "type a whole number"),
        ({"type": "number"}, "true\n", "2.5\n", 2.5, "type a number"),
        ({"type": "array"}, "one\n", '["one"]\n', ["one"], "type a list"),
        ({"enum": ["s", "m"]}, "xl\n", "m\n", "m", "type one of s, m"),
        ({"oneOf": [{"const": "s"}]}, "xl\n", "s\n", "s", "type one of s"),
    ],
)
def test_what_is_not_understood_is_asked_again(
    field: dict[str, object], wrong: str, right: str, value: object, told: str, capsys: pytest.CaptureFixture[str]
):
    form = {"properties": {"it": field, "note": {"type": "string"}}, "required": ["it"]}
    assert fill_in("?", form, typing(wrong, wrong, right, "\n")) == {"it": value}
    assert capsys.readouterr().err.count(told) == 2


@for_each_row(
    ("field", "hint", "wrong", "right", "value", "told"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "(integer, 1 to 9):", "10", "9", 9, "type 1 to 9"),
        ({"type": "number", "minimum": 0}, "(number, at least 0):", "-1", "0", 0, "type at least 0"),
        ({"type": "number", "exclusiveMinimum": 0}, "(number, more than 0):", "0", "0.5", 0.5, "type more than 0"),
        ({"type": "number", "exclusiveMaximum": 1}, "(number, less than 1):", "1", "0.5", 0.5, "type less than 1"),
        ({"type": "integer", "maximum": 3}, "(integer, at most 3):", "4", "3", 3, "type at most 3"),
        ({"type": "string", "maxLength": 1}, "(string, at most 1 character):", "ab", "a", "a", "at most 1 character"),
        ({"type": "string", "minLength": 2}, "(string, at least 2 characters):", "a", "ab", "ab", "at least 2"),
        ({"type": "string", "minLength": 2, "maxLength": 2}, "(string, 2 characters):", "abc", "ab", "ab", "type 2"),
        (
            {"type": "string", "minLength": 1, "maxLength": 3},
            "(string, 1 to 3 characters):",
            "abcd",
            "a",
            "a",
            "1 to 3",
        ),
        ({"type": "string", "format": "email"}, "(string, an email address):", "ann", "a@b", "a@b", "an email address"),
        ({"type": "string", "format": "date"}, "a date such as", "today", "2026-01-02", "2026-01-02", "type a date"),
        (
            {"type": "array", "maxItems": 1, "items": {"enum": ["a", "b"]}},
            "(a | b, at most 1 item):",
            "1, 2",
            "b",
            ["b"],
            "at most 1 item",
        ),
        # A server may send anything: what is no bound is not shown.
        ({"type": "integer", "minimum": "x", "maximum": True}, "(integer):", "x", "7", 7, "type a whole number"),
    ],
)
def test_bounds_are_shown_and_kept(
    field: dict[str, object],
    hint: str,
    wrong: str,
    right: str,
    value: object,
    told: str,
    capsys: pytest.CaptureFixture[str],
):
    form = {"properties": {"value": field}, "required": ["value"]}
    assert fill_in("?", form, typing(f"{wrong}\n", f"{right}\n")) == {"value": value}
    said = capsys.readouterr().err
    assert hint in said and told in said.partition("\n  ")[2]


@for_each_row(
    ("line", "values", "chosen"),
    [
        ("2", ["red", "green"], "green"),
        ("green", ["red", "green"], "green"),
        ("2", ["3", "2"], "2"),
        ("10", [5, 10, 15], 10),
    ],
)
def test_a_choice_without_a_label_is_its_value_or_its_number(line: str, values: list[object], chosen: object):
    assert fill_in("?", {"properties": {"value": {"enum": values}}}, typing(f"{line}\n")) == {"value": chosen}


@for_each_row(
    ("line", "values", "told"),
    [
        ("3", ["red", "green"], "type one of red, green, or its number"),
        ("0000000002", ["red", "green"], "type one of red, green, or its number"),
        ("2", [5, 10, 15], "type one of 5, 10, 15\n"),
        ("1", ["10 kg", "20 kg"], "type one of 10 kg, 20 kg\n"),
    ],
)
def test_a_number_that_could_mean_something_else_is_asked_again(
    line: str, values: list[object], told: str, capsys: pytest.CaptureFixture[str]
):
    assert fill_in("?", {"properties": {"value": {"enum": values}}}, typing(f"{line}\n")) is Cancel
    assert told in capsys.readouterr().err


def test_a_question_that_is_never_understood_is_dismissed():
    form = {"properties": {"value": {"type": "boolean"}}}
    assert fill_in("?", form, typing("a\n", "b\n", "c\n", "y\n")) is Cancel


CHOICE = {"type": "string", "oneOf": [{"const": "s", "title": "A single room"}, {"const": "d", "title": "Two beds"}]}
OLDER = {"type": "string", "enum": ["s", "d"], "enumNames": ["A single room", "Two beds"]}


@pytest.mark.parametrize("field", [CHOICE, OLDER])
@pytest.mark.parametrize("line", ["2\n", "d\n", "Two beds\n", "two beds\n"])
def test_labels_are_shown_as_a_menu_and_a_choice_is_its_number_value_or_label(
    field: dict[str, object], line: str, capsys: pytest.CaptureFixture[str]
):
    form = {"properties": {"value": field}, "required": ["value"]}
    assert fill_in("Which room?", form, typing(line)) == {"value": "d"}
    assert capsys.readouterr().err == "\nWhich room?\n    1. A single room\n    2. Two beds\n  (1-2): "


def test_a_number_that_is_not_in_the_menu_is_asked_for_again(capsys: pytest.CaptureFixture[str]):
    form = {"properties": {"value": CHOICE}, "required": ["value"]}
    assert fill_in("Which room?", form, typing("3\n", "0\n", "1\n")) == {"value": "s"}
    assert capsys.readouterr().err.count("type a number from 1 to 2") == 2


def test_a_value_that_looks_like_a_number_is_the_value():
    field = {"type": "string", "oneOf": [{"const": "2", "title": "two"}, {"const": "1", "title": "one"}]}
    assert fill_in("?", {"properties": {"value": field}}, typing("1\n")) == {"value": "1"}


def test_several_labels_can_be_chosen(capsys: pytest.CaptureFixture[str]):
    field = {"type": "array", "items": {"anyOf": [{"const": c, "title": c.upper()} for c in "abc"]}}
    form = {"properties": {"letters": field}, "required": ["letters"]}
    assert fill_in("Which?", form, typing("1, c\n")) == {"letters": ["a", "c"]}
    assert "  letters\n    1. A\n" in capsys.readouterr().err
    assert fill_in("Which?", form, typing('["a"]\n')) == {"letters": ["a"]}


def test_a_described_field_keeps_its_name(capsys: pytest.CaptureFixture[str]):
    field = {"type": "string", "description": "Which one do you want?"}
    fill_in("?", {"properties": {"room": field, "bed": {"type": "string", "title": "Bed"}}}, typing("a\n", "b\n"))
    assert capsys.readouterr().err == "\n?\n  room – Which one do you want? (string):   Bed (string): "


def test_what_a_server_asks_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]):
    bad = "\x1b[2J\u202e"
    field = {"type": "string", "title": bad, "description": bad, "oneOf": [{"const": bad, "title": f"{bad}!"}]}
    fill_in(bad, {"properties": {bad: field, "b": {"enum": [bad]}, "c": {"type": bad, "default": bad}}}, typing("1\n"))
    agree(bad, typing("y\n"))
    told = capsys.readouterr().err
    assert "\x1b" not in told and "\u202e" not in told
