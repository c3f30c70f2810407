"""A schema that takes more refuses nothing; one that is said to take all that the other took does so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.binding.explicit_schema import is_valid_instance
from defserve.tooling.schema_compatibility import Narrowing, describe_schema, find_narrowings, iter_properties
from tests.rows import for_each_row
from tests.stores.checkpoints.json_values import values

NAMES = ("a", "b", "c")
plain = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("integer")}, optional={"minimum": st.integers(-2, 2), "maximum": st.integers(0, 4)}
    ),
    st.fixed_dictionaries({"type": st.just("number")}, optional={"exclusiveMinimum": st.integers(-2, 2)}),
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": st.integers(0, 2), "maxLength": st.integers(1, 3)}
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, {"type": ["string", "null"]}]),
    st.lists(st.sampled_from(["a", "b", 1, None, True]), min_size=1, unique_by=repr).map(lambda said: {"enum": said}),
)


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    members = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    return st.builds(
        lambda given, needed: {
            "type": "object",
            "properties": given,
            "required": [one for one in given if one in needed],
        },
        members,
        st.sets(st.sampled_from(NAMES)),
    )


schemas = st.recursive(
    plain,
    lambda inner: st.one_of(
        _object(inner),
        inner.map(lambda below: {"type": "array", "items": below}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
    ),
    max_leaves=6,
)


@given(schemas)
def test_a_schema_takes_all_that_it_takes(schema: Any):
    assert find_narrowings(schema, schema) == []
    # Another form of the same one is not recognised by being equal.
    assert find_narrowings(schema, {"allOf": [schema]}) == find_narrowings({"allOf": [schema]}, schema) == []
    assert find_narrowings({"$ref": "#/$defs/x", "$defs": {"x": schema}}, schema) == []


@given(schemas, schemas)
def test_a_branch_more_takes_all_that_was_taken(schema: Any, other: Any):
    assert find_narrowings(schema, {"anyOf": [other, schema]}) == []


@given(schemas, st.data())
def test_a_widened_schema_refuses_nothing(schema: Any, data: st.DataObject):
    assert find_narrowings(schema, _widen(schema, data)) == []


def _widen(schema: Any, data: st.DataObject) -> Any:
    """The schema with a limit less, a name or value more, or the same inside."""
    made = dict(schema)
    for limit in made.keys() & {"minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "required"}:
        if data.draw(st.booleans()):
            del made[limit]
    if "enum" in made:
        made["enum"] = [*made["enum"], "more"]
    if made.get("type") == "integer" and data.draw(st.booleans()):
        made["type"] = "number"
    if "properties" in made:
        made["properties"] = {name: _widen(below, data) for name, below in made["properties"].items()} | {"new": {}}
    if "items" in made:
        made["items"] = _widen(made["items"], data)
    if "anyOf" in made:
        made["anyOf"] = [_widen(branch, data) for branch in made["anyOf"]]
    return made


@given(schemas, schemas, values)
def test_what_is_not_found_is_not_there(before: Any, after: Any, value: Any):
    if not find_narrowings(before, after) and is_valid_instance(value, before) and _is_named(value, before):
        assert is_valid_instance(value, after)


def _is_named(value: Any, schema: Any) -> bool:
    """Whether it has only names that the schema lists: others are nobody's promise."""
    named = {path.rpartition(".")[2] for path, _ in iter_properties(schema)}
    if isinstance(value, dict):
        return value.keys() <= named and all(_is_named(below, schema) for below in value.values())
    return all(_is_named(below, schema) for below in value) if isinstance(value, list) else True


@given(st.permutations(NAMES), st.permutations(["string", "null", "integer"]))
def test_order_never_matters(names: list[str], types: list[str]):
    def make(order: list[str], kinds: list[str]) -> Any:
        members = {name: {"anyOf": [{"type": kind} for kind in kinds]} for name in order}
        return {"type": "object", "properties": members, "required": order, "enum": order}

    assert find_narrowings(make(names, types), make(list(NAMES), ["integer", "null", "string"])) == []


def _of(**members: Any) -> Any:
    return {"type": "object", "properties": members}


NARROWED: dict[str, tuple[Any, Any, Narrowing]] = {
    "another type": (
        _of(n={"type": "integer"}),
        _of(n={"type": "string"}),
        Narrowing("n", "type", "integer", "string"),
    ),
    "no null": (
        _of(n={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        _of(n={"type": "string"}),
        Narrowing("n", "type", "string or null", "string"),
    ),
    "a value less": (_of(n={"enum": ["a", "b"]}), _of(n={"enum": ["a"]}), Narrowing("n", "value", '"b"', "")),
    "values only": (_of(n={"type": "string"}), _of(n={"enum": ["a"]}), Narrowing("n", "type", "string", '"a"')),
    "a lower limit": (
        _of(n={"type": "integer", "maximum": 9}),
        _of(n={"type": "integer", "exclusiveMaximum": 9}),
        Narrowing("n", "limit", "maximum 9", "exclusiveMaximum 9"),
    ),
    "a pattern": (
        _of(n={"type": "string"}),
        _of(n={"type": "string", "pattern": "^a"}),
        Narrowing("n", "form", "", 'pattern "^a"'),
    ),
    "required": (_of(), {**_of(n={}), "required": ["n"]}, Narrowing("n", "required", "optional", "required")),
    "gone": (_of(n={"type": "null"}), _of(), Narrowing("n", "removed", "null", "")),
    "refused": (
        _of(n={"type": "null"}),
        {**_of(), "additionalProperties": False},
        Narrowing("n", "refused", "null", ""),
    ),
    "inside a list": (
        _of(n={"type": "array", "items": _of(m={"type": "integer"})}),
        _of(n={"type": "array", "items": _of(m={"type": "boolean"})}),
        Narrowing("n[].m", "type", "integer", "boolean"),
    ),
    "behind a reference": (
        {**_of(n={"$ref": "#/$defs/N"}), "$defs": {"N": {"type": "integer"}}},
        {**_of(n={"$ref": "#/$defs/N"}), "$defs": {"N": {"type": "string"}}},
        Narrowing("n", "type", "integer", "string"),
    ),
    "one value of a tuple": (
        {"type": "array", "prefixItems": [{"type": "integer"}]},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        Narrowing("[0]", "type", "integer", "string"),
    ),
}


@for_each_row("case", NARROWED)
def test_what_takes_less_is_found_with_its_place(case: str):
    before, after, narrowing = NARROWED[case]
    assert find_narrowings(before, after) == [narrowing]


SAME: dict[str, tuple[Any, Any]] = {
    "an integer is a number": ({"type": "integer"}, {"type": "number"}),
    "limits of integers": ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
    "values of a type": ({"enum": ["a", "b"]}, {"type": "string", "maxLength": 1}),
    "both booleans": ({"type": "boolean"}, {"enum": [True, False]}),
    "a multiple of a multiple": ({"type": "integer", "multipleOf": 4}, {"type": "integer", "multipleOf": 2}),
    "no others": (_of(n={}), {**_of(n={}), "additionalProperties": False}),
}


@for_each_row("case", SAME)
def test_what_takes_the_same_is_not_found(case: str):
    assert find_narrowings(*SAME[case]) == []


def test_trees_that_hold_themselves_are_compared_once():
    def tree(leaf: str) -> Any:
        node = {"type": "object", "properties": {"leaf": {"type": leaf}, "next": {"$ref": "#/$defs/Node"}}}
        return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}

    assert find_narrowings(tree("string"), tree("integer")) == [Narrowing("leaf", "type", "string", "integer")]


def test_what_is_too_large_is_said_to_be():
    wide = {"anyOf": [{"type": "integer", "minimum": -one} for one in range(200)]}
    assert [one.kind for one in find_narrowings(wide, {"type": "string"})] == ["unknown"]
    deep: Any = {"type": "integer"}
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    assert [one.kind for one in find_narrowings(deep, {**deep, "items": {**deep["items"], "title": "x"}})] == [
        "unknown"
    ]


@pytest.mark.parametrize(
    "odd", [None, 3, [], {"$ref": "#/nowhere"}, {"$ref": 1}, {"enum": 4}, {"type": [7]}, {"anyOf": "x"}]
)
def test_schemas_that_are_none_are_compared_all_the_same(odd: Any):
    assert isinstance(find_narrowings(odd, _of()), list) and isinstance(find_narrowings(_of(), odd), list)
    assert isinstance(describe_schema(odd, odd), str)
