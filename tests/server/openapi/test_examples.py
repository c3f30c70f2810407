from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from defserve.server.openapi_document import (
    EXAMPLES_BY_FORMAT,
    MAX_GIVEN,
    MAX_GIVEN_BYTES,
    Unmatched,
    make_examples,
    make_matching_text,
)
from tests.effort import cpu_within
from tests.effort import examples as tries
from tests.rows import for_each_row


@pytest.mark.req("GGEN-EXP-2")
@for_each_row(
    ("schema", "made"),
    [
        ({"type": "string"}, "text"),
        ({"type": "string", "minLength": 7}, "text xx"),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "string", "format": "date"}, "2026-01-31"),
        ({"type": "string", "pattern": "^[A-Z]{1,5}$"}, "A"),
        ({"type": "string", "pattern": r"^\d{3}-[a-f]+\.(png|gif)$"}, "111-a.png"),
        ({"enum": ["celsius", "kelvin"]}, "celsius"),
        ({"const": 7}, 7),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "maximum": -5}, -7),
        ({"type": "integer", "minimum": 5, "multipleOf": 4}, 8),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["null", "integer"]}, 1),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "text"),
        ({"type": "integer", "default": 9}, 9),
        ({"type": "string", "examples": ["AAPL"]}, "AAPL"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True}, [1, 2, 3]),
        ({"type": "array", "prefixItems": [{"const": "a"}, {"type": "integer"}]}, ["a", 1]),
        ({"allOf": [{"type": "string"}, {"minLength": 6}]}, "text x"),
        ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}}, {"key1": 1}),
    ],
)
def test_an_example_follows_from_the_constraints(schema: dict[str, Any], made: Any):
    assert make_examples(schema)[0] == made


@pytest.mark.req("GGEN-EXP-2")
def test_there_is_one_with_what_is_required_and_one_with_everything():
    schema = {
        "type": "object",
        "properties": {
            "ticker": {"type": "string", "pattern": "^[A-Z]{4}$"},
            "days": {"type": "integer", "minimum": 30},
        },
        "required": ["ticker"],
    }
    assert make_examples(schema) == [{"ticker": "AAAA"}, {"ticker": "AAAA", "days": 30}]


def test_what_the_author_wrote_comes_first_unless_it_is_wrong():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "examples": [{"a": 5}, {"a": "five"}]}
    assert make_examples(schema) == [{"a": 5}, {}, {"a": 1}]


@for_each_row(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "string", "pattern": "^(?=b)a"},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"type": "array", "minItems": 100_000_000, "items": {}},
        {"type": "string", "minLength": 100_000_000},
        {"not": {}},
        False,
    ],
)
def test_what_nothing_fits_has_no_example(schema: Any):
    assert make_examples({"type": "object", "properties": {"x": schema}, "required": ["x"]}) == []


def test_a_schema_that_refers_to_itself_comes_to_an_end():
    tree = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    assert {} in make_examples({"$ref": "#/$defs/tree", "$defs": {"tree": tree}})


def test_a_schema_that_refers_to_itself_many_times_comes_to_an_end():
    node = {"type": "object", "properties": {f"child_{n}": {"$ref": "#/$defs/node"} for n in range(10)}}
    assert {} in make_examples({"$ref": "#/$defs/node", "$defs": {"node": node}})


@for_each_row("format", EXAMPLES_BY_FORMAT)
def test_the_example_of_a_format_has_that_format(format: str):
    schema = {"type": "string", "format": format}
    assert Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(
        EXAMPLES_BY_FORMAT[format]
    )
    assert make_examples(schema) == [EXAMPLES_BY_FORMAT[format]]


@for_each_row("pattern", [r"^\w+@\w+\.com$", r"[^abc]x{2,3}?", r"^(?:GET|POST) /\S*$", r"^[\x41-\x5a]\s\D$", ""])
def test_a_text_for_a_pattern_is_found_by_it(pattern: str):
    import re

    assert re.search(pattern, make_matching_text(pattern))


def test_a_pattern_that_cannot_be_read_says_so():
    with pytest.raises(Unmatched):
        make_matching_text("(")


numbers = st.integers(-20, 20)
schemas = st.recursive(
    st.one_of(
        st.builds(lambda a, b: {"type": "integer", "minimum": a, "maximum": b}, numbers, numbers),
        st.builds(lambda a, b: {"type": "string", "minLength": abs(a), "maxLength": abs(b)}, numbers, numbers),
        st.just({"type": "boolean"}),
        st.builds(lambda values: {"enum": values}, st.lists(st.integers() | st.text(), min_size=1, max_size=3)),
    ),
    lambda below: st.one_of(
        st.builds(
            lambda s, n: {"type": "array", "items": s, "minItems": abs(n) % 4, "uniqueItems": True}, below, numbers
        ),
        st.builds(lambda s, t: {"anyOf": [s, t]}, below, below),
        st.builds(
            lambda p: {"type": "object", "properties": p, "required": sorted(p)[:2]},
            st.dictionaries(st.sampled_from("abc"), below, max_size=3),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=tries(20), deadline=None)
@given(schemas)
def test_no_example_breaks_its_schema(schema: dict[str, Any]):
    for example in make_examples(schema):
        Draft202012Validator(schema).validate(example)


_ODD: dict[str, Any] = {
    "a pattern of repeats of repeats": {"type": "string", "pattern": "^(a{30000}){30000}$"},
    "a pattern of a huge repeat": {"type": "string", "pattern": "^a{100000000}$"},
    "deep repeats": {"type": "string", "pattern": "^((((a{999}){999}){999}){999})$"},
    "several short repeats": {"type": "string", "pattern": "(((a{60}){60}){60}){60}"},
    "a pattern that is no text": {"type": "string", "pattern": 7},
    "a required that is a number": {"type": "object", "required": 7},
    "a minimum that is a text": {"type": "integer", "minimum": "low"},
    "a minItems that is a text": {"type": "array", "minItems": "many"},
    "properties that are a list": {"type": "object", "properties": [1], "required": ["a"]},
    "an anyOf that is a number": {"anyOf": 7},
    "an allOf that is a number": {"allOf": 7},
    "too many properties": {"type": "object", "minProperties": 10**9},
    "an infinite step": {"type": "integer", "minimum": 1, "multipleOf": 1e-320},
    "a huge default": {"type": "string", "default": "x" * 10**6},
}


@for_each_row("name", _ODD)
def test_a_schema_of_somebody_else_costs_little_and_never_fails(name: str):
    schema = {"type": "object", "properties": {"given": _ODD[name]}, "required": ["given"]}
    made: list[Any] = []
    assert cpu_within(2.0, lambda: made.extend(make_examples(schema)))
    assert len(json.dumps(made)) < 4 * MAX_GIVEN_BYTES


def test_only_a_few_short_examples_of_a_schema_are_shown():
    many = {"type": "object", "examples": [{"a": number} for number in range(5_000)]}
    assert make_examples(many)[:MAX_GIVEN] == [{"a": number} for number in range(MAX_GIVEN)]
    assert len(make_examples(many)) <= MAX_GIVEN + 2
    long = {"type": "object", "examples": [{"a": "x" * 10**6}, {"a": "short"}]}
    assert {"a": "short"} in make_examples(long) and len(json.dumps(make_examples(long))) < 4 * MAX_GIVEN_BYTES
