"""Patches with the values before them, and patches in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from defserve.base.redaction import REDACTION_MASK
from defserve.inspector.differences import (
    MAX_OPS,
    MAX_VALUE_LENGTH,
    make_json_patch,
    shorten_patch_operations,
    summarize_patch,
)
from defserve.stores.checkpoints.json_patches import apply_patch_to_text
from tests.effort import examples
from tests.rows import for_each_row

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab~/", max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab~/-0", max_size=2), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON, JSON)
@settings(max_examples=examples(200))
def test_a_patch_leads_from_one_content_to_the_other_and_knows_what_was_there(before: Any, after: Any):
    content = before
    for op in make_json_patch(before, after):
        if op["op"] != "add":
            # A test of RFC 6902 fails if another value is there.
            apply_patch_to_text(to_json(content), [{"op": "test", "path": op["path"], "value": op["was"]}])
        content = apply_patch_to_text(to_json(content), [{name: value for name, value in op.items() if name != "was"}])
    assert content == after


@for_each_row(
    ("before", "after", "said"),
    [
        (None, {"notes": []}, "begins"),
        ({"a": {"b": 18}}, {"a": {"b": 24}}, "a/b: 18 → 24"),
        ({"notes": ["x"]}, {"notes": ["x", "milk"]}, '+ notes/1 "milk"'),
        ({"plants": ["a", "b", "c"], "n": 1}, {"n": 1}, "− plants, 3 items"),
        ({"plants": [1]}, {}, "− plants, 1 item"),
        ({"name": "x"}, {}, '− name "x"'),
        ({"a": ["basil"], "b": []}, {"a": [], "b": ["basil"]}, '"basil": a/0 to b/0'),
        ({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2}, "a: 1 → 2, and 2 more"),
        ({"a/b": 1}, {"a/b": 2}, "a/b: 1 → 2"),
        ([1], {"a": 1}, "all of it"),
        ({"a": 1}, {"a": 1}, "nothing changed"),
    ],
)
def test_a_change_in_words(before: Any, after: Any, said: str):
    assert summarize_patch(make_json_patch(before, after)) == said


def test_words_are_short_whatever_a_server_says():
    assert len(summarize_patch(make_json_patch({"a" * 900: "b" * 9_000}, {"a" * 900: "c" * 9_000}))) <= 160


def test_secrets_are_masked_where_they_stand_and_where_they_are_named():
    ops = make_json_patch(
        {"user": {"password": "hunter2"}}, {"user": {"password": "hunter3"}, "more": [{"api_key": "k"}]}
    )
    assert {op["path"]: op.get("value") for op in ops} == {
        "/user/password": REDACTION_MASK,
        "/more": [{"api_key": REDACTION_MASK}],
    }
    assert "hunter" not in repr(ops)


@for_each_row(
    ("before", "after"),
    [
        ({"password": {"old": "hunter2"}}, {"password": {"old": "hunter3"}}),
        ({"api_keys": ["hunter2"]}, {"api_keys": ["hunter2", "hunter3"]}),
        ({"tokens": {"ann": {"is": ["hunter2"]}}}, {"tokens": {"ann": {"is": ["hunter3"]}}}),
        ({"all": [{"name": "password", "value": "hunter2"}]}, {"all": [{"name": "password", "value": "hunter3"}]}),
        ({"all": [["x-api-key", "hunter2"]]}, {"all": [["x-api-key", "hunter3"]]}),
        ({"seen": {}}, {"seen": {"ghp_" + "hunter2" * 6: 1}}),
        ({"seen": {"ghp_" + "hunter2" * 6: 1}}, {"seen": {"ghp_" + "hunter2" * 6: {"a": 2}}}),
        ({}, {"sessions": {"session_id=hunter2hunter2": 1}}),
    ],
)
def test_names_above_and_beside_a_value_mask_it_and_names_are_masked_too(before: Any, after: Any):
    ops = make_json_patch(before, after)
    assert ops
    assert "hunter" not in repr(ops) + summarize_patch(ops)


def test_what_goes_to_the_page_is_bounded():
    ops = make_json_patch({}, {f"{number}": "x" * (MAX_VALUE_LENGTH + 1) for number in range(MAX_OPS + 10)})
    told = shorten_patch_operations(ops)
    assert (len(ops), len(told)) == (MAX_OPS + 10, MAX_OPS)
    assert told[0]["cut"] == MAX_VALUE_LENGTH + 3
    assert len(told[0]["value"]) < 100
