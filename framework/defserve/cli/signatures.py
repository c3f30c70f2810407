"""Tools, resources and prompts in one line each, written like the signature of a function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.redaction import printable
from defserve.wire.jsonvalue import is_object

WHEN: Final = {False: "in every request", True: "if all are listed; search may list fewer"}
"""When a list of tools costs its tokens, by whether the tools are searched."""


def item_lines(item: dict[str, Any], more: str = "") -> Iterator[str]:
    """An item for a terminal: its signature, and the first line of its description, both escaped."""
    yield printable(f"  {signature(item)}{more}")
    if about := first_line(item):
        yield printable(f"      {about}")


def signature(item: dict[str, Any]) -> str:
    """`add(a: integer, b: integer = 1)` for a tool, `hi(name, style?)` for a prompt, the URI of a resource."""
    if "inputSchema" in item:
        return f"{item['name']}({', '.join(_parameters(item['inputSchema']))})"
    if "uri" in item or "uriTemplate" in item:
        return f"{item.get('uri') or item.get('uriTemplate')}  {item.get('title') or item.get('name') or ''}".rstrip()
    arguments: list[dict[str, Any]] = item.get("arguments") or []
    names = [f"{argument['name']}{'' if argument.get('required') else '?'}" for argument in arguments]
    return f"{item['name']}({', '.join(names)})"


def _parameters(schema: dict[str, Any]) -> Iterator[str]:
    required: list[str] = schema.get("required") or []
    properties: dict[str, Any] = schema.get("properties") or {}
    for name, property in properties.items():
        shown = f"{name}: {type_name(property)}"
        if "default" in property:
            yield f"{shown} = {json.dumps(property['default'], ensure_ascii=False)}"
        else:
            yield shown if name in required else f"{shown} = …"


def type_name(schema: Any) -> str:
    """A schema in a word or two."""
    known: dict[str, Any] = schema if is_object(schema) else {}
    if "enum" in known:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in known["enum"])
    if "$ref" in known:
        return str(known["$ref"]).rpartition("/")[2]
    if known.get("type") == "array":
        return f"{type_name(known.get('items'))}[]"
    if isinstance(known.get("type"), list):
        return " | ".join(known["type"])
    members: list[Any] = known.get("anyOf") or known.get("oneOf") or []
    return " | ".join(map(type_name, members)) or str(known.get("type", "any"))


def first_line(item: Mapping[str, Any]) -> str:
    return str(item.get("description") or "").strip().partition("\n")[0]
