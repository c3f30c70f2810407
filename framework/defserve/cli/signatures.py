"""Tools, resources and prompts in one line each, written like the signature of a function."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.cli.screen.blocks import Line, Part, text_of
from defserve.wire.jsonvalue import is_array, is_object

DEFINITIONS: Final = "#/$defs/"
WORD: Final = re.compile(r"[\w.-]{1,100}", re.ASCII)
WHEN: Final = {False: "in every request", True: "if all are listed; search may list fewer"}
"""When a list of tools costs its tokens, by whether the tools are searched."""


def item_lines(item: dict[str, Any], *more: Part) -> Iterator[Line]:
    """An item for a terminal: its signature, and the first line of its description."""
    yield Line("  ", *signature_parts(item), *more, hang=4)
    if about := first_line(item):
        yield Line(f"      {about}", hang=0)


def signature(item: dict[str, Any]) -> str:
    """`add(a: integer, b: integer = 1)` for a tool, `hi(name, style?)` for a prompt, the URI of a resource."""
    return "".join(map(text_of, signature_parts(item)))


def signature_parts(item: dict[str, Any]) -> list[Part]:
    """The same with styles."""
    if "uri" in item or "uriTemplate" in item:
        title = item.get("title") or item.get("name")
        return [(str(item.get("uri") or item.get("uriTemplate")), "title"), f"  {title}" if title else ""]
    given = _parameters(item["inputSchema"]) if "inputSchema" in item else _arguments(item.get("arguments") or [])
    parts: list[Part] = [(str(item["name"]), "title"), "("]
    for number, parameter in enumerate(given):
        parts += [", " if number else "", *parameter]
    return [*parts, ")"]


def _arguments(arguments: list[dict[str, Any]]) -> Iterator[list[Part]]:
    for argument in arguments:
        yield [str(argument["name"]), "" if argument.get("required") else ("?", "faint")]


def _parameters(schema: dict[str, Any]) -> Iterator[list[Part]]:
    required: list[str] = schema.get("required") or []
    properties: dict[str, Any] = schema.get("properties") or {}
    for name, property in properties.items():
        shown: list[Part] = [f"{name}: ", (type_name(property), "type")]
        if is_object(property) and "default" in property:
            yield [*shown, " = ", (json.dumps(property["default"], ensure_ascii=False), "default")]
        else:
            yield shown if name in required else [*shown, " = …"]


def object_example(name: str, schema: Any, root: dict[str, Any]) -> str:
    """`place:='{"street": …}'`, with the fields that an object needs; empty for anything else."""
    found = schema if is_object(schema) else {}
    if str(found.get("$ref")).startswith(DEFINITIONS):
        defined = root.get("$defs")
        found = defined.get(str(found["$ref"])[len(DEFINITIONS) :]) if is_object(defined) else None
    required = found.get("required") if is_object(found) else None
    fields = [str(field) for field in required] if is_array(required) else []
    # People copy the line into a shell, and the names are the server's.
    if not fields or not all(WORD.fullmatch(word) for word in (name, *fields)):
        return ""
    inside = ", ".join(f'"{field}": …' for field in fields)
    return f"{name}:='{{{inside}}}'"


def type_name(schema: Any) -> str:
    """A schema in a word or two."""
    known: dict[str, Any] = schema if is_object(schema) else {}
    if is_array(known.get("enum")):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in known["enum"])
    if "$ref" in known:
        return str(known["$ref"]).rpartition("/")[2]
    if known.get("type") == "array":
        return f"{type_name(known.get('items'))}[]"
    if is_array(known.get("type")):
        return " | ".join(map(str, known["type"]))
    members: Any = known.get("anyOf") or known.get("oneOf")
    members = members if is_array(members) else []
    return " | ".join(map(type_name, members)) or str(known.get("type", "any"))


def first_line(item: Mapping[str, Any]) -> str:
    return str(item.get("description") or "").strip().partition("\n")[0]
