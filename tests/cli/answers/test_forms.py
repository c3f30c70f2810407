"""A form of wrong types is refused in a sentence, and the question is cancelled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.cli.terminal_answers import PreparedAnswers, fill_in, form_problem
from defserve.client import Cancel

pytestmark = pytest.mark.anyio

WRONG: list[Any] = [
    {"properties": [1]},
    {"properties": {"a": 5}},
    {"properties": {"a": {"type": "boolean", "default": "x"}}},
    {"properties": {"a": {"type": "boolean", "default": []}}},
    {"properties": {"a": {"type": "string"}}, "required": 5},
    {"properties": {"a": {"type": ["string", "null"]}}},
    {"properties": {"a": {"enum": [[1], {}]}}},
    {"properties": {"a": {"enum": "abc"}}},
    {"properties": {"a": {"oneOf": [1]}}},
    {"properties": {"a": {"anyOf": [{"const": []}]}}},
    {"properties": {"a": {"type": "array", "items": 5}}},
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["a", "boolean", "array", "string"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "const", "enum"]), inner, max_size=2)
    ),
    max_leaves=4,
)
MEMBERS = st.sampled_from(["type", "default", "enum", "enumNames", "oneOf", "anyOf", "items", "title", "description"])
FIELDS = st.dictionaries(MEMBERS, VALUES, max_size=4) | VALUES


@pytest.mark.parametrize("schema", WRONG, ids=str)
async def test_a_form_of_wrong_types_is_told_and_cancelled(schema: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert fill_in("?", schema, lambda: "y\n") is Cancel
    assert "a form that cannot be shown: its" in capsys.readouterr().err
    given = PreparedAnswers([{"a": 1}], yes=True)
    ask = given.make_client_answers().ask
    assert ask is not None
    assert await ask("?", schema) is Cancel
    assert "cannot be shown" in str(given.unanswered)


@given(
    st.dictionaries(st.just("a"), FIELDS) | VALUES, st.just(["a"]) | VALUES, st.sampled_from(["1\n", "y\n", "\n", ""])
)
def test_any_form_is_asked_or_refused(properties: Any, required: Any, line: str) -> None:
    fill_in("?", {"properties": properties, "required": required}, lambda: line)


def test_a_form_as_servers_make_it_is_shown() -> None:
    choices = [{"const": "s", "title": "Small"}, {"const": 2}]
    fields = {
        "a": {"type": "boolean", "default": True},
        "b": {"type": "string", "oneOf": choices, "default": "s"},
        "c": {"type": "array", "items": {"anyOf": choices}},
        "d": {"enum": ["x", 1, None], "enumNames": ["X", "one", "none"]},
    }
    assert form_problem({"type": "object", "properties": fields, "required": ["a"]}) is None
