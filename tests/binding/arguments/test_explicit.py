"""An author's own JSON Schema: kept word for word, checked, and held to rules that keep checking cheap."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.binding.explicit_schema import ExplicitArgumentsSchema
from defserve.errors import BadArguments, UsageError
from tests.effort import calls_of, examples
from tests.rows import for_each_row

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": "Kept",
    "properties": {
        "limit": {"type": "integer", "minimum": 1, "maximum": 9},
        "name": {"type": "string", "maxLength": 4, "pattern": "^[a-z]+$"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3, "uniqueItems": True},
        "either": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
        "deep": {
            "oneOf": [
                {"type": "integer"},
                {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            ]
        },
        "password": {"type": "string", "writeOnly": True, "minLength": 8},
        "colour": {"enum": ["red", "blue"]},
    },
    "required": ["limit"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string"}},
}
ARGUMENTS = ExplicitArgumentsSchema(SCHEMA)
ONE_FIELD: dict[str, Any] = {"allOf": [{"properties": {"limit": {"type": "integer"}}}]}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def test_the_schema_is_kept_word_for_word() -> None:
    before = copy.deepcopy(SCHEMA)
    made = ExplicitArgumentsSchema(SCHEMA)
    assert made.schema is SCHEMA and before == SCHEMA


def test_what_fits_is_given_back() -> None:
    given = {"limit": 3, "tags": ["a"], "deep": {"a": "b"}}
    found = ARGUMENTS.validate(given)
    assert found == given and found is not given


@for_each_row(
    ("given", "lines"),
    [
        (None, ["limit: missing"]),
        ({"limit": "x"}, ['limit: expected integer, got "x"']),
        ({"limit": 0}, ["limit: must be at least 1, got 0"]),
        ({"limit": 1, "limt": 2}, ['unknown argument "limt"; did you mean "limit"?']),
        ({"limit": 1, "name": "UP"}, ['name: must match the pattern ^[a-z]+$, got "UP"']),
        ({"limit": 1, "tags": ["a", 3]}, ["tags[1]: expected string, got 3"]),
        ({"limit": 1, "tags": ["a", "a"]}, ['tags: must have no item twice, got ["a","a"]']),
        ({"limit": 1, "either": "x"}, ['either: expected integer or array, got "x"']),
        ({"limit": 1, "deep": {"a": 1}}, ["deep.a: expected string, got 1"]),
        ({"limit": 1, "deep": {}}, ["deep.a: missing"]),
        ({"limit": 1, "colour": "pink"}, ['colour: expected "red" or "blue", got "pink"']),
        ({"limit": 1, "password": "777"}, ["password: must have at least 8 characters, got a string"]),
        ([1], ["arguments must be an object, got [1]"]),
    ],
)
def test_problems_are_told_one_line_a_field(given: Any, lines: list[str]) -> None:
    with pytest.raises(BadArguments) as caught:
        ARGUMENTS.validate(given)
    assert str(caught.value).split("\n") == lines


@for_each_row(
    ("schema", "given", "lines"),
    [
        (
            {"properties": {"a": True}, "patternProperties": {"^x-": True}, "additionalProperties": False},
            {"x-1": 1, "bb": 2},
            ['unknown argument "bb"; known: a'],
        ),
        (
            {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
            {"a": 1, "bb": 2},
            ['unknown argument "bb"; known: a'],
        ),
        (
            {"properties": {"o": {"$ref": "#/$defs/o"}}, "$defs": {"o": {"unevaluatedProperties": False, **ONE_FIELD}}},
            {"o": {"limit": 1, "limt": 2}},
            ['o.limt: unknown field; did you mean "limit"?'],
        ),
        ({"properties": {"a": False}}, {"a": 1}, ["not allowed, got 1"]),
    ],
)
def test_only_what_does_not_fit_is_told_and_why(schema: Any, given: Any, lines: list[str]) -> None:
    with pytest.raises(BadArguments) as caught:
        ExplicitArgumentsSchema({"type": "object", **schema}).validate(given)
    assert [str(problem) for problem in caught.value.problems] == lines


def inside(node: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "array", "items": node}}}


@for_each_row(
    ("schema", "problem"),
    [
        ({}, "root must be"),
        ({"type": "array"}, "root must be"),
        ([], "root must be"),
        ({"type": "object", "$schema": "https://example.org/odd"}, "unknown dialect"),
        ({"type": "object", "$schema": ["https://example.org/odd"]}, "unknown dialect"),
        (inside({"type": "integr"}), "integr"),
        (inside({"$ref": "https://example.org/a.json"}), "is not in this schema"),
        (inside({"$ref": "other.json#/a"}), "is not in this schema"),
        (inside({"$ref": "#/$defs/none"}), "points to nothing"),
        (inside({"$dynamicRef": "file:///etc/passwd"}), "is not in this schema"),
        (inside({"uniqueItems": True}), "uniqueItems"),
        (inside({"uniqueItems": True, "maxItems": 501}), "uniqueItems"),
        (inside({"pattern": "a"}), "without maxLength"),
        (inside({"pattern": "^(?=a)", "maxLength": 9}), "looks around"),
        (inside({"pattern": "a{9999}", "maxLength": 9}), "9,?999|10000 positions"),
        (inside({"pattern": "(", "maxLength": 9}), "without its"),
        (inside({"patternProperties": {r"(a)\1": {}}}), "refers back"),
        (inside({"dependencies": {"a": {"pattern": "(?=a)"}}}) | {"$schema": DRAFT_7}, "without maxLength"),
        (inside({"dependencies": {"a": {"$ref": "other.json"}}}) | {"$schema": DRAFT_7}, "is not in this schema"),
        (inside({"patternProperties": {"a": {}}, "unevaluatedProperties": False}), "unevaluatedProperties"),
    ],
)
def test_a_schema_that_is_wrong_or_dangerous_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        ExplicitArgumentsSchema(schema, where="a.py:1", subject="search")
    assert caught.value.where == "a.py:1" and caught.value.problem.startswith("search: ") and caught.value.fix


@for_each_row(
    "schema",
    [
        {"type": "object", "properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"type": "object", "default": {"$ref": "https://example.org"}},
        {"type": "object", "$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
    ],
)
def test_names_and_data_that_look_like_keywords_are_left_alone(schema: Any) -> None:
    assert ExplicitArgumentsSchema(schema).validate({}) == {}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.just("\ud800")
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(20), deadline=None, database=None)
@given(st.dictionaries(st.sampled_from(sorted(SCHEMA["properties"])) | st.text(max_size=3), json_values) | json_values)
def test_any_json_gives_arguments_or_bad_arguments(value: Any) -> None:
    try:
        assert isinstance(ARGUMENTS.validate(value), dict)
    except BadArguments as error:
        assert error.problems and str(error).encode()


def test_a_value_too_deep_to_check_is_refused() -> None:
    recursive = ExplicitArgumentsSchema({"type": "object", "additionalProperties": {"$ref": "#"}})
    value: Any = {}
    for _ in range(5_000):
        value = {"a": value}
    with pytest.raises(BadArguments, match="cannot be checked"):
        recursive.validate(value)


@for_each_row("union", ["anyOf", "oneOf"])
def test_a_union_looks_at_a_few_errors_of_each_branch(union: str) -> None:
    asked = 0

    class Counted(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(name)

    items = {"type": "array", "items": {"type": "object", "required": ["a"]}}
    made = ExplicitArgumentsSchema(
        {"type": "object", "properties": {"x": {union: [items, {"type": "null"}]}}},
    )
    with pytest.raises(BadArguments, match=r"x\[0\].a: missing"):
        made.validate({"x": [Counted() for _ in range(10_000)]})
    assert 0 < asked < 200


def test_unions_inside_unions_end_after_a_number_of_steps() -> None:
    form = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}
    made = ExplicitArgumentsSchema({**form, "$defs": {"a": {"anyOf": [form, {**form, "required": ["x"]}]}}})
    value: Any = 3
    for _ in range(30):
        value = {"x": value}

    def refused() -> None:
        with pytest.raises(BadArguments, match="too many forms to check"):
            made.validate(value)

    assert calls_of(refused) < 3_000_000
    assert made.validate({"x": {"x": {}}}) == {"x": {"x": {}}}


def test_a_long_list_is_checked_to_its_end() -> None:
    forms = [{"type": "object", "properties": {"kind": {"const": n}}} for n in range(4)]
    made = ExplicitArgumentsSchema(
        {"type": "object", "properties": {"x": {"type": "array", "items": {"oneOf": forms}}}}
    )
    assert len(made.validate({"x": [{"kind": 3}] * 1_500})["x"]) == 1_500


@for_each_row(
    "step value fits",
    [
        (0.01, 19.99, True),
        (0.01, 4.35, True),
        (0.01, 4.355, False),
        (0.01, 3, True),
        (0.1, 1e308, True),
        (5e-324, 1e308, True),
        (0.01, 5e-324, False),
        (3, 10**400, False),
        (0.01, float("inf"), False),
        (0.01, float("nan"), False),
    ],
)
def test_a_multiple_is_one_as_it_is_written(step: float, value: float, fits: bool) -> None:
    made = ExplicitArgumentsSchema({"type": "object", "properties": {"x": {"type": "number", "multipleOf": step}}})
    if fits:
        made.validate({"x": value})
    else:
        with pytest.raises(BadArguments, match="x: must be a multiple of"):
            made.validate({"x": value})


def test_a_value_of_two_forms_is_refused_where_one_is_wanted() -> None:
    made = ExplicitArgumentsSchema(
        {"type": "object", "properties": {"x": {"oneOf": [{"type": "integer"}, {"minimum": 3}]}}}
    )
    assert made.validate({"x": 1}) == {"x": 1}
    assert made.validate({"x": 3.5}) == {"x": 3.5}
    with pytest.raises(BadArguments, match="x: does not fit oneOf, got 3"):
        made.validate({"x": 3})


def test_a_schema_that_was_seen_before_is_checked_again_only_if_it_has_changed() -> None:
    def made(schema: dict[str, Any]) -> int:
        return calls_of(lambda: ExplicitArgumentsSchema(schema))

    def schema(kind: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"seen_before": {"type": kind}}}

    assert made(schema("integer")) > 50 * made(schema("integer"))
    mine = schema("string")
    arguments = ExplicitArgumentsSchema(mine)
    mine["properties"]["seen_before"]["type"] = "boolean"
    for checked in (arguments, ExplicitArgumentsSchema(schema("string"))):
        assert checked.validate({"seen_before": "text"}) == {"seen_before": "text"}
    with pytest.raises(BadArguments):
        ExplicitArgumentsSchema(mine).validate({"seen_before": "text"})
    with pytest.raises(UsageError, match="where it is"):
        ExplicitArgumentsSchema({"type": "object", "required": 1}, where="where it is")
    with pytest.raises(UsageError, match="another place"):
        ExplicitArgumentsSchema({"type": "object", "required": 1}, where="another place")


def test_schemas_of_our_own_are_right_though_they_are_only_checked_at_the_first_call():
    from defserve.protocols.mgp.meta_tools import SCHEMAS
    from defserve.protocols.mgp.server_discovery import DISCOVERY_TOOL_SPECS

    for schema in (*(spec.schema for spec in DISCOVERY_TOOL_SPECS.values()), *SCHEMAS.values()):
        ExplicitArgumentsSchema(schema)
    late = ExplicitArgumentsSchema.from_trusted_schema({"type": "object", "properties": {"id": {"type": "string"}}})
    assert late.validate({"id": "a"}) == {"id": "a"}
    with pytest.raises(BadArguments, match="id"):
        late.validate({"id": 1})


def test_a_number_that_is_too_large_is_refused_wherever_it_is() -> None:
    for schema in ({"type": "object"}, {"type": "object", "properties": {"x": {"items": {"type": "number"}}}}):
        with pytest.raises(BadArguments, match=r"x\[1\]: the number is too large"):
            ExplicitArgumentsSchema(schema).validate({"x": [1, float("inf")]})
