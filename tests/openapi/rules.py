"""What holds for every tool that is made of a document, whoever wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema

from defserve import Server
from defserve.base.hidden_characters import iter_hidden_character_notes
from defserve.binding.json_schemas import walk_schema
from defserve.openapi.operations import drop_repeated_words
from defserve.protocols.mcp.tools import Tool

NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
OF_OPENAPI = {
    "nullable",
    "example",
    "examples",
    "discriminator",
    "xml",
    "externalDocs",
    "readOnly",
    "writeOnly",
    "title",
}
MOST_BYTES = 64_000


def broken(server: Server) -> list[str]:
    """The rules that the tools of a server break."""
    tools = [tool for _, tool in server.mcp.tools.registry.items() if not tool.name.startswith("mgp_")]
    names = [tool.name for tool in tools]
    found = [f"{name} is there twice" for name in set(names) if names.count(name) > 1]
    return found + [f"{tool.name}: {problem}" for tool in tools for problem in of_tool(tool)]


def of_tool(tool: Tool) -> Iterator[str]:
    if not NAME.fullmatch(tool.name) or len(tool.name) > 64:
        yield "the name is not made of words, or too long"
    words = tool.name.split("_")
    if drop_repeated_words(words) != words and not words[-1].isdigit():
        yield "the name repeats itself"
    if not 0 < len(tool.description) <= 640 or [*iter_hidden_character_notes(tool.description)]:
        yield f"the description is empty, too long or not printable: {tool.description[:80]!r}"
    yield from of_schema(tool.function.arguments.schema, "input")
    for name in tool.function.arguments.schema.get("properties", {}):
        if not ARGUMENT.fullmatch(name):
            yield f"the argument {name!r} has a name that model APIs refuse"
    output = tool.returns.publish_schema()
    if output is not None:
        yield from of_schema(output, "output")


def of_schema(schema: dict[str, Any], kind: str) -> Iterator[str]:
    if schema.get("type") != "object":
        yield f"the {kind} schema is not that of an object"
    if (size := len(json.dumps(schema))) > MOST_BYTES:
        yield f"the {kind} schema has {size} bytes"
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        yield f"the {kind} schema is none: {error.json_path} {error.message[:200]}"
    defs = schema.get("$defs", {})
    for node in walk_schema(schema):
        if odd := [word for word in node if word in OF_OPENAPI or word.startswith("x-")]:
            yield f"the {kind} schema has {odd}"
        ref = node.get("$ref")
        if ref is not None and ref.removeprefix("#/$defs/") not in defs:
            yield f"the {kind} schema refers to {ref}, which is not there"
