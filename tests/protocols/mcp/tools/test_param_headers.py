from __future__ import annotations

from typing import Any

import pytest
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map

from defserve.protocols.mcp.tool_options import PARAM_HEADER_PREFIX, find_param_headers
from tests.rows import for_each_row

REGION = {"type": "string", "x-mcp-header": "Region"}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


GOOD: list[tuple[dict[str, Any], dict[tuple[str, ...], str]]] = [
    ({}, {}),
    ({"type": "object"}, {}),
    (schema(a={"type": "integer"}), {}),
    (schema(region=REGION), {("region",): "Mcp-Param-Region"}),
    (
        schema(a={"type": "integer", "x-mcp-header": "A"}, b={"type": "boolean", "x-mcp-header": "x-b_1~"}),
        {("a",): "Mcp-Param-A", ("b",): "Mcp-Param-x-b_1~"},
    ),
    (schema(where=schema(region=REGION)), {("where", "region"): "Mcp-Param-Region"}),
    # Names and data that only look like annotations.
    (schema(**{"x-mcp-header": {"type": "string"}}), {}),
    (schema(properties=REGION), {("properties",): "Mcp-Param-Region"}),
    (schema(a={"type": "object", "default": {"x-mcp-header": "bad name"}}), {}),
    (schema(a={"enum": [{"x-mcp-header": ""}], "examples": [{"x-mcp-header": 1}], "const": REGION}), {}),
]

BAD: list[tuple[dict[str, Any], str]] = [
    (schema(a={"type": "string", "x-mcp-header": ""}), r"a: .*not a header name"),
    (schema(a={"type": "string", "x-mcp-header": "two words"}), "not a header name"),
    (schema(a={"type": "string", "x-mcp-header": "X:"}), "not a header name"),
    (schema(a={"type": "string", "x-mcp-header": "X\n"}), "not a header name"),
    (schema(a={"type": "string", "x-mcp-header": "é"}), "not a header name"),
    (schema(a={"type": "string", "x-mcp-header": 1}), "not a header name"),
    (schema(a={"type": "string", "x-mcp-header": None}), "not a header name"),
    (schema(a={"type": "number", "x-mcp-header": "A"}), "string, integer or boolean.*'number'"),
    (schema(a={"type": "object", "x-mcp-header": "A"}), "string, integer or boolean"),
    (schema(a={"type": "array", "x-mcp-header": "A"}), "string, integer or boolean"),
    (schema(a={"type": ["string", "null"], "x-mcp-header": "A"}), "string, integer or boolean"),
    (schema(a={"anyOf": [{"type": "string"}, {"type": "null"}], "x-mcp-header": "A"}), "string, integer or boolean"),
    (schema(a=REGION, b={"type": "string", "x-mcp-header": "REGION"}), "both a and b"),
    (schema(a=REGION, b=schema(c=REGION)), r"both a and b\.c"),
    (schema(a=schema(b=REGION), **{"a.b": REGION}), r"both a\.b and a\.b"),
    ({"type": "string", "x-mcp-header": "Root"}, "where clients do not look"),
    (schema(a={"type": "array", "items": REGION}), "where clients do not look"),
    (schema(a={"type": "array", "items": [REGION]}), "where clients do not look"),
    (schema(a={"prefixItems": [REGION]}), "where clients do not look"),
    (schema(a={"anyOf": [REGION, {"type": "null"}]}), "where clients do not look"),
    ({"allOf": [schema(a=REGION)]}, "where clients do not look"),
    ({"oneOf": [schema(a=REGION)]}, "where clients do not look"),
    ({"not": schema(a=REGION)}, "where clients do not look"),
    ({"if": schema(a=REGION)}, "where clients do not look"),
    ({"$defs": {"A": schema(a=REGION)}, "$ref": "#/$defs/A"}, "where clients do not look"),
    ({"additionalProperties": REGION}, "where clients do not look"),
    ({"patternProperties": {"^a": REGION}}, "where clients do not look"),
    ({"dependentSchemas": {"a": schema(b=REGION)}}, "where clients do not look"),
]


@for_each_row(("given", "headers"), GOOD)
def test_annotated_arguments_are_found_by_their_path(given: dict[str, Any], headers: dict[tuple[str, ...], str]):
    assert find_param_headers(given) == headers


@for_each_row(("given", "problem"), BAD)
def test_an_annotation_for_which_clients_would_drop_the_tool_is_refused(given: dict[str, Any], problem: str):
    with pytest.raises(ValueError, match=problem):
        find_param_headers(given)


@for_each_row("given", [given for given, _ in GOOD])
def test_the_official_client_reads_what_we_accept_alike(given: dict[str, Any]):
    assert find_invalid_x_mcp_header(given) is None
    assert {path: PARAM_HEADER_PREFIX + token for path, token in x_mcp_header_map(given).items()} == find_param_headers(
        given
    )


def test_a_schema_of_any_depth_is_read():
    deep: dict[str, Any] = REGION
    for _ in range(1_000):
        deep = schema(a=deep)
    assert list(find_param_headers(deep)) == [("a",) * 1_000]
