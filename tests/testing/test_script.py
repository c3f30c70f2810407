from __future__ import annotations

from typing import Any

from defserve.client import Cancel
from defserve.testing.client import AnswerScript
from tests.rows import for_each_row

FORM: dict[str, Any] = {"properties": {"name": {}, "age": {}}}


def asked(script: AnswerScript, schema: dict[str, Any]) -> Any:
    ask = script.answers().ask
    assert ask is not None
    return ask("Who?", schema)


@for_each_row("value", ["tea", True, 0, lambda message, schema: message])  # pyright: ignore[reportUnknownLambdaType]
def test_a_value_alone_answers_a_question_with_one_field(value: Any):
    script = AnswerScript()
    script.prepared.append(value)
    assert asked(script, {"properties": {"value": {}}}) == {"value": "Who?" if callable(value) else value}
    assert script.take_complaint() is None


def test_a_value_alone_for_a_form_with_more_fields_fails_the_test_and_names_them():
    script = AnswerScript()
    script.prepared.append(True)
    assert asked(script, FORM) is Cancel
    complaint = str(script.take_complaint())
    assert "the server asked 'Who?': the question has the fields name, age" in complaint
    assert "fix: answer with {'name': …, 'age': …}" in complaint
