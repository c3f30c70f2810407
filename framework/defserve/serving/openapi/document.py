"""An OpenAPI 3.0 document of a server's tools: `POST /tools/{name}`, as the REST mount serves them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from defserve.protocols.mcp.tools.tools import RETURNS_KEY, TAGS_KEY
from defserve.serving.openapi.dialect import openapi_schema
from defserve.serving.openapi.examples import examples
from defserve.wire.jsonvalue import is_array, is_mapping

VERSION: Final = "3.0.3"

ERROR_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string", "description": "A word for programs, such as invalid_arguments."},
                "message": {"type": "string", "description": "What happened, for people and models."},
                "trace_id": {"type": "string"},
                "problems": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"field": {"type": "string"}, "reason": {"type": "string"}},
                    },
                },
            },
        }
    },
}
# Component → what the response means.
FAILURES: Final = {
    "ValidationError": "The arguments do not fit the tool.",
    "NotFound": "There is no such tool, or not for this caller.",
    "Failure": "The call was refused, or the tool failed.",
}


def openapi(
    info: Mapping[str, Any], tools: Iterable[Mapping[str, Any]], *, base: str = "", authorized: bool = False
) -> dict[str, Any]:
    """The document for a server that describes itself by `info` and lists `tools`.

    `base` is the path in front of `/tools`; `authorized`: callers need a bearer token.
    """
    schemas: dict[str, Any] = {
        "Error": ERROR_SCHEMA,
        "Anything": {},
        "ToolInput": {"type": "object", "description": "The tool's arguments by name."},
        "ToolOutput": {"type": "object", "required": ["result"], "properties": {"result": {}}},
    }
    paths: dict[str, Any] = {
        f"/tools/{tool['name']}": {"post": _operation(tool, schemas, authorized)} for tool in tools
    }
    paths["/tools/{tool_name}"] = {"post": _any_tool(paths, authorized)}
    document: dict[str, Any] = {
        "openapi": VERSION,
        "info": _info(info),
        "paths": paths,
        "components": {"schemas": schemas, "responses": {name: _failure(text) for name, text in FAILURES.items()}},
    }
    if base:
        document["servers"] = [{"url": base}]
    if authorized:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    return document


def _info(info: Mapping[str, Any]) -> dict[str, Any]:
    about = info.get("description")
    shown = {"title": info.get("title") or info.get("name") or "tools", "version": str(info.get("version") or "0")}
    return {**shown, "description": about} if about else shown


def _operation(tool: Mapping[str, Any], schemas: dict[str, Any], authorized: bool) -> dict[str, Any]:
    name, wanted = tool["name"], input_schema(tool)
    asked, given = f"{name}.input", f"{name}.output"
    _add(schemas, asked, wanted)
    _add(schemas, given, output_schema(tool))
    body: dict[str, Any] = {"schema": _reference(asked)}
    if made := examples(wanted):
        body["examples"] = {f"example{number}": {"value": value} for number, value in enumerate(made, 1)}
    described = tool.get("description") or ""
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": tool.get("title") or described.partition("\n")[0][:120] or name,
        "requestBody": {"required": bool(wanted.get("required")), "content": {"application/json": body}},
        "responses": _responses(given, authorized),
    }
    if described:
        operation["description"] = described
    if tags := tags_of(tool):
        operation["tags"] = tags
    return operation


def input_schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a listed tool's arguments."""
    found: Any = tool.get("inputSchema")
    return found if is_mapping(found) else {}


def tags_of(tool: Mapping[str, Any]) -> list[str]:
    """The tags of a listed tool."""
    meta: Any = tool.get("_meta")
    tags: Any = meta.get(TAGS_KEY) if is_mapping(meta) else None
    return [str(tag) for tag in tags] if is_array(tags) else []


def output_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """What `POST /tools/{name}` answers: the tool's value, under `result`."""
    meta: Any = tool.get("_meta")
    scalar: Any = meta.get(RETURNS_KEY) if is_mapping(meta) else None
    result: dict[str, Any] = dict(tool.get("outputSchema") or scalar or {})
    definitions = result.pop("$defs", None)
    whole: dict[str, Any] = {"type": "object", "required": ["result"], "properties": {"result": result}}
    return {**whole, "$defs": definitions} if definitions else whole


def _any_tool(others: Mapping[str, Any], authorized: bool) -> dict[str, Any]:
    name = "call_any_tool"
    while f"/tools/{name}" in others:
        name += "_"
    return {
        "operationId": name,
        "summary": "Call a tool by its name",
        "parameters": [{"name": "tool_name", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"content": {"application/json": {"schema": _reference("ToolInput")}}},
        "responses": _responses("ToolOutput", authorized),
    }


def _responses(given: str, authorized: bool) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference(given)}}
    responses: dict[str, Any] = {
        "200": {"description": "What the tool gave back.", "content": content},
        "400": {"$ref": "#/components/responses/ValidationError"},
        "404": {"$ref": "#/components/responses/NotFound"},
        "default": {"$ref": "#/components/responses/Failure"},
    }
    if authorized:
        responses["401"] = {"description": "A bearer token is needed."}
    return responses


def _failure(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _reference("Error")}}}


def _add(schemas: dict[str, Any], name: str, schema: Mapping[str, Any]) -> None:
    """Add a schema and its definitions to the components, and make its references point there."""

    def component(definition: str) -> str:
        return f"{name}-{re.sub(r'[^A-Za-z0-9._-]', '_', definition)}"

    definitions: Mapping[str, Any] = schema.get("$defs") or {}

    def refer(reference: str) -> str:
        known = reference.removeprefix("#/$defs/")
        if reference == "#":
            return f"#/components/schemas/{name}"
        # The target of any other reference is not known.
        return f"#/components/schemas/{component(known) if known in definitions else 'Anything'}"

    schemas[name] = openapi_schema(schema, refer)
    for definition, its_schema in definitions.items():
        schemas[component(definition)] = openapi_schema(its_schema, refer)


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
