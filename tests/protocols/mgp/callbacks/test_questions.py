from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from defserve.errors import Declined, Dismissed, ToolError
from defserve.protocols.mcp.asking.client_features import ElicitationForm
from defserve.protocols.mgp.callbacks import CallbackQuestion, callback_questions
from tests.rows import for_each_row


class Guest(BaseModel):
    name: str = Field(description="As on the passport")
    nights: int
    room: Literal["single", "double"] = "single"
    extras: list[Literal["tea", "bath"]] = []
    breakfast: bool = Field(default=False, title="With breakfast")


def only(field: dict[str, Any], *, required: bool = True) -> CallbackQuestion:
    form = ElicitationForm({"value": field}, ["value"] if required else [], lambda content: content)
    ((_, question),) = callback_questions("Well?", form)
    return question


CONFIRMATION = {"type": "boolean"}
TEXT = {"type": "string"}
LABELLED = {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]}


@pytest.mark.req("MGP-13.4t")
def test_every_field_has_the_callback_that_suits_it_and_says_which_it_is():
    asked = [
        (q.type, q.message, list(q.options))
        for _, q in callback_questions("Check in", ElicitationForm.from_type(Guest))
    ]
    assert asked == [
        ("input", "Check in\nname: As on the passport", []),
        ("input", "Check in\nnights", []),
        ("selection", "Check in\nroom (optional)", ["single", "double"]),
        ("selection", "Check in\nextras (optional)", ["tea", "bath"]),
        ("confirmation", "Check in\nWith breakfast (optional)", ["confirm", "cancel"]),
    ]


@for_each_row("said", [True, "confirm", "Confirmed", " YES ", "true", "approve", "approved", "accepted"])
def test_only_clear_words_confirm(said: Any):
    assert only(CONFIRMATION).read_response(said) is True


@for_each_row("said", [False, "cancel", "no", "", "confirm?", "yes please", "not confirmed", "1", 1, ["yes"]])
def test_whatever_else_is_said_does_not_confirm(said: Any):
    assert only(CONFIRMATION).read_response(said) is False


def test_declining_a_confirmation_is_no_answer_to_it():
    with pytest.raises(Declined):
        only(CONFIRMATION).read_response("decline")


@for_each_row("field", [TEXT, LABELLED, {"type": "integer"}])
@for_each_row("said", ["cancel", "Decline"])
def test_cancel_declines_what_is_not_a_confirmation(field: dict[str, Any], said: str):
    with pytest.raises(Declined, match=r"the user declined: Well\?"):
        only(field).read_response(said)


@for_each_row("field", [CONFIRMATION, TEXT, LABELLED])
def test_null_dismisses_a_question_or_leaves_its_field_blank(field: dict[str, Any]):
    with pytest.raises(Dismissed):
        only(field).read_response(None)
    assert only(field, required=False).read_response(None) is None
    assert only(field, required=False).read_response("") is None


def test_an_empty_text_is_a_text_where_one_is_wanted():
    assert only(TEXT).read_response("") == ""


@for_each_row("said", ["Large", "l"])
def test_a_choice_is_made_by_label_or_by_value(said: str):
    assert list(only(LABELLED).options) == ["Small", "Large"]
    assert only(LABELLED).read_response(said) == "l"


def test_a_choice_is_read_as_the_option_that_was_shown():
    crossed = {"type": "string", "oneOf": [{"const": "a", "title": "b"}, {"const": "b", "title": "a"}]}
    assert only(crossed).read_response("b") == "a"


def test_labels_that_do_not_tell_choices_apart_are_not_shown():
    twins = {"type": "string", "enum": ["a", "b"], "enumNames": ["same", "same"]}
    assert list(only(twins).options) == ["a", "b"]


def test_an_option_called_cancel_can_be_chosen():
    assert only({"type": "string", "enum": ["cancel", "keep"]}).read_response("cancel") == "cancel"


@for_each_row("said", ["Huge", "small", 1, True, ["Small"], ""])
def test_what_was_not_offered_is_not_chosen(said: Any):
    with pytest.raises(ToolError, match="is none of Small, Large"):
        only(LABELLED).read_response(said)


def test_several_choices_come_as_a_list_or_alone():
    several = only({"type": "array", "items": {"anyOf": [{"const": "t", "title": "Tea"}, {"const": "b"}]}})
    assert list(several.options) == ["Tea", "b"]
    assert several.read_response(["Tea", "b"]) == ["t", "b"]
    assert several.read_response("t") == ["t"]
    with pytest.raises(ToolError):
        several.read_response(["Tea", "coffee"])


@for_each_row(
    ("said", "read"),
    [("7", 7), (" 7 ", 7), ("1.5", 1.5), (7, 7), ("NaN", "NaN"), ("true", "true"), ("7 nights", "7 nights")],
)
def test_a_number_is_read_from_its_text(said: Any, read: Any):
    found = only({"type": "number"}).read_response(said)
    assert (found, type(found)) == (read, type(read))


def test_a_text_that_looks_like_a_number_stays_a_text():
    assert only(TEXT).read_response("007") == "007"
