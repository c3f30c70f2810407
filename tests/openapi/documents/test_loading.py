"""Documents from everywhere, and from strangers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, UsageError
from defserve.base.yaml_values import parse_yaml
from defserve.openapi.documents import load_document
from tests.openapi.apis import Json, document, operation, parameter
from tests.rows import for_each_row

DOCUMENT = document({"/a": {"get": operation(operationId="a")}})

YAML = """
openapi: 3.0.3
info: {title: Norway, version: 1.0}
servers: [{url: https://api.example.com}]
paths:
  /a:
    get:
      operationId: a
      parameters:
        - &page {name: page, in: query, schema: {type: integer}}
        - name: country
          in: query
          schema: {type: string, enum: [no, se, on], default: no}
      responses:
        200: {description: 2020-01-01}
  /b:
    get: {operationId: b, parameters: [*page], responses: {}}
"""


def test_a_document_is_an_object_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text("\ufeff" + json.dumps(DOCUMENT), encoding="utf-8")
    for source in (DOCUMENT, json.dumps(DOCUMENT), file, str(file), YAML):
        assert load_document(source).content["openapi"].startswith("3.")


def test_yaml_is_read_as_json_would_be() -> None:
    paths = load_document(YAML).content["paths"]
    assert paths["/a"]["get"]["parameters"][1]["schema"] == {
        "type": "string",
        "enum": ["no", "se", "on"],
        "default": "no",
    }
    assert paths["/a"]["get"]["responses"] == {"200": {"description": "2020-01-01"}}
    assert paths["/b"]["get"]["parameters"][0]["name"] == "page"
    server = Server.from_openapi(YAML)
    assert [tool.name for tool in server.mcp.tools.registry] == ["a", "b"]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]" for n in range(12)
)
MERGED_BOMB = f"a: &a {{{', '.join(f'k{n}: 0' for n in range(2_000))}}}\nb: [{', '.join(['{<<: *a}'] * 501)}]"


@for_each_row(
    "source problem",
    [
        ({"swagger": "2.0"}, "it says version '2.0'"),
        ({"openapi": 3}, "it says version '3'"),
        ({}, 'it has no "openapi" field'),
        ("gone.json", r"cannot be read: .*\n  fix: it is looked for in /.*with_name\('gone.json'\)"),
        ("/gone.json", "cannot be read: .*\n  fix: give the document as a dict"),
        ("{\n", "neither JSON nor YAML"),
        ("[1,\n2]", "holds no object"),
        ("a: [\n", "neither JSON nor YAML"),
        (BOMB, "aliases make more than"),
        (MERGED_BOMB, "merge keys"),
        ("a: &a\n  b: *a\n", "an alias stands inside"),
        ("a: &a\n  <<: *a\n", "an alias stands inside"),
        ("a: !!python/object/apply:os.system ['true']\n", "neither JSON nor YAML"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested deeper"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "neither JSON nor YAML|nested deeper"),
        (7, "a int is not an OpenAPI document"),
        ({"openapi": "3.1.0", "a": {1, 2}}, "not an OpenAPI|none of its"),
    ],
)
def test_what_is_no_document_is_refused(source: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Server.from_openapi(source, base_url="https://api.example.com")


def test_a_merge_key_of_yaml_brings_what_it_names() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: {<<: *b}\ne: {<<: text}\n"
    found = parse_yaml(text, "it", max_depth=9, is_tolerant=True)
    assert found["c"] == {"x": 3, "y": 1, "z": 2} and found["d"] == {"y": 2, "z": 2} and found["e"] == {"<<": "text"}
    doubled = "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}\n" for n in range(20))
    assert parse_yaml(doubled, "it", max_depth=9, is_tolerant=True)["a20"] == {"x": 1}


def test_a_reference_to_another_file_is_followed_only_if_that_is_allowed(tmp_path: Path) -> None:
    folder = tmp_path / "api"
    folder.mkdir()
    (tmp_path / "secret.json").write_text('{"x": {"type": "string"}}')
    (folder / "more.yaml").write_text(
        "Item:\n  type: object\n  properties:\n    next: {$ref: '#/Item'}\n    name: {type: string}\n"
    )
    main = folder / "openapi.json"

    def write(ref: str) -> None:
        body = {"application/json": {"schema": {"$ref": ref}}}
        main.write_text(json.dumps(document({"/a": {"post": operation(operationId="a", body=body)}})))

    write("more.yaml#/Item")
    server = Server.from_openapi(main, remote_refs=True)
    tool = server.mcp.tools.registry.get("a")
    assert tool is not None
    schema = tool.function.arguments.schema
    assert list(schema["properties"]) == ["next", "name"] and "$defs" in schema
    closed = Server.from_openapi(main).mcp.tools.registry.get("a")
    assert closed is not None and list(closed.function.arguments.schema["properties"]) == ["body"]
    outside = ("../secret.json#/x", "file:///etc/passwd", "http://127.0.0.1:9/x.json", "https://evil.example/x.json")
    for ref in (*outside, "//[x/a.json#/x", "a%00.json#/x", "a\ud800.json#/x"):
        write(ref)
        with pytest.raises(UsageError, match="leads out of where the document is"):
            Server.from_openapi(main, remote_refs=True)


def test_a_long_chain_of_files_is_followed(tmp_path: Path) -> None:
    for number in range(150):
        inside = {"type": "array", "items": {"$ref": f"{number + 1} é.json#/S"}} if number < 149 else {"type": "string"}
        (tmp_path / f"{number} é.json").write_text(json.dumps({"S": {"type": "object", "properties": {"a": inside}}}))
    main = tmp_path / "api.json"
    body = {"application/json": {"schema": {"$ref": "0 é.json#/S"}}}
    main.write_text(json.dumps(document({"/a": {"post": operation(operationId="a", body=body)}})))
    tool = Server.from_openapi(main, remote_refs=True).mcp.tools.registry.get("a")
    assert tool is not None and [*tool.function.arguments.schema["properties"]] == ["a"]


@for_each_row(
    "ref",
    [
        "#/components/schemas/Gone",
        "#/nowhere/at/all",
        "#/paths/~1a/get/9",
        "#/paths/~1a/post/tags/" + "9" * 5000,
        "other.json",
        "#",
    ],
)
def test_one_bad_reference_costs_one_schema_and_not_the_document(ref: str) -> None:
    body = {"application/json": {"schema": {"$ref": ref}}}
    post = operation(operationId="a", body=body, tags=["t"], responses={"200": {"$ref": ref}})
    server = Server.from_openapi(document({"/a": {"post": post}}))
    tool = server.mcp.tools.registry.get("a")
    assert tool is not None and tool.function.arguments.schema["type"] == "object"
    assert tool.returns.publish_schema() is None


@for_each_row(
    "schema", [{"type": [{}]}, {"type": {"a": 1}}, {"format": ["date"]}, {"maxLength": 1.5}, {"maximum": 1e999}]
)
def test_a_keyword_with_a_value_that_it_cannot_have_is_left_out(schema: Json) -> None:
    nowhere: Json = {"name": "x", "in": ["query"], "schema": {}}
    server = Server.from_openapi(
        document({"/a": {"get": operation(parameter("q", kind=schema), nowhere, operationId="a")}})
    )
    tool = server.mcp.tools.registry.get("a")
    assert tool is not None
    published = tool.function.arguments.publish_schema()
    assert published["properties"].keys() == {"q"} and published["properties"]["q"] in ({}, {"type": "string"})


def test_a_field_of_a_form_with_forms_that_are_none_is_an_argument() -> None:
    schema: Json = {"type": "object", "properties": {"a": {"anyOf": None}, "b": {"oneOf": 1.5}}}
    body = {"multipart/form-data": {"schema": schema}}
    server = Server.from_openapi(document({"/a": {"post": operation(operationId="a", body=body)}}))
    tool = server.mcp.tools.registry.get("a")
    assert tool is not None and tool.function.arguments.publish_schema()["properties"].keys() == {"a", "b"}


def test_references_of_parameters_bodies_and_paths_are_followed() -> None:
    content = document(
        {"/a/{id}": {"$ref": "#/components/pathItems/A"}},
        components={
            "pathItems": {
                "A": {
                    "post": {
                        "operationId": "a",
                        "parameters": [{"$ref": "#/components/parameters/Id"}],
                        "requestBody": {"$ref": "#/components/requestBodies/B"},
                        "responses": {},
                    }
                }
            },
            "parameters": {"Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}},
            "requestBodies": {"B": {"content": {"text/plain": {"schema": {"type": "string"}}}, "required": True}},
        },
    )
    tool = Server.from_openapi(content).mcp.tools.registry.get("a")
    assert tool is not None
    assert tool.function.arguments.schema["properties"] == {"id": {"type": "integer"}, "body": {"type": "string"}}
    circle = document({"/a": {"$ref": "#/paths/~1b"}, "/b": {"$ref": "#/paths/~1a"}})
    with pytest.raises(UsageError, match="leads in a circle"):
        Server.from_openapi(circle)
