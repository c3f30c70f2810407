"""Schemas of OpenAPI as JSON Schema."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve import Server
from defserve.binding.explicit_schema import is_valid_instance
from defserve.errors import BadArguments
from defserve.openapi.documents import DocumentReferences
from defserve.openapi.schemas import SchemaConverter
from tests.openapi.apis import Json, document, operation, parameter
from tests.openapi.rules import broken
from tests.rows import for_each_row


def converted(schema: Any, direction: Any = "request", **schemas: Any) -> Json:
    made = SchemaConverter(DocumentReferences({"components": {"schemas": schemas}}))
    return made.convert_with_definitions(made.convert(schema, direction), direction)


def test_a_name_that_fits_a_pattern_that_is_left_out_still_fits() -> None:
    long = "^x-(" + "|".join(f"name{number}" for number in range(1000)) + ")$"
    schema: Json = {"type": "object", "patternProperties": {long: {}, "^y$": {}}, "additionalProperties": False}
    made = converted(schema)
    assert [*made["patternProperties"]] == ["^y$"] and is_valid_instance({"x-name7": 1}, made)


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


@for_each_row(
    "schema made",
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "format": "int64", "example": 3, "xml": {}, "title": "T"}, {"type": "integer"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"properties": {"a": {"type": "file"}}}, {"type": "object", "properties": {"a": {"type": "string"}}}),
        ({"type": "array", "items": {}}, {"type": "array", "items": {}}),
        ({"type": "object", "required": ["gone"], "properties": {"a": True}},
         {"type": "object", "properties": {"a": {}}}),
        ({"type": "string", "maxLength": -1, "pattern": 5, "enum": "a"}, {"type": "string"}),
        ({"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
         {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]}),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"oneOf": [{"type": "string"}, {"type": "integer"}]}),
        (False, {"not": {}}),
        ({"type": "string", "const": "a", "nullable": True},
         {"anyOf": [{"type": "string", "const": "a"}, {"type": "null"}]}),
        ({"allOf": [{"properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}},
                    {"properties": {"a": {"type": "object", "properties": {"c": {"type": "string"}},
                                          "additionalProperties": False}}}]},
         {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"},
                                                                                  "c": {"type": "string"}}}}}),
    ],
)  # fmt: skip
def test_a_schema_says_the_same_in_the_newer_words(schema: Any, made: Json) -> None:
    assert converted(schema) == made


def test_fields_that_only_one_side_writes_are_left_out() -> None:
    schema = {
        "type": "object",
        "required": ["id", "name", "secret"],
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "name": {"type": "string"},
            "secret": {"type": "string", "writeOnly": True},
        },
    }
    assert list(converted(schema)["properties"]) == ["name", "secret"]
    assert converted(schema)["required"] == ["name", "secret"]
    assert list(converted(schema, "response")["properties"]) == ["id", "name"]


def test_a_field_is_hidden_by_what_it_refers_to() -> None:
    schema = {"type": "object", "required": ["id", "name"], "properties": {"id": ref("Id"), "name": {}}, "minLength": 1}
    made = converted({**schema, "allOf": [{"maxProperties": 9}]}, Id={"type": "integer", "readOnly": True})
    assert made["required"] == ["name"] and list(made["properties"]) == ["name"]
    assert list(converted(schema, "response", Id={"type": "integer", "readOnly": True})["properties"]) == ["id", "name"]


@for_each_row("more", [{}, {"description": "One."}, {"default": {}}, {"minProperties": 1}])
def test_null_fits_a_nullable_reference(more: Json) -> None:
    target = {"type": "object", "properties": {"x": {"type": "string"}}}
    for schema in ({"nullable": True, "allOf": [ref("A")], **more}, {"nullable": True, **ref("A"), **more}):
        made = converted(schema, A=target)
        assert is_valid_instance(None, made) and not is_valid_instance(3, made), made


def test_keywords_beside_a_reference_count_from_3_1_on() -> None:
    beside = {**ref("A"), "properties": {"y": {"type": "integer"}}, "required": ["y"], "description": "Both."}
    target = {"type": "object", "properties": {"x": {"type": "string"}}}
    assert converted(beside, A=target) == {
        "type": "object",
        "properties": {"x": {"type": "string"}, "y": {"type": "integer"}},
        "required": ["y"],
        "description": "Both.",
    }
    old = SchemaConverter(DocumentReferences({"openapi": "3.0.3", "components": {"schemas": {"A": target}}}))
    assert old.convert_root(beside, "request") == target


PARENT: Json = {
    "type": "object",
    "required": ["kind"],
    "properties": {"kind": {"type": "string"}},
    "discriminator": {"propertyName": "kind"},
}


def child(**properties: Any) -> Json:
    return {"allOf": [ref("Pet"), {"type": "object", "properties": properties, "required": list(properties)}]}


@for_each_row(
    "pet cat",
    [
        ({**PARENT, "oneOf": [ref("Cat"), ref("Dog")]}, child(lives={"type": "integer"})),
        ({**PARENT, "oneOf": [ref("Cat"), ref("Dog")]}, {**child(lives={"type": "integer"}), "minProperties": 1}),
        (PARENT, child(lives={"type": "integer"})),
    ],
)
def test_a_parent_takes_the_fields_of_its_children(pet: Json, cat: Json) -> None:
    content = {"application/json": {"schema": ref("Pet")}}
    schemas = {"Pet": pet, "Cat": cat, "Dog": child(friend=ref("Pet"))}
    paths = {"/a": {"post": operation(operationId="a", body=content)}}
    tool = Server.from_openapi(document(paths, components={"schemas": schemas})).mcp.tools.registry.get("a")
    assert tool is not None and "lives" in str(tool.function.arguments.schema)
    validate = tool.function.arguments.validate
    cat_given = {"kind": "cat", "lives": 9}
    assert validate({"body": cat_given}) == {"body": cat_given}
    validate({"body": {"kind": "dog", "friend": cat_given}})
    with pytest.raises(BadArguments, match="kind"):
        validate({"body": {"lives": 9}})


@for_each_row(
    "schemas",
    [
        {"A": {"oneOf": [ref("B"), {"type": "string"}]}, "B": {"anyOf": [ref("A")]}},
        {"A": ref("B"), "B": ref("A")},
        {"A": {"type": "string", "not": ref("A")}},
        {"A": {"type": "string", "minLength": 1, "allOf": [ref("B")]}, "B": {"minLength": 2, "allOf": [ref("A")]}},
    ],
)
def test_a_schema_that_is_a_part_of_itself_can_be_checked(schemas: Json) -> None:
    made = converted({"type": "object", "properties": {"x": ref("A")}}, **schemas)
    assert is_valid_instance({"x": "text"}, made), made


def test_what_is_used_once_stands_where_it_is_used_and_what_recurs_is_defined() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": ref("Tree")}, "leaf": ref("Leaf")}}
    made = converted({"type": "object", "properties": {"tree": ref("Tree")}}, Tree=tree, Leaf={"type": "string"})
    assert made["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert made["$defs"]["Tree"]["properties"]["leaf"] == {"type": "string"}
    assert "Leaf" not in made["$defs"]


def test_all_of_in_a_circle_is_kept() -> None:
    made = converted(
        ref("A"),
        A={"allOf": [ref("B"), {"type": "object", "properties": {"a": {"type": "string"}}}]},
        B={"allOf": [ref("A"), {"type": "object", "properties": {"b": {"type": "string"}}}]},
    )
    assert "$defs" in made or "allOf" in str(made)


@for_each_row(
    "body arguments",
    [
        ({"type": "object", "properties": {"name": {"type": "string"}}}, ["id", "name"]),
        ({"type": "object", "properties": {"id": {"type": "string"}}}, ["id", "body"]),
        ({"type": "object", "additionalProperties": {"type": "string"}}, ["id", "body"]),
        ({"type": "array", "items": {"type": "string"}}, ["id", "body"]),
        ({"oneOf": [{"type": "object", "properties": {"a": {}}}]}, ["id", "body"]),
        ({"allOf": [{"type": "object", "properties": {"a": {}}}, {"properties": {"b c": {}}}]}, ["id", "a", "b_c"]),
    ],
)
def test_a_body_is_flat_where_nothing_is_lost(body: Json, arguments: list[str]) -> None:
    content = {"application/json": {"schema": body}}
    paths = {"/a/{id}": {"post": operation(parameter("id", "path"), operationId="a", body=content)}}
    tool = Server.from_openapi(document(paths)).mcp.tools.registry.get("a")
    assert tool is not None and list(tool.function.arguments.schema["properties"]) == arguments


def test_patterns_of_strangers_cannot_make_checking_slow() -> None:
    evil = {"type": "string", "pattern": r"^\w*\d*\w*\d*\w*$"}
    many = {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "^[a-z]+$"}}
    paths = {"/a": {"get": operation(parameter("q", kind=evil), parameter("l", kind=many), operationId="a")}}
    tool = Server.from_openapi(document(paths)).mcp.tools.registry.get("a")
    assert tool is not None
    validate = tool.function.arguments.validate
    with pytest.raises(BadArguments, match="must match the pattern"):
        validate({"q": "a" * 9_000 + "!"})
    with pytest.raises(BadArguments, match="at most 10000 characters"):
        validate({"q": "a" * 50_000 + "!"})
    assert validate({"l": '["a", "b"]'}) == {"l": ["a", "b"]}
    with pytest.raises(BadArguments):
        validate({"l": ["A"]})


def test_a_pattern_that_only_the_api_can_check_stays_published_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = {"type": "string", "pattern": r"^(?=.*\d)\w+$"}
    names = {"type": "object", "patternProperties": {r"^(a)\1$": {"type": "integer"}}, "additionalProperties": False}
    wrong = {"type": "string", "pattern": "("}
    given = [parameter(name, kind=kind) for name, kind in (("q", looks), ("n", names), ("w", wrong))]
    tool = Server.from_openapi(document({"/a": {"get": operation(*given, operationId="a")}})).mcp.tools.registry.get(
        "a"
    )
    assert tool is not None
    properties = tool.function.arguments.schema["properties"]
    assert properties["q"]["pattern"] == looks["pattern"] and "pattern" not in properties["w"]
    for _ in range(2):
        assert tool.function.arguments.validate({"q": "no digit", "n": {"aa": "x"}, "w": "x"})
    said = [record.getMessage() for record in caplog.records if "enforces it" in record.getMessage()]
    assert len(said) == 2 and any("looks around with (?=: it stays published" in line for line in said)


LEAVES: list[Any] = [
    {},
    {"type": "string"},
    {"type": "integer", "nullable": True},
    {"type": "null"},
    True,
    False,
    None,
    3,
]


class Writer:
    """Writes schemas, sensible and odd ones, always the same for one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def schema(self, depth: int = 0) -> Any:
        choose = self.random.choice
        if depth > 2 or self.random.random() < 0.3:
            return choose([*LEAVES, *map(ref, "ABCD")])
        several = [self.schema(depth + 1) for _ in range(self.random.randint(0, 3))]
        keywords: Json = {
            "type": choose(["object", "array", "string", ["string", "null"], "file", 7]),
            "properties": {choose(["a", "b c", "$ref", "ü", "type", "x" * 80]): each for each in several},
            "required": choose([["a"], ["gone", 3], "x"]),
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "items": self.schema(depth + 1),
            "additionalProperties": self.schema(depth + 1),
            "not": self.schema(depth + 1),
            "enum": choose([["a", None], [], "x"]),
            "nullable": choose([True, False, "yes"]),
            "readOnly": choose([True, False]),
            "description": choose(["Words.", "\u202e\x00", "x" * 999, 5]),
            "default": None,
            "minimum": choose([1, -1, "x"]),
            "exclusiveMinimum": choose([True, False, 2]),
            "pattern": choose(["^a$", "(a+)+", "(", 7]),
            "uniqueItems": choose([True, "x"]),
            "example": 3,
            "x-more": {},
        }
        return {name: keywords[name] for name in self.random.sample([*keywords], self.random.randint(1, 6))}


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.text(max_size=12), st.sampled_from(["query", "header", "path", "cookie"]))
def test_any_document_gives_tools_that_keep_the_rules(seed: int, name: str, place: str) -> None:
    writer = Writer(seed)
    content = {"application/json": {"schema": writer.schema()}}
    one = operation(
        {"name": name, "in": place, "schema": writer.schema()}, body=content, operationId=name, summary=name
    )
    one["responses"] = {"200": {"description": "", "content": content}}
    components = {"schemas": {each: writer.schema() for each in "ABCD"}}
    server = Server.from_openapi(document({"/a/{x}": {"post": one}}, components=components))
    assert broken(server) == []
