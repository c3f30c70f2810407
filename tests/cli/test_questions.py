from __future__ import annotations

from collections.abc import Callable

import pytest

from defserve.cli.questions import agree, fill_in
from defserve.host import Accept, Cancel, Decline

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
    assert "Who are you?" in err and "Your name (string)" in err and "empty for true" in err and "s | m" in err


def test_empty_optional_fields_are_left_out():
    assert fill_in("?", SCHEMA, typing("Ann\n", "\n", "\n", "\n")) == {"name": "Ann"}


def test_an_empty_required_field_declines():
    assert fill_in("?", SCHEMA, typing("\n")) is Decline


def test_the_end_of_input_dismisses():
    assert fill_in("?", SCHEMA, typing("Ann\n")) is Cancel


@pytest.mark.parametrize(("line", "decision"), [("y\n", Accept), ("YES\n", Accept), ("\n", Decline), ("", Cancel)])
def test_a_question_without_fields_is_a_yes_or_no(line: str, decision: object):
    assert agree("Sure?", typing(line)) is decision
    assert fill_in("Sure?", {"type": "object", "properties": {}}, typing(line)) is decision
