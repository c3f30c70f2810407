from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import PeerError, Refused, UsageError
from defserve.inspector.protocol import BadMessage, PageRequest, describe_error_for_page, parse_page_message
from tests.rows import for_each_row


def _nowhere(part: object) -> None:
    pass


def test_a_request_has_an_id_a_verb_and_arguments():
    assert parse_page_message('{"id": 3, "do": "tools.call", "with": {"tool": "a"}}') == (
        3,
        "tools.call",
        {"tool": "a"},
    )
    assert parse_page_message('{"id": 3, "do": "hello"}') == (3, "hello", {})
    # An argument may have any name.
    named = {"id": "a", "do": "b", "with": 1}
    assert parse_page_message(json.dumps({"id": 3, "do": "x", "with": named})) == (3, "x", named)
    assert parse_page_message('{"do": "cancel", "of": 3}') == (None, "cancel", {"of": 3})


@for_each_row(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"do": 1}',
        '{"do": "x"}',
        '{"id": true, "do": "x"}',
        '{"id": "1", "do": "x"}',
        "NaN",
        "{",
        '{"id": 1, "do": "x", "with": 1}',
    ],
)
def test_anything_else_is_refused(text: str):
    with pytest.raises(BadMessage):
        parse_page_message(text)


@given(st.text())
def test_no_text_breaks_the_reader(text: str):
    try:
        parse_page_message(text)
    except BadMessage:
        pass


def test_arguments_are_checked_for_their_type():
    request = PageRequest({"name": "a", "number": 3, "yes": True, "object": {"b": 1}}, _nowhere)
    assert (request.get_text("name"), request.get_integer("number"), request.get_object("object")) == ("a", 3, {"b": 1})
    assert (request.get_text("other", ""), request.get_integer("other", 0), request.get_object("other")) == ("", 0, {})
    for wrong in (
        lambda: request.get_text("number"),
        lambda: request.get_integer("yes"),
        lambda: request.get_object("name"),
    ):
        with pytest.raises(BadMessage):
            wrong()


HUGE = (10**400, -(10**400), 2**53 + 1)


@for_each_row("number", [*HUGE, 1e300, float("inf"), float("nan"), True, "1", [1]])
def test_a_number_is_one_that_a_page_can_have(number: object):
    request = PageRequest({"it": number}, _nowhere)
    for read_it in (request.get_integer, request.get_number):
        with pytest.raises(BadMessage):
            read_it("it")
    assert PageRequest({"it": 1.5}, _nowhere).get_number("it") == 1.5 and request.get_number("other") is None
    assert PageRequest({"it": -(2**53)}, _nowhere).get_integer("it") == -(2**53)


@for_each_row("id", HUGE)
def test_an_id_is_one_that_a_page_can_have(id: int):
    with pytest.raises(BadMessage):
        parse_page_message(f'{{"id": {id}, "do": "x"}}')


def test_an_error_is_told_with_its_fix_code_and_data():
    assert describe_error_for_page(UsageError("no", fix="do it")) == {"message": "no", "fix": "do it"}
    assert describe_error_for_page(PeerError("no", code=7, data={"fix": "so"})) == {
        "message": "no",
        "code": 7,
        "fix": "so",
        "data": {"fix": "so"},
    }
    assert describe_error_for_page(Refused("no", data={"a": 1})) == {"message": "no", "data": {"a": 1}}


def test_of_an_unexpected_error_only_the_class_is_told():
    assert (
        "secret" not in str(describe_error_for_page(ValueError("secret")))
        and "ValueError" in describe_error_for_page(ValueError("secret"))["message"]
    )
