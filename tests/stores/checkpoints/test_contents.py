"""Contents made of others: the same as made from scratch, and nobody else's."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from defserve.stores.checkpoints.checkpoint_tree import (
    CheckpointContent,
    ContentTooDeep,
    encode_canonical,
    make_checkpoint_draft,
)
from defserve.stores.checkpoints.json_patches import apply_patch_to_text
from tests.rows import for_each_row
from tests.stores.checkpoints.json_values import text, values

DEPTH = 64


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


@given(values, values)
def test_a_content_made_of_another_is_what_it_would_be_from_scratch(before: Any, after: Any):
    known = CheckpointContent.from_value(before)
    for given_as in (after, encode_canonical(after), json.dumps(after).encode()):
        drawn = make_checkpoint_draft(given_as, known, DEPTH)
        made, ops = drawn.content, drawn.ops
        assert made.encoded == encode_canonical(after)
        assert json.dumps(made.value) == json.dumps(CheckpointContent.from_value(after).value)
        assert text(apply_patch_to_text(to_json(known.value), ops)) == text(after)
        assert drawn.is_same == (encode_canonical(before) == encode_canonical(after)) == (ops == [])
    assert known.encoded == encode_canonical(known.value) == encode_canonical(before)


@given(values, values, st.booleans())
def test_it_has_nothing_of_its_makers(before: Any, after: Any, is_text: bool):
    was = copy.deepcopy(after)
    drawn = make_checkpoint_draft(
        encode_canonical(after) if is_text else after, CheckpointContent.from_value(before), DEPTH
    )
    theirs = {id(each) for each in containers(after)}
    assert not theirs & {id(each) for each in containers([drawn.content.value, drawn.ops])}
    assert after == was


@given(values)
def test_what_was_not_changed_is_the_same_content(value: Any):
    known = CheckpointContent.from_value(value)
    for drawn in (
        make_checkpoint_draft(copy.deepcopy(value), known, DEPTH),
        make_checkpoint_draft(encode_canonical(value), known, DEPTH),
    ):
        assert drawn.is_same
        assert (drawn.content, drawn.ops) == (known, [])


def test_what_was_not_changed_is_shared():
    known = CheckpointContent.from_value({"notes": [{"n": n} for n in range(5)]})
    changed = known.copy()
    changed["notes"][2]["n"] = "new"
    made = make_checkpoint_draft(changed, known, DEPTH).content
    shared = [one is other for one, other in zip(made.value["notes"], known.value["notes"], strict=True)]
    assert shared == [True, True, False, True, True]


@for_each_row("tiny", [1e-5, 1.5e-5, 1e-6, 5e-324, -2e-9])
def test_a_tiny_number_is_written_in_one_way(tiny: float):
    made = make_checkpoint_draft({"a": tiny, "b": 1}, CheckpointContent.from_value({"a": 0, "b": 1}), DEPTH).content
    assert made.encoded == CheckpointContent.from_value({"b": 1, "a": tiny}).encoded


@for_each_row("wrong", [float("nan"), float("inf"), "\ud800", object(), {1, 2}, {1: 2}, {"a": 1, 2: 3}])
def test_what_json_cannot_hold_is_refused(wrong: Any):
    for content in ({"a": wrong, "b": 1}, wrong):
        with pytest.raises(ValueError):
            make_checkpoint_draft(content, CheckpointContent.from_value({"a": {}, "b": 1}), DEPTH)


@for_each_row("name", ["b", "c", "new"])
def test_depth_counts_from_the_outside_wherever_the_change_is(name: str):
    known = CheckpointContent.from_value({"a": [{"b": None, "c": [0]}]})
    changed = known.copy()
    changed["a"][0][name] = [1]
    for given_as in (changed, encode_canonical(changed)):
        assert make_checkpoint_draft(given_as, known, 4).content.value == changed
    changed["a"][0][name] = [[]]
    for given_as in (changed, encode_canonical(changed)):
        with pytest.raises(ContentTooDeep):
            make_checkpoint_draft(given_as, known, 4)
