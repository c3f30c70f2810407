"""Tools as Python signatures: what a model needs to call them, in few words."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any

from defserve.protocols.mcp.tools.tools import Tool
from defserve.wire.jsonvalue import is_array, is_mapping, is_object

TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# How deep types are spelled out, and how long one may be.
DEEPEST, LONGEST = 3, 300
FIRST_LINE = 120


def signature(tool: Tool, *, brief: bool = False) -> str:
    """`def add(a: int, b: int = 1) -> int` and its description. `brief` keeps the first line of that."""
    arguments, returned = tool.function.arguments.schema, tool.returns.schema or tool.returns.scalar
    parameters = ", ".join(_parameters(arguments))
    result = _type(returned, returned, 0) if returned is not None else "str"
    if is_callable_by_name(tool.name):
        head = f"def {tool.name}({parameters}) -> {result}"
    else:
        head = f"await call_tool({tool.name!r}, {{{parameters}}}) -> {result}"
    described = " ".join(tool.description.split())
    if brief and len(described) > FIRST_LINE:
        described = described[: FIRST_LINE - 1] + "…"
    return f"{head}: {described}" if described else head


def is_callable_by_name(name: str) -> bool:
    """Whether the name is free for a function: an identifier that Python does not use itself."""
    return name.isidentifier() and not iskeyword(name) and not hasattr(builtins, name)


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    properties: Any = schema.get("properties")
    required: Any = schema.get("required") or ()
    for name, member in properties.items() if is_object(properties) else ():
        text = f"{name}: {_type(member, schema, 0)}"
        if name in required:
            yield text
        else:
            yield f"{text} = {member.get('default')!r}" if is_mapping(member) else f"{text} = None"


def _type(schema: Any, root: Any, depth: int) -> str:
    text = _spelled(schema, root, depth) if is_mapping(schema) else "Any"
    return text if len(text) <= LONGEST else "Any"


def _spelled(schema: Mapping[str, Any], root: Any, depth: int) -> str:
    if isinstance(ref := schema.get("$ref"), str):
        found = _referred(root, ref)
        return _type(found, root, depth + 1) if found is not None and depth < DEEPEST else "Any"
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if is_array(values := schema.get("enum")):
        return f"Literal[{', '.join(map(repr, values))}]"
    for keyword in ("anyOf", "oneOf"):
        if is_array(members := schema.get(keyword)):
            return " | ".join(dict.fromkeys(_type(member, root, depth) for member in members))
    kind: Any = schema.get("type")
    if is_array(kind):
        return " | ".join(_spelled({**schema, "type": one}, root, depth) for one in kind)
    if kind == "array":
        return f"list[{_type(schema.get('items'), root, depth + 1)}]" if "items" in schema else "list"
    if kind == "object":
        return _object(schema, root, depth)
    return TYPES.get(kind, "Any") if isinstance(kind, str) else "Any"


def _object(schema: Mapping[str, Any], root: Any, depth: int) -> str:
    properties: Any = schema.get("properties")
    if is_object(properties) and properties and depth < DEEPEST:
        required: Any = schema.get("required") or ()
        members = (
            f"{name!r}{'' if name in required else '?'}: {_type(member, root, depth + 1)}"
            for name, member in properties.items()
        )
        return f"{{{', '.join(members)}}}"
    values = schema.get("additionalProperties")
    return f"dict[str, {_type(values, root, depth + 1)}]" if is_mapping(values) else "dict"


def _referred(root: Any, ref: str) -> Any:
    found: Any = root
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part) if is_mapping(found) else None
    return found
