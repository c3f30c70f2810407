"""Tools as models see them: the definitions in the shape that each vendor's API is sent, and what it cannot carry.

Hosts make these of `tools/list`. They send the schema as it is, so what a vendor refuses in one is named here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from defserve.client.replies import object_or_empty
from defserve.tooling.listing import CHARACTERS_PER_TOKEN

Json = Mapping[str, Any]


class VendorShape(NamedTuple):
    """How one API is told of tools. `carries` are the members of a tool that have a place in it.

    `name` is what a name has to be. `refuses` are the keywords that must not stand at the top of a schema. `gather`
    makes what is sent as `tools` of all tools.
    """

    title: str
    make: Callable[[Json], dict[str, Any]]
    carries: frozenset[str]
    name: re.Pattern[str]
    refuses: frozenset[str] = frozenset()
    gather: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list


class ShapedTool(NamedTuple):
    """One tool as an API is sent it. `tokens` is what that costs, about; `lost` is what the model is not told."""

    value: dict[str, Any]
    tokens: int
    lost: tuple[str, ...]
    problems: tuple[str, ...]


def shape_tool(vendor: str, tool: Json) -> ShapedTool:
    """A listed tool in the shape of a vendor of the table."""
    shape = VENDOR_SHAPES[vendor]
    value = shape.make(tool)
    lost = tuple(member for member in MEMBERS if tool.get(member) and member not in shape.carries)
    return ShapedTool(value, estimate_json_tokens(value), lost, tuple(_find_problems(shape, tool)))


def shape_tools(vendor: str, tools: Iterable[Json]) -> list[dict[str, Any]]:
    """What is sent as `tools` in a request."""
    shape = VENDOR_SHAPES[vendor]
    return shape.gather([shape.make(tool) for tool in tools])


def estimate_json_tokens(value: Any) -> int:
    """An estimate: a quarter of the characters."""
    return -(-len(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) // CHARACTERS_PER_TOKEN)


def _find_problems(shape: VendorShape, tool: Json) -> Iterable[str]:
    name, schema = str(tool.get("name")), object_or_empty(tool.get("inputSchema"))
    if shape.name.fullmatch(name) is None:
        yield f"the name is refused: it has to be {shape.name.pattern}"
    for keyword in sorted(shape.refuses & schema.keys()):
        yield f"the schema is refused: no {keyword} at its top"


# -- The table. Members of a tool that a model could be told, in the order in which they are named.


MEMBERS: Final = ("title", "outputSchema", "annotations", "execution", "icons", "security", "_meta")
_BASE: Final = frozenset(("name", "description", "inputSchema"))
_UNIONS: Final = frozenset(("anyOf", "oneOf", "allOf"))
_EMPTY: Final[Json] = {"type": "object", "properties": {}}


def _pick(tool: Json, **places: str) -> dict[str, Any]:
    """The members of a tool under other names; those that it has."""
    return {name: tool[member] for name, member in places.items() if tool.get(member) is not None}


def _schema(tool: Json) -> Any:
    return tool.get("inputSchema") or dict(_EMPTY)


def _make_openai(tool: Json) -> dict[str, Any]:
    described = _pick(tool, name="name", description="description")
    # Strict mode takes only schemas without optional members, so hosts leave it off for tools that others wrote.
    return {"type": "function", **described, "parameters": _schema(tool), "strict": False}


def _make_openai_chat(tool: Json) -> dict[str, Any]:
    described = _pick(tool, name="name", description="description")
    return {"type": "function", "function": {**described, "parameters": _schema(tool)}}


def _make_anthropic(tool: Json) -> dict[str, Any]:
    return {**_pick(tool, name="name", description="description"), "input_schema": _schema(tool)}


def _make_gemini(tool: Json) -> dict[str, Any]:
    told = _pick(tool, name="name", description="description")
    return {**told, "parametersJsonSchema": _schema(tool), **_pick(tool, responseJsonSchema="outputSchema")}


def _gather_declarations(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"functionDeclarations": made}]


VENDOR_SHAPES: Final[Mapping[str, VendorShape]] = {
    "openai": VendorShape(
        "OpenAI Responses", _make_openai, _BASE, re.compile(r"[a-zA-Z0-9_-]{1,64}"), _UNIONS | {"enum", "not"}
    ),
    "openai-chat": VendorShape(
        "OpenAI Chat Completions",
        _make_openai_chat,
        _BASE,
        re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        _UNIONS | {"enum", "not"},
    ),
    "anthropic": VendorShape(
        "Anthropic Messages", _make_anthropic, _BASE, re.compile(r"[a-zA-Z0-9_-]{1,128}"), _UNIONS
    ),
    "gemini": VendorShape(
        "Gemini",
        _make_gemini,
        _BASE | {"outputSchema"},
        re.compile(r"[a-zA-Z_][a-zA-Z0-9_:.-]{0,63}"),
        gather=_gather_declarations,
    ),
}
