"""Tools as Python signatures: what a model needs to call them, in few words."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any

from defserve.protocols.mcp.lifecycle import Dialect
from defserve.protocols.mcp.tools.tools import Tool
from defserve.wire.jsonvalue import is_array, is_mapping, is_object

TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# Of the types of one schema: how many parts are spelled out, and how long one may be.
MOST_PARTS, LONGEST = 100, 300
LONGEST_SIGNATURE = 4_000
FIRST_LINE = 120


def signature(tool: Tool, dialect: Dialect, *, brief: bool = False) -> str:
    """`def add(a: int, b: int = 1) -> int` and its description. `brief` keeps the first line of that."""
    parameters, result = ", ".join(_parameters(tool.function.arguments.schema)), _result(tool, dialect)
    if is_callable_by_name(tool.name):
        head = f"def {tool.name}({parameters}) -> {result}"
    else:
        head = f"await call_tool({tool.name!r}, {{{parameters}}}) -> {result}"
    described = " ".join(tool.description.split())
    if brief and len(described) > FIRST_LINE:
        described = described[: FIRST_LINE - 1] + "…"
    return (f"{head}: {described}" if described else head)[:LONGEST_SIGNATURE]


def _result(tool: Tool, dialect: Dialect) -> str:
    # A tool of another server has only its listing.
    returned = tool.returns.schema or tool.returns.scalar or tool.describe(dialect).get("outputSchema")
    if returned is not None:
        return _Types(returned).text(returned)
    if type(tool) is not Tool:
        return "Any"
    return "None" if tool.function.signature.returns in (None, type(None)) else "str"


def is_callable_by_name(name: str) -> bool:
    """Whether the name is free for a function: an identifier that Python does not use itself."""
    return name.isidentifier() and not iskeyword(name) and not hasattr(builtins, name)


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    properties: Any = schema.get("properties")
    required: Any = schema.get("required") or ()
    types = _Types(schema)
    for name, member in properties.items() if is_object(properties) else ():
        text = f"{name}: {types.text(member)}"
        if name in required:
            yield text
        else:
            yield f"{text} = {member.get('default')!r}" if is_mapping(member) else f"{text} = None"


class _Types:
    """Types of one schema. Those of other servers may refer to themselves, so only so many parts are spelled out."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MOST_PARTS

    def text(self, schema: Any) -> str:
        self._left -= 1
        text = self._spelled(schema) if self._left > 0 and is_mapping(schema) else "Any"
        return text if len(text) <= LONGEST else "Any"

    def _spelled(self, schema: Mapping[str, Any]) -> str:
        if isinstance(ref := schema.get("$ref"), str):
            return self.text(self._referred(ref))
        if "const" in schema:
            return f"Literal[{schema['const']!r}]"
        if is_array(values := schema.get("enum")):
            return f"Literal[{', '.join(map(repr, values))}]"
        for keyword in ("anyOf", "oneOf"):
            if is_array(members := schema.get(keyword)):
                return " | ".join(dict.fromkeys(map(self.text, members)))
        kind: Any = schema.get("type")
        if is_array(kind):
            return " | ".join(self.text({**schema, "type": one}) for one in kind)
        if kind == "array":
            return f"list[{self.text(schema['items'])}]" if "items" in schema else "list"
        if kind == "object":
            return self._object(schema)
        return TYPES.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties: Any = schema.get("properties")
        if is_object(properties) and properties:
            required: Any = schema.get("required") or ()
            members = (f"{n!r}{'' if n in required else '?'}: {self.text(one)}" for n, one in properties.items())
            return f"{{{', '.join(members)}}}"
        values = schema.get("additionalProperties")
        return f"dict[str, {self.text(values)}]" if is_mapping(values) else "dict"

    def _referred(self, ref: str) -> Any:
        found: Any = self._root
        for part in ref.removeprefix("#/").split("/"):
            found = found.get(part) if is_mapping(found) else None
        return found
