"""What is published of the schemas that we make: every client can read it, and nothing that fits is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, WithJsonSchema, create_model

from defserve import Server
from defserve.binding.arguments import ArgumentsSchema, get_annotation_schemas
from defserve.binding.json_schemas import (
    MAX_PORTABLE_BYTES,
    SCHEMA_DIALECTS,
    make_portable_schema,
    move_combiners_to_description,
    narrow_schema_to_dialect,
    walk_schema,
)
from defserve.binding.signature import read_signature
from defserve.errors import BadArguments, UsageError
from tests.effort import examples
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


class Colour(Enum):
    RED = "red"
    TWO = 2


class Corner(Enum):
    LEFT = (0, 0)
    RIGHT = (1, 0)


class Rank(IntEnum):
    LOW = 1
    HIGH = 2


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    size: int = Field(1, ge=0)


class Branch(BaseModel):
    """A branch."""

    kind: Literal["branch"] = "branch"
    leaves: list[Leaf] = []
    first: Leaf | None = None
    below: list[Annotated[Leaf | Branch, Field(discriminator="kind")]] = []


Json = dict[str, "Json"] | list["Json"] | str | int | bool | None


TYPES: dict[str, set[type]] = {"string": {str}, "integer": {int}, "number": {int, float}, "boolean": {bool}}


def find_unportable(schema: dict[str, Any]) -> Iterator[str]:
    """What some client of the table in the docs cannot read."""
    if not {"anyOf", "oneOf", "allOf", "enum", "not"}.isdisjoint(schema):
        yield "a combiner at the root"
    for node in walk_schema(schema):
        yield from (word for word in ("$ref", "$defs", "oneOf", "const", "discriminator") if word in node)
        if isinstance(node.get("type"), list):
            yield "several types"
        if node.get("type") == "array" and not isinstance(node.get("items"), dict):
            yield "no items"
        if node.get("type") == "object" and "properties" not in node:
            yield "no properties"
        if "enum" in node and not {type(value) for value in node["enum"]} <= TYPES[node["type"]]:
            yield "choices of several types"


def publish(annotation: Any) -> tuple[ArgumentsSchema, dict[str, Any]]:
    def tool(value: Any) -> None: ...

    tool.__annotations__["value"] = annotation
    arguments = ArgumentsSchema.from_signature(read_signature(tool, lambda _: None))
    return arguments, arguments.publish_schema()


ANNOTATIONS: list[Any] = [
    Branch,
    Leaf | Branch | None,
    dict[str, Branch],
    Colour,
    Corner,
    Rank | None,
    Literal[1, "a", None, 2.5],
    Literal["a"] | Literal[3],
    tuple[int, str],
    tuple[int, int],
    tuple[Leaf, ...],
    tuple[()],
    dict,
    list,
    Annotated[Any, WithJsonSchema({"type": ["string", "null", "array"], "minLength": 2})],
    Annotated[Any, WithJsonSchema({"type": "array", "prefixItems": [True, {"type": "string"}], "items": False})],
]


@for_each_row("annotation", ANNOTATIONS, ids=str)
def test_every_client_can_read_what_is_published(annotation: Any):
    _, published = publish(annotation)
    Draft202012Validator.check_schema(published)
    assert not list(find_unportable(published))


def test_a_recursive_model_is_unrolled_and_then_open():
    arguments, published = publish(Branch)
    inner = published["properties"]["value"]
    for _ in range(2):
        inner = inner["properties"]["below"]["items"]["anyOf"][1]
        assert inner["description"] == "A branch."
    assert inner["properties"]["below"]["items"]["anyOf"][1] == {
        "description": "A branch.",
        "type": "object",
        "properties": {},
    }
    deep: Any = {"kind": "branch", "below": []}
    for _ in range(8):
        deep = {"kind": "branch", "below": [deep]}
    Draft202012Validator(published).validate({"value": deep})
    assert isinstance(arguments.validate({"value": deep})["value"], Branch)


def test_the_exact_model_still_judges_what_is_below_the_unrolled_part():
    arguments, published = publish(Branch)
    wrong: Any = {"kind": "branch", "below": 7}
    for _ in range(6):
        wrong = {"kind": "branch", "below": [wrong]}
    Draft202012Validator(published).validate({"value": wrong})
    with pytest.raises(BadArguments, match="below"):
        arguments.validate({"value": wrong})


def test_a_recursive_alias_of_several_types_ends_in_anything_of_these_types():
    defs = {
        "Json": {
            "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Json"}}, {"type": "string"}, {"type": "null"}],
        }
    }
    made = make_portable_schema({"$ref": "#/$defs/Json", "$defs": defs})
    assert not [node for node in walk_schema(made) if "$ref" in node]
    validator = Draft202012Validator(made)
    assert validator.is_valid([[[[["a"], None]]]]) and not validator.is_valid(3)


def test_what_stands_beside_a_reference_is_merged():
    class Order(BaseModel):
        bill: Leaf = Field(description="Where the bill goes.")
        ship: Leaf = Field(description="Where the goods go.")

    _, published = publish(Order)
    properties = published["properties"]["value"]["properties"]
    assert [properties[name]["description"] for name in ("bill", "ship")] == [
        "Where the bill goes.",
        "Where the goods go.",
    ]
    assert properties["bill"]["properties"].keys() == {"kind", "size"}


def make_wide_model(levels: int) -> Any:
    made: Any = create_model("Level0", text=(str, ...))
    for level in range(1, levels):
        made = create_model(f"Level{level}", **{f"member_{n}": (made, ...) for n in range(4)})  # type: ignore[call-overload]
    return made


def test_a_model_that_explodes_keeps_its_definitions():
    _, published = publish(make_wide_model(12))
    assert "$defs" in published and len(json.dumps(published)) < MAX_PORTABLE_BYTES


def test_a_model_that_branches_into_itself_is_unrolled_as_far_as_there_is_room():
    fields: dict[str, Any] = {f"child_{n}": (list["Wide"], []) for n in range(20)}
    Wide = create_model("Wide", **fields)
    Wide.model_rebuild(_types_namespace={"Wide": Wide})
    _, published = publish(Wide)
    assert not list(find_unportable(published)) and len(json.dumps(published)) < 2 * MAX_PORTABLE_BYTES


def test_combiners_at_the_root_of_a_result_are_told_in_words():
    made = move_combiners_to_description(
        {"type": "object", "description": "A key.", "properties": {}, "anyOf": [{"required": ["a"]}]}
    )
    assert made == {
        "type": "object",
        "description": 'A key.\nMust also fit {"anyOf":[{"required":["a"]}]}',
        "properties": {},
    }


async def test_what_an_author_wrote_is_listed_as_it_is():
    server = Server("written", "1", dialect="gemini")
    written = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Tree"}},
        "$defs": {"Tree": {"oneOf": [{"const": 1}, {"$ref": "#/$defs/Tree"}]}},
        "additionalProperties": False,
    }

    @server.tool(schema=written)
    def draw(tree: Any = None) -> str:
        """Draw."""
        return ""

    async with server.connect() as client:
        (tool,) = await client.tools()
    assert tool["inputSchema"] == written


# -- Narrower dialects.


async def test_a_server_for_gemini_lists_only_what_gemini_knows():
    server = Server("narrow", "1", dialect="gemini")

    @server.tool
    def grow(
        tree: Branch, rank: Rank, place: tuple[int, str], age: Annotated[int, Field(gt=3)], url: str | None = None
    ) -> Branch:
        """Grow a tree."""
        return tree

    async with server.connect() as client:
        (tool,) = await client.tools()
    known = SCHEMA_DIALECTS["gemini"].keywords
    for schema in (tool["inputSchema"], tool["outputSchema"]):
        for node in walk_schema(schema):
            assert node.keys() <= known
            assert "enum" not in node or node["type"] == "string"
            assert "anyOf" not in node or node.keys() == {"anyOf"}
    properties = tool["inputSchema"]["properties"]
    assert properties["age"] == {"type": "integer", "minimum": 4}
    assert "One of [1,2]" in properties["rank"]["description"]


def test_a_narrow_schema_has_no_references_even_if_the_portable_one_kept_them():
    narrow = narrow_schema_to_dialect(publish(make_wide_model(12))[1], "gemini")
    assert not [node for node in walk_schema(narrow) if "$ref" in node or "$defs" in node]


def test_an_unknown_dialect_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"dialect='grok'[\s\S]*'portable', 'gemini'"):
        Server("narrow", "1", dialect="grok")  # type: ignore[arg-type]


# -- The property: over any model, with any value.


LEAVES: list[Any] = [
    *(int, str, bool, float, None, Colour, Rank, Literal["a", 1], Literal[True], Leaf, Branch, dict, list),
    *(Annotated[int, Field(ge=0, lt=9)], Annotated[str, Field(max_length=3)]),
]


def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: dict[str, kind]),
        inner.map(lambda kind: kind | None if kind is not None else None),
        st.tuples(inner, inner).map(lambda kinds: tuple[kinds]),
        st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(make_model),
    )


def make_model(fields: list[tuple[Any, bool]]) -> Any:
    given: dict[str, Any] = {
        f"f{n}": (kind, ...) if needed else (Optional[kind], None)  # noqa: UP045
        for n, (kind, needed) in enumerate(fields)
    }
    made: Any = create_model("Made", **given, again=(list["Made"], []))  # noqa: F821
    made.model_rebuild(_types_namespace={"Made": made})
    return made


MODELS = st.recursive(st.sampled_from(LEAVES), extend, max_leaves=5)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from([1.5, "", "a", "red", "leaf", "longer"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["f0", "again", "kind"]), inner),
    max_leaves=4,
)


def values_of(schema: Any, defs: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that mostly fit a schema, as far as its keywords are understood here."""
    if not isinstance(schema, dict) or depth > 12:
        return ANYTHING
    if "$ref" in schema:
        return st.deferred(lambda: values_of(defs[schema["$ref"].rpartition("/")[2]], defs, depth + 1))
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return st.one_of([values_of(option, defs, depth + 1) for option in schema[word]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "object":
            named = {name: values_of(inner, defs, depth + 1) for name, inner in schema.get("properties", {}).items()}
            needed = {name: named.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(needed, optional=named if depth < 6 else {})
        case "array" if "prefixItems" in schema:
            return st.tuples(*(values_of(inner, defs, depth + 1) for inner in schema["prefixItems"])).map(list)
        case "array":
            return st.lists(values_of(schema.get("items"), defs, depth + 1), max_size=2 if depth < 6 else 0)
        case "string":
            return st.text("ab", max_size=schema.get("maxLength", 4))
        case "integer":
            return st.integers(schema.get("minimum", -5), schema.get("maximum", schema.get("exclusiveMaximum", 9) - 1))
        case "number":
            return st.floats(-9, 9)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case _:
            return ANYTHING


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_the_exact_schema_takes_fits_the_published_one(data: st.DataObject):
    arguments, published = publish(data.draw(MODELS))
    exact = arguments.schema
    value = data.draw(values_of(exact, exact.get("$defs", {})))
    if Draft202012Validator(exact).is_valid(value):
        Draft202012Validator(published).validate(value)
        Draft202012Validator(narrow_schema_to_dialect(published, "gemini")).validate(value)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_fits_the_published_schema_is_judged_and_never_crashes(data: st.DataObject):
    arguments, published = publish(data.draw(MODELS))
    assert not list(find_unportable(published))
    value = data.draw(values_of(published, {}))
    try:
        arguments.validate(value)
    except BadArguments as error:
        assert error.problems


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_a_tool_returns_fits_its_published_schema(data: st.DataObject):
    schemas = get_annotation_schemas(data.draw(MODELS))
    value = data.draw(values_of(schemas.json, schemas.json.get("$defs", {})))
    if Draft202012Validator(schemas.json).is_valid(value):
        checked = schemas.validator.validate_python(value)
        returned = schemas.serializer.to_python(checked, mode="json", by_alias=True)
        Draft202012Validator(schemas.portable_output).validate(returned)
