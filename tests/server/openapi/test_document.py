from __future__ import annotations

import re
from typing import Any

import pytest
from openapi_spec_validator import validate

from defserve.server.openapi_document import NULL, build_openapi_document, make_examples, openapi_schema
from defserve.tooling.listing import server_listing
from tests.effort import cpu_within
from tests.export import shop
from tests.hostile_schemas import DENSE, SCHEMAS
from tests.rows import for_each_row

BRANCH = {"type": "object", "properties": {"branches": {"type": "array", "items": {"$ref": "#/$defs/Branch"}}}}
MOUNTED = {
    "name": "prune",
    "inputSchema": {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Branch"}},
        "$defs": {"Branch": BRANCH},
    },
}
"""As another server lists it: what is mounted keeps its `$defs`."""


@pytest.fixture
def document() -> dict[str, Any]:
    found = server_listing(shop.server.composition)
    assert found is not None
    return build_openapi_document(found.info, [*found.tools, MOUNTED])


@pytest.mark.req("GGEN-EXP-3")
def test_a_public_validator_takes_the_document(document: dict[str, Any]):
    validate(document)
    assert document["openapi"].startswith("3.0.")
    assert document["info"] == {"title": "The shop", "version": "1.2.0", "description": "Orders and their prices."}


@pytest.mark.req("GGEN-EXP-3")
def test_every_reference_leads_somewhere(document: dict[str, Any]):
    references = set(re.findall(r"'\$ref': '([^']+)'", str(document)))
    assert "#/components/schemas/prune.input-Branch" in references
    for reference in references:
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]


@pytest.mark.req("GGEN-EXP-3")
def test_each_tool_is_a_path_with_its_arguments_and_answers(document: dict[str, Any]):
    assert set(document["paths"]) >= {"/tools/order", "/tools/price", "/tools/{tool_name}"}
    for path in ("/tools/price", "/tools/{tool_name}"):
        assert document["paths"][path]["post"]["responses"].keys() >= {"200", "400", "404"}
    price = document["paths"]["/tools/price"]["post"]
    assert (price["operationId"], price["tags"]) == ("price", ["prices"])
    assert price["requestBody"]["content"]["application/json"]["examples"]["example1"]["value"] == {"ticker": "A"}
    assert document["components"]["schemas"]["price.output"]["properties"]["result"] == {"type": "number"}


def test_a_tool_may_have_the_name_of_an_operation_of_ours():
    made = build_openapi_document({"name": "x"}, [{"name": "call_any_tool", "inputSchema": {"type": "object"}}])
    validate(made)
    assert len({path["post"]["operationId"] for path in made["paths"].values()}) == 2


def test_a_reference_to_what_is_not_there_is_anything():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#"}}}
    made = build_openapi_document({"name": "x"}, [{"name": "add", "inputSchema": schema}])
    validate(made)
    assert made["components"]["schemas"]["add.input"]["properties"] == {
        "a": {"$ref": "#/components/schemas/Anything"},
        "b": {"$ref": "#/components/schemas/add.input"},
    }


def test_a_reference_to_a_whole_schema_is_not_led_to_what_holds_the_answer():
    tree = {"type": "object", "properties": {"inner": {"$ref": "#"}}}
    made = build_openapi_document({"name": "x"}, [{"name": "grow", "inputSchema": tree, "outputSchema": tree}])
    validate(made)
    result = made["components"]["schemas"]["grow.output"]["properties"]["result"]
    assert result["properties"]["inner"] == {"$ref": "#/components/schemas/grow.output/properties/result"}


def test_a_definition_whose_name_is_written_with_escapes_is_found():
    schema = {"$defs": {"a/b c": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a~1b%20c"}}}
    made = build_openapi_document({"name": "x"}, [{"name": "add", "inputSchema": schema}])
    validate(made)
    assert made["components"]["schemas"]["add.input"]["properties"]["x"]["$ref"].endswith("/add.input-a_b_c")


def test_a_pattern_of_many_letters_costs_little():
    many = {"type": "string", "minLength": 70, "pattern": f"[{''.join(map(chr, range(0x4E00, 0x4E00 + 900)))}]"}
    assert cpu_within(0.6, lambda: make_examples({"required": ["a"], "properties": {"a": many}}))


def test_callers_are_told_of_the_token_they_need():
    made = build_openapi_document({"name": "x"}, [], base="/api", authorized=True)
    validate(made)
    assert made["security"] == [{"bearer": []}]
    assert made["servers"] == [{"url": "/api"}]


@for_each_row(
    ("schema", "said"),
    [
        ({"const": 1}, {"enum": [1]}),
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": "null"}, {"enum": [None], "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"type": "integer", "nullable": True}),
        (
            {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
            {"anyOf": [{"$ref": "A"}, {"enum": [None], "nullable": True}]},
        ),
        ({"type": ["string", "integer", "null"]}, {"anyOf": [{"type": "string"}, {"type": "integer"}, NULL]}),
        (
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
            {"anyOf": [{"type": "string", "enum": ["a"]}, NULL]},
        ),
        ({"anyOf": [{"const": 1}, {"type": "null"}]}, {"anyOf": [{"enum": [1]}, NULL]}),
        ({"exclusiveMinimum": 3}, {"minimum": 3, "exclusiveMinimum": True}),
        ({"minimum": 5, "exclusiveMinimum": 3}, {"minimum": 5}),
        ({"maximum": 5, "exclusiveMaximum": 5}, {"maximum": 5, "exclusiveMaximum": True}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, {"type": "array", "items": {}}),
        ({"examples": [1, 2]}, {"example": 1}),
        ({"$ref": "#/$defs/A", "description": "lost"}, {"$ref": "A"}),
        ({"additionalProperties": False, "required": []}, {"additionalProperties": False}),
        ({"additionalProperties": {"const": 1}}, {"additionalProperties": {"enum": [1]}}),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {}),
        ({"patternProperties": {"^x": {}}, "if": {}, "$comment": "x"}, {}),
        (True, {}),
        (False, {"not": {}}),
    ],
)
def test_what_openapi_says_in_other_words(schema: Any, said: dict[str, Any]):
    assert openapi_schema(schema, lambda reference: reference.removeprefix("#/$defs/")) == said


# -- schemas of other servers ---------------------------------------------------------------------------


def listed(name: str, member: str) -> list[dict[str, Any]]:
    good: dict[str, Any] = {"name": "good", "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    return [{"name": "far", "inputSchema": {"type": "object"}, member: SCHEMAS[name]}, good]


@for_each_row(("name", "member"), [(name, member) for name in SCHEMAS for member in ("inputSchema", "outputSchema")])
def test_no_schema_of_another_server_breaks_or_delays_the_document(name: str, member: str):
    tools = listed(name, member)
    assert "/tools/good" in build_openapi_document({"name": "front"}, tools)["paths"]
    assert cpu_within(1.5, lambda: build_openapi_document({"name": "front"}, tools))


@for_each_row("name", list(DENSE))
def test_no_schema_takes_long_to_make_examples_for(name: str):
    assert cpu_within(1.5, lambda: make_examples(DENSE[name]))


@pytest.mark.parametrize("name", ["a bound that is a text", "as many branches"])
def test_a_tool_whose_schema_cannot_be_translated_is_left_out_with_a_warning(
    name: str, caplog: pytest.LogCaptureFixture
):
    made = build_openapi_document({"name": "front"}, listed(name, "inputSchema"))
    assert "/tools/far" not in made["paths"] and not [part for part in made["components"]["schemas"] if "far" in part]
    (told,) = caplog.messages
    assert "leaves out the tool 'far'" in told and len(told) < 1_000
    validate(made)


@for_each_row(
    "described, summary",
    [
        ("word " * 24, ("word " * 24).strip()),
        ("word " * 30, "word " * 23 + "…"),
        ("x" * 200, "x" * 119 + "…"),
    ],
)
def test_a_summary_that_is_cut_says_so_and_ends_with_a_whole_word(described: str, summary: str):
    tool = {"name": "long", "description": described.strip(), "inputSchema": {"type": "object"}}
    shown = build_openapi_document({"name": "s", "version": "1"}, [tool])["paths"]["/tools/long"]["post"]["summary"]
    assert shown == summary.replace(" …", "…")


def test_many_tools_that_are_left_out_fill_no_log(caplog: pytest.LogCaptureFixture):
    (bad,) = [tool for tool in listed("a bound that is a text", "inputSchema") if tool["name"] == "far"]
    build_openapi_document({"name": "front"}, [{**bad, "name": f"far_{number}"} for number in range(1_000)])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 11 and warnings[-1].endswith("leaves out 990 more tools like these")
