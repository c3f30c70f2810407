"""What has changed between two values, with `jsonpatch` as the oracle."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from defserve.stores.checkpoints.json_patches import apply_patch_to_text, diff_json_values, reuse_unchanged_parts
from tests.stores.checkpoints.json_values import text, values


@given(values, values)
def test_the_diff_of_two_values_makes_one_of_the_other(before: Any, after: Any):
    was = copy.deepcopy(before)
    ops = diff_json_values(before, after)
    assert text(jsonpatch.apply_patch(before, ops)) == text(after)
    assert text(apply_patch_to_text(to_json(before), ops)) == text(after)
    assert before == was
    assert (ops == []) == (text(before) == text(after))


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3), max_size=3), st.data())
def test_an_insertion_is_as_many_operations_as_items(items: list[int], new: list[int], data: st.DataObject):
    at = data.draw(st.integers(0, len(items)))
    ops = diff_json_values({"items": items}, {"items": [*items[:at], *new, *items[at:]]})
    assert [op["op"] for op in ops] == ["add"] * len(new)


def test_an_appended_item_is_added_after_the_last_one():
    note = {"id": 1, "text": "Remember to..."}
    assert diff_json_values({"notes": []}, {"notes": [note]}) == [{"op": "add", "path": "/notes/-", "value": note}]


@given(values, values)
def test_without_booleans_a_closer_look_finds_nothing_more(before: Any, after: Any):
    before, after = _without_booleans(before), _without_booleans(after)
    assert reuse_unchanged_parts(before, after, lambda new, _: new, has_booleans=False)[1] == diff_json_values(
        before, after
    )


def _without_booleans(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_booleans(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_booleans(item) for item in value]
    return "boolean" if isinstance(value, bool) else value


def test_true_and_one_differ_wherever_they_are():
    assert diff_json_values({"a": [{"b": 1}]}, {"a": [{"b": True}]}) == [
        {"op": "replace", "path": "/a/0/b", "value": True}
    ]


def test_one_and_one_point_zero_are_the_same_number():
    assert diff_json_values({"a": 1, "b": [2]}, {"b": [2.0], "a": 1.0}) == []
