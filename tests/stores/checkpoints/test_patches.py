from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from defserve.errors import LimitExceeded
from defserve.stores.checkpoints.checkpoint_tree import encode_canonical
from defserve.stores.checkpoints.json_patches import (
    BadPatch,
    apply_patch_to_text,
    diff_json_values,
    is_patch_shorter,
)
from tests.effort import calls_of
from tests.rows import for_each_row
from tests.stores.checkpoints.json_values import text, values


def test_a_patch_is_smaller_than_a_large_value_and_not_than_a_small_one():
    large = {"notes": ["x" * 100] * 10}
    longer = {"notes": [*large["notes"], "y"]}
    assert is_patch_shorter(diff_json_values(large, longer), encode_canonical(longer))
    assert not is_patch_shorter(diff_json_values({"a": 1}, {"a": 2}), encode_canonical({"a": 2}))


def test_a_patch_that_could_not_be_applied_is_never_the_smaller_one():
    before, after = [0] * 3_000, [1] * 3_000
    assert not is_patch_shorter(diff_json_values(before, after), b"x" * 1_000_000)


COPY_BOMB = [{"op": "add", "path": "/a", "value": ["x" * 100]}] + [
    {"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(100)
]
DEPTH_BOMB = [{"op": "copy", "from": "", "path": "/a"}] * 70


@for_each_row(
    ("ops", "limit"),
    [
        (COPY_BOMB, "patch_"),
        (DEPTH_BOMB, "patch_"),
        ([{"op": "test", "path": "", "value": {}}] * 1_001, "patch_operations"),
        ([{"op": "add", "path": "/a", "value": "x" * 2_000_000}], "patch_bytes"),
        ([{"op": "add", "path": "/a", "value": json.loads("[" * 80 + "]" * 80)}], "patch_depth"),
        ([{"op": "add", "path": "/a" * 80, "value": 1}], "patch_depth"),
        ([{"op": "add", "path": "/a", "value": "x" * 600_000}] * 1 + [{"op": "copy", "from": "/a", "path": "/b"}], ""),
    ],
)
def test_a_patch_that_grows_beyond_the_limits_is_refused(ops: list[Any], limit: str):
    value = {"k": 1}
    with pytest.raises(LimitExceeded) as caught:
        apply_patch_to_text(to_json(value), ops)
    assert caught.value.data["limit"].startswith(limit)
    assert value == {"k": 1}


@for_each_row(
    "ops",
    [
        None,
        {"op": "add"},
        "[]",
        [1],
        [{}],
        [{"op": "add", "path": "/a"}],
        [{"op": "add", "path": 1, "value": 1}],
        [{"op": "nothing", "path": "/a"}],
        [{"op": "append", "path": "/l", "value": "not of RFC 6902"}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": "/x/y", "value": 1}],
        [{"op": "add", "path": "/l/9", "value": 1}],
        [{"op": "add", "path": "/l/" + "9" * 5_000, "value": 1}],
        [{"op": "add", "path": "/l/-1", "value": 1}],
        [{"op": "remove", "path": "/x"}],
        [{"op": "remove", "path": "/l/-"}],
        [{"op": "replace", "path": "/x", "value": 1}],
        [{"op": "copy", "path": "/a"}],
        [{"op": "copy", "from": "/l/-", "path": "/a"}],
        [{"op": "copy", "from": ["k"], "path": "/a"}],
        [{"op": "move", "from": "/l", "path": "/l/0"}],
        [{"op": "test", "path": "/k", "value": 2}],
        [{"op": "add", "path": "/a", "value": "\ud800"}],
        [{"op": "add", "path": "/k/x", "value": 1}],
        [{"op": "add", "path": "/a", "value": [float("inf")]}],  # a peer wrote 2e999
        [{"op": "test", "path": "/a", "value": float("nan")}],
    ],
)
def test_what_is_no_patch_or_does_not_fit_is_refused(ops: Any):
    value = {"k": 1, "l": []}
    with pytest.raises(BadPatch):
        apply_patch_to_text(to_json(value), ops)
    assert value == {"k": 1, "l": []}


def test_a_value_that_cannot_be_stored_is_not_patched():
    with pytest.raises(BadPatch, match="too large"):
        apply_patch_to_text(to_json({"k": float("-inf")}), [{"op": "add", "path": "/a", "value": 1}])


def test_a_patch_is_left_as_it_was_even_where_later_steps_change_its_values():
    ops = [{"op": "add", "path": "/a", "value": []}, {"op": "add", "path": "/a/-", "value": 1}]
    was = copy.deepcopy(ops)
    assert apply_patch_to_text(to_json({}), ops) == {"a": [1]}
    assert ops == was


WIDE: Any = {"a": [[] for _ in range(2_000)], "b": {}}
LARGE_STEPS: list[list[Any]] = [
    [{"op": "move", "from": "/a", "path": "/c"}, {"op": "move", "from": "/c", "path": "/a"}],
    [{"op": "move", "from": "/a", "path": "/b/c"}, {"op": "move", "from": "/b/c", "path": "/a"}],
    [{"op": "move", "from": "/a", "path": "/a"}],
    [{"op": "move", "from": "/b", "path": "/a/0"}, {"op": "move", "from": "/a/0", "path": "/b"}],
    [{"op": "copy", "from": "/a", "path": "/c"}, {"op": "remove", "path": "/c"}],
    [{"op": "copy", "from": "/a", "path": "/c"}],
    [{"op": "copy", "from": "", "path": "/b"}, {"op": "replace", "path": "/b", "value": {}}],
    [{"op": "test", "path": "/a", "value": []}],
    [{"op": "test", "path": "/b", "value": {}}],
    [{"op": "add", "path": "/a/0", "value": 1}, {"op": "remove", "path": "/a/0"}],
    [{"op": "replace", "path": "/a/1999", "value": []}],
]


@for_each_row("steps", LARGE_STEPS)
def test_many_steps_do_little_work_each_however_large_the_value_is(steps: list[Any]):
    ops = (steps * 100)[:100]

    def apply() -> None:
        try:
            apply_patch_to_text(to_json(WIDE), ops, max_bytes=10_000)
        except (BadPatch, LimitExceeded):
            pass

    assert calls_of(apply) < 300_000  # to walk through the value at each step would be millions


def test_a_large_part_may_be_moved_but_not_again_and_again():
    value = {"a": "x" * 900_000}
    there, back = {"op": "move", "from": "/a", "path": "/b"}, {"op": "move", "from": "/b", "path": "/a"}
    assert apply_patch_to_text(to_json(value), [there, back]) == value
    with pytest.raises(LimitExceeded, match="2097152 bytes moved"):
        apply_patch_to_text(to_json(value), [there, back, there])


def test_a_kept_value_that_is_too_large_to_be_patched_is_not_read():
    with pytest.raises(LimitExceeded, match="1048576 bytes"):
        apply_patch_to_text(b"[" * 3_000_000, [{"op": "add", "path": "/a", "value": 1}])


paths = st.lists(st.sampled_from(["a", "0", "-", "1", "", "~"]), max_size=4).map(
    lambda parts: "".join(f"/{p}" for p in parts)
)
operations = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "?"]), "path": paths},
    optional={"from": paths, "value": values},
)


@pytest.mark.slow
@given(values, st.lists(operations, max_size=12))
def test_any_patch_is_applied_as_by_the_library_or_refused(value: Any, ops: list[Any]):
    was = copy.deepcopy(value)
    try:
        result = apply_patch_to_text(to_json(value), ops)
    except BadPatch:
        return
    assert text(result) == text(jsonpatch.apply_patch(value, ops))
    assert value == was
