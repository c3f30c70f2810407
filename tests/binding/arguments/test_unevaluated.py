"""`uniqueItems`, `unevaluatedItems` and `unevaluatedProperties` of any schema: right, and never quadratic."""

from __future__ import annotations

from itertools import product
from time import process_time
from typing import Any

import pytest
from jsonschema import validators

from defserve.binding.explicit_schema import ExplicitArgumentsSchema, find_instance_errors, is_valid_instance
from defserve.errors import BadArguments
from tests.rows import for_each_row

_Drafts: Any = validators
Draft201909Validator, Draft202012Validator = _Drafts.Draft201909Validator, _Drafts.Draft202012Validator
MANY = 4_000
# A quadratic check of as many takes several times as long, a linear one less than a tenth.
SECONDS = 3.0

_VALUES: list[Any] = [
    *(0, 1, 1.0, 1.5, True, False, None, "", "a", "1", -0.0, 2**60, float(2**60), 2**60 + 1),
    *([], [1], [True], [1.0], {}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": {"b": [1]}}, {"a": {"b": [1.0]}}),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, "[1]", "{}", [[]], 10**4000),
]


@for_each_row("one", _VALUES, ids=lambda value: repr(value)[:20] if value != 10**4000 else "huge")
def test_items_are_equal_as_json_is(one: Any):
    for other in _VALUES:
        expected = Draft202012Validator({"uniqueItems": True}).is_valid([one, other])
        assert is_valid_instance([one, other], {"uniqueItems": True}) is expected, other


_ITEMS: list[Any] = [
    *({}, {"prefixItems": [{"type": "integer"}]}, {"contains": {"type": "string"}}, {"items": {"type": "integer"}}),
    *({"allOf": [{"prefixItems": [True, True]}]}, {"anyOf": [{"prefixItems": [{"const": 1}]}, {"maxItems": 1}]}),
    *({"oneOf": [{"contains": {"const": 1}}, {"maxItems": 0}]}, {"$ref": "#/$defs/pair"}, {"not": {"items": True}}),
    {"if": {"prefixItems": [{"const": 1}]}, "then": {"prefixItems": [True, True]}, "else": {"contains": True}},
    {"allOf": [{"prefixItems": [True], "unevaluatedItems": {"type": "string"}}]},
]
_ARRAYS: list[Any] = [[], [1], ["a"], [1, "a"], ["a", 1], [1, 2, "a"], ["a", "b"], [None, 1], [1, None, "a"]]
_NAMES: list[Any] = [
    *({}, {"properties": {"a": {"type": "integer"}}}, {"additionalProperties": {"type": "integer"}}),
    *({"allOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]}, {"$ref": "#/$defs/named"}),
    {"anyOf": [{"properties": {"a": {"const": 1}}}, {"required": ["b"]}]},
    {"dependentSchemas": {"a": {"properties": {"b": True}}}},
    {"if": {"required": ["a"]}, "then": {"properties": {"b": True}}, "else": {"properties": {"c": True}}},
    {"allOf": [{"properties": {"a": True}, "unevaluatedProperties": {"type": "string"}}]},
]  # fmt: skip
_OBJECTS: list[Any] = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": "x", "c": 1}, {"a": "x", "b": "y"}, {"c": None}]
_DEFS = {"pair": {"prefixItems": [True, True]}, "named": {"properties": {"a": True}}}


@pytest.mark.parametrize("option", [False, True, {"type": "string"}], ids=str)
def test_what_is_unevaluated_is_what_the_draft_says(option: Any):
    for one, other, value in product(_ITEMS, _ITEMS, _ARRAYS):
        _compare({"$defs": _DEFS, **one, **other, "unevaluatedItems": option}, value)
    for one, other, value in product(_NAMES, _NAMES, _OBJECTS):
        _compare({"$defs": _DEFS, **one, **other, "unevaluatedProperties": option}, value)


def _compare(schema: Any, value: Any) -> None:
    assert is_valid_instance(value, schema) is Draft202012Validator(schema).is_valid(value), (schema, value)


def test_an_older_draft_has_a_list_of_items_for_the_first_ones():
    schema = {"$schema": Draft201909Validator.META_SCHEMA["$id"], "type": "object", "properties": {
        "pair": {"type": "array", "items": [{"type": "integer"}], "unevaluatedItems": False},
    }}  # fmt: skip
    arguments = ExplicitArgumentsSchema(schema)
    assert arguments.validate({"pair": [1]}) == {"pair": [1]}
    with pytest.raises(BadArguments, match="pair"):
        arguments.validate({"pair": [1, 2]})


def _inside(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"given": schema}}


_OBJECT_ITEMS: list[Any] = [{"a": number} for number in range(MANY)]
_QUADRATIC: dict[str, tuple[Any, Any]] = {
    "unique objects": ({"uniqueItems": True}, _OBJECT_ITEMS),
    "unique mixed": ({"uniqueItems": True}, ["x", *range(MANY)]),
    "unique, too many": ({"uniqueItems": True, "maxItems": 20}, _OBJECT_ITEMS),
    "unique in a branch": ({"anyOf": [{"uniqueItems": True, "maxItems": 20}, {"type": "null"}]}, _OBJECT_ITEMS),
    "unevaluated items": ({"allOf": [{"items": {}}], "unevaluatedItems": False}, [0] * 10 * MANY),
    "contained items": ({"contains": {}, "unevaluatedItems": False}, [0] * 10 * MANY),
    "unevaluated names": (
        {"allOf": [{"additionalProperties": {}}], "unevaluatedProperties": False},
        {f"k{number}": 0 for number in range(5 * MANY)},
    ),
}


@pytest.mark.parametrize("name", _QUADRATIC)
def test_no_keyword_takes_time_that_grows_with_the_square_of_a_value(name: str):
    schema, value = _QUADRATIC[name]
    began = process_time()
    is_valid_instance(value, schema)
    find_instance_errors(value, schema, 1)
    assert process_time() - began < SECONDS
    if "maxItems" in schema or "uniqueItems" not in schema:  # an author's own must say how many
        arguments, began = ExplicitArgumentsSchema(_inside(schema)), process_time()
        try:
            arguments.validate({"given": value})
        except BadArguments as refused:
            assert "maxItems" in schema or "anyOf" in schema, refused
        assert process_time() - began < SECONDS
